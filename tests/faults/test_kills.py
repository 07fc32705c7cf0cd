"""SIGKILL at any point: of writers, of readers, of a create and of a drop."""

from __future__ import annotations

import random
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from offsets import OffsetRange
from tests.conftest import Place
from tests.faults.history import SCHEMA, check_history, check_once, read_events, read_log, rows_of
from tests.faults.processes import Crew
from tests.faults.supervision import kill_and_restart
from tests.faults.worker import Job, Point
from trigger_core.errors import OutboxDamaged, TopicNotFound
from trigger_outbox import Batch, Outbox, Rows, topic_names
from trigger_outbox.outbox import drop_topic

ROWS = 3
CALLS_SAMPLED = 8


def run_again(outbox: Outbox, writer: str, batch: int = 0) -> bool:
    """The batch once more, as a restarted query would; whether it was there."""
    return outbox.append(Batch(Rows.of(rows_of(writer, batch, ROWS)), SCHEMA, txn=(writer, batch))).repeated


@pytest.mark.parametrize(
    ("point", "landed"),
    [
        (Point("create", "_delta_log/", "before", signal=signal.SIGKILL), False),
        (Point("os.link", "_delta_log/", "before", signal=signal.SIGKILL), False),
        (Point("os.link", "_delta_log/", "after", signal=signal.SIGKILL), True),
        (Point("create", "_delta_log/", "after", signal=signal.SIGKILL), True),
    ],
)
def test_A6_a_kill_before_the_commit_leaves_nothing_and_after_it_everything(
    tmp_path: Path, crew: Crew, point: Point, landed: bool
) -> None:
    outbox = Outbox.create(tmp_path, "t", SCHEMA)
    worker = crew.start(Job("write", str(tmp_path), rows=ROWS, points=(point,)))
    assert worker.end() == -signal.SIGKILL
    log = read_log(outbox)
    assert log.batches == ([("w", 0)] if landed else [])
    assert run_again(outbox, "w") is landed
    check_once(read_log(outbox), {"w": 1}, ROWS)


@pytest.mark.parametrize("chance", [61], indirect=True)
def test_A6_a_kill_at_any_system_call_leaves_all_or_nothing(tmp_path: Path, crew: Crew, chance: random.Random) -> None:
    outbox = Outbox.create(tmp_path, "t", SCHEMA)
    workers = []
    for index, nth in enumerate(sorted(chance.sample(range(1, 16), CALLS_SAMPLED))):
        point = Point("os.", "", chance.choice(("before", "after")), nth, signal.SIGKILL)
        workers.append(crew.start(Job("write", str(tmp_path), name=f"w{index}", rows=ROWS, upkeep=False, points=(point,))))
    codes = [worker.end() for worker in workers]
    assert codes.count(-signal.SIGKILL) >= CALLS_SAMPLED // 2, codes
    found = set(read_log(outbox).batches)
    for index in range(CALLS_SAMPLED):
        assert run_again(outbox, f"w{index}") is ((f"w{index}", 0) in found)
    check_once(read_log(outbox), {f"w{index}": 1 for index in range(CALLS_SAMPLED)}, ROWS)


@pytest.mark.parametrize("chance", [91, 92], indirect=True)
def test_A9_four_writers_killed_at_random_write_each_batch_once(
    place: Place, tmp_path: Path, crew: Crew, chance: random.Random
) -> None:
    local = not place.storage_options
    batches = 25 if local else 5
    outbox = Outbox.create(place.path, "t", SCHEMA, place.storage_options)
    writer = Job("write", place.path, storage=place.storage_options, batches=batches, rows=ROWS)
    jobs = [replace(writer, name=f"w{n}", record=str(tmp_path / f"w{n}.jsonl")) for n in range(4)]
    kill_and_restart(crew, jobs, chance, kills=4 if local else 2)
    events = read_events(tmp_path.glob("*.jsonl"))
    check_history(read_log(outbox), events, batches={job.name: batches for job in jobs}, rows=ROWS)


@pytest.mark.parametrize("chance", [31], indirect=True)
def test_B3_a_reader_killed_and_resumed_misses_none_and_repeats_none(tmp_path: Path, crew: Crew, chance: random.Random) -> None:
    outbox = Outbox.create(tmp_path / "topics", "t", SCHEMA)
    over = tmp_path / "over"
    writer = crew.start(Job("write", str(tmp_path / "topics"), record=str(tmp_path / "w.jsonl"), batches=300, rows=ROWS))
    merger = crew.start(Job("compact", str(tmp_path / "topics"), until=str(over)))
    reader = Job("read", str(tmp_path / "topics"), name="r", record=str(tmp_path / "r.jsonl"), read_rows=20, until=str(over))
    for _ in range(5):
        running = crew.start(reader)
        for _ in range(chance.randint(1, 10)):
            running.wait_for("at ")
        running.kill()
        if not writer.alive:
            break
    writer.finish()
    over.touch()
    crew.start(reader).finish()
    merger.finish()
    log, events = read_log(outbox), read_events(tmp_path.glob("*.jsonl"))
    check_history(log, events, batches={"w": 300}, rows=ROWS)
    assert [event for event in events["r"] if event["event"] == "read"][-1]["range"][1] == 300 * ROWS


def test_E6_a_burst_in_one_commit_reaches_a_reader_whole(tmp_path: Path, crew: Crew) -> None:
    rows = 150_000
    outbox = Outbox.create(tmp_path / "topics", "t", SCHEMA)
    over = tmp_path / "over"
    reader = crew.start(
        Job("read", str(tmp_path / "topics"), name="r", record=str(tmp_path / "r.jsonl"), read_rows=40_000, until=str(over))
    )
    reader.wait_for("ready")
    before = outbox.state.version
    done = outbox.append(Batch(Rows.of(rows_of("w", 0, rows)), SCHEMA))
    assert (done.range, done.version) == (OffsetRange(0, rows), before + 1)
    reader.wait_for(f"at {rows}")
    over.touch()
    reader.finish()
    check_history(read_log(outbox), read_events(tmp_path.glob("*.jsonl")), batches={"w": 1}, rows=rows)


@pytest.mark.parametrize("chance", [21], indirect=True)
def test_F2_a_create_killed_at_any_call_leaves_a_topic_or_none(tmp_path: Path, crew: Crew, chance: random.Random) -> None:
    points = [Point("os.link", "_delta_log/", when, signal=signal.SIGKILL) for when in ("before", "after")]
    points += [Point("os.", "", "before", nth, signal.SIGKILL) for nth in chance.sample(range(1, 30), CALLS_SAMPLED)]
    jobs = [Job("create", str(tmp_path), f"t{index}", points=(point,)) for index, point in enumerate(points)]
    workers = [crew.start(job) for job in jobs]
    codes = [worker.end() for worker in workers]
    assert codes[:2] == [-signal.SIGKILL] * 2
    made = topic_names(tmp_path)
    assert "t0" not in made
    assert "t1" in made
    for job in jobs:
        if job.topic in made:
            Outbox.open(tmp_path, job.topic)
        else:
            with pytest.raises(TopicNotFound):
                Outbox.open(tmp_path, job.topic)
        outbox = Outbox.create(tmp_path, job.topic, SCHEMA)
        assert run_again(outbox, "w") is False
        check_once(read_log(outbox), {"w": 1}, ROWS)


@pytest.mark.parametrize("nth", [1, 2, 5, 9])
def test_F2_a_drop_killed_half_way_serves_nothing_and_is_finished_by_the_next(tmp_path: Path, crew: Crew, nth: int) -> None:
    outbox = Outbox.create(tmp_path, "t", SCHEMA)
    for batch in range(6):
        run_again(outbox, "w", batch)
    outbox.checkpoint()
    job = Job("drop", str(tmp_path), points=(Point("os.unlink", "/t/", "after", nth, signal.SIGKILL),))
    assert crew.start(job).end() == -signal.SIGKILL
    with pytest.raises((TopicNotFound, OutboxDamaged)):
        Outbox.open(tmp_path, "t")
    with pytest.raises((TopicNotFound, OutboxDamaged)):
        run_again(outbox, "w", 6)
    with pytest.raises((TopicNotFound, OutboxDamaged), match="drop"):
        Outbox.create(tmp_path, "t", SCHEMA)
    crew.start(replace(job, points=())).finish()
    assert topic_names(tmp_path) == []
    assert drop_topic(tmp_path, "t") is False
    fresh = Outbox.create(tmp_path, "t", SCHEMA)
    assert run_again(fresh, "w") is False
