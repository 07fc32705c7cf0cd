"""Many processes on one log: fairness to a slow batch, maintenance beside writers, maintenance beside maintenance."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tests.faults.history import SCHEMA, check_history, read_events, read_log
from tests.faults.processes import Crew
from tests.faults.worker import Job
from trigger_outbox import Outbox
from trigger_outbox.commit import key_of, parse_commit
from trigger_outbox.state import turn_of

ROWS = 3
ENCODE_S = 1.0
"""The rows are asked for twice, for the file and for the wakeup: two seconds in all."""
FAR_AWAY = 1_000_000


def turns_taken(outbox: Outbox, writer: str) -> int:
    """How often the only batch of `writer` asked the others to let it go first."""
    store = outbox.follower.store
    bodies = [store.get(key_of(version)) for version in range(outbox.follower.reopen().version + 1)]
    commits = [parse_commit(version, body) for version, body in enumerate(bodies) if body is not None]
    (own,) = [commit.record.operation for commit in commits if commit.record is not None and writer in commit.txns]
    return sum(commit.record is not None and commit.record.operation == turn_of(own) for commit in commits)


def test_A16_a_batch_of_two_seconds_lands_within_two_turns_against_four_fast_writers(tmp_path: Path, crew: Crew) -> None:
    outbox = Outbox.create(tmp_path / "topics", "t", SCHEMA)
    over = tmp_path / "over"
    # Nothing is cleaned up meanwhile: every turn can be counted in the end.
    fast = Job("write", str(tmp_path / "topics"), batches=FAR_AWAY, rows=ROWS, until=str(over), upkeep=False)
    writers = [crew.start(replace(fast, name=f"w{n}", record=str(tmp_path / f"w{n}.jsonl"))) for n in range(4)]
    for writer in writers:
        writer.wait_for("acked")
    slow = crew.start(
        Job("write", str(tmp_path / "topics"), name="slow", record=str(tmp_path / "slow.jsonl"), rows=ROWS, encode_s=ENCODE_S)
    )
    slow.finish()
    over.touch()
    for writer in writers:
        writer.finish()
    assert turns_taken(outbox, "slow") <= 2
    events = read_events(tmp_path.glob("*.jsonl"))
    batches = {name: sum(event["event"] == "acked" for event in story) for name, story in events.items()}
    assert batches["slow"] == 1
    check_history(read_log(outbox), events, batches=batches, rows=ROWS)


def write_beside_compaction(tmp_path: Path, crew: Crew, *, writers: int, batches: int) -> None:
    """All batches once, dense; compaction merged, and ends."""
    outbox = Outbox.create(tmp_path / "topics", "t", SCHEMA)
    over = tmp_path / "over"
    merger = crew.start(Job("compact", str(tmp_path / "topics"), record=str(tmp_path / "merger.jsonl"), until=str(over)))
    merger.wait_for("ready")
    job = Job("write", str(tmp_path / "topics"), batches=batches, rows=ROWS)
    running = [crew.start(replace(job, name=f"w{n}", record=str(tmp_path / f"w{n}.jsonl"))) for n in range(writers)]
    for writer in running:
        writer.finish(600)
    over.touch()
    merger.finish()
    events = read_events(tmp_path.glob("*.jsonl"))
    assert events.pop("merger", []), "nothing was merged"
    check_history(read_log(outbox), events, batches={worker.job.name: batches for worker in running}, rows=ROWS)
    outbox.compact(files_min=2)
    assert outbox.compact(files_min=2) == 0, "compaction has no end"


def test_A19_ten_writers_beside_a_compaction_write_each_batch_once(tmp_path: Path, crew: Crew) -> None:
    write_beside_compaction(tmp_path, crew, writers=10, batches=40)


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_A19_ten_writers_of_200_batches_beside_a_compaction_write_each_once(tmp_path: Path, crew: Crew) -> None:
    write_beside_compaction(tmp_path, crew, writers=10, batches=200)


@pytest.mark.parametrize("chance", [131, 132, 133, 134], indirect=True)
def test_C13_compaction_beside_compaction_trim_and_append_keeps_every_row(
    tmp_path: Path, crew: Crew, chance: random.Random
) -> None:
    path, over, batches = str(tmp_path / "topics"), tmp_path / "over", 40
    outbox = Outbox.create(path, "t", SCHEMA)
    keep_rows = chance.choice((0, 20, 60))
    others = [Job("compact", path, files_min=files_min, until=str(over)) for files_min in (2, chance.randint(2, 5))]
    others.append(Job("trim", path, name="trim", record=str(tmp_path / "trim.jsonl"), keep_rows=keep_rows, until=str(over)))
    jobs = [
        Job("write", path, name=f"w{n}", record=str(tmp_path / f"w{n}.jsonl"), batches=batches, rows=ROWS, upkeep=chance.random() < 0.5)
        for n in range(3)
    ]
    order = [*others, *jobs]
    chance.shuffle(order)
    workers = [crew.start(job) for job in order]
    for writer in [worker for worker in workers if worker.job in jobs]:
        writer.finish()
    over.touch()
    for worker in workers:
        worker.finish()
    events = read_events(tmp_path.glob("*.jsonl"))
    trims = [event["range"] for event in events.pop("trim", [])]
    assert trims, "nothing was trimmed"
    assert all(left[1] <= right[0] for left, right in pairwise(trims)), "a trim went back"
    log = read_log(outbox)
    # Every offset was given out once: as many as there are rows, each batch told its own, those that are left where they were told.
    assert log.earliest + log.table.num_rows == len(jobs) * batches * ROWS
    told = sorted((event["range"], name, event["batch"]) for name in events for event in events[name] if event["event"] == "acked")
    assert [range_ for range_, _, _ in told] == [[at, at + ROWS] for at in range(0, len(jobs) * batches * ROWS, ROWS)]
    left = [(name, batch) for (_, end), name, batch in told if end > log.earliest]
    assert log.batches == left
