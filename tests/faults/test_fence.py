"""Processes stopped (SIGSTOP) at an exact call while the log goes on without them: cleaned, vacuumed, dropped, made anew."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults.history import SCHEMA, check_history, check_once, read_events, read_log, rows_of
from tests.faults.processes import Crew, Worker, await_true
from tests.faults.worker import Job, Point
from trigger_core.errors import TopicNotFound
from trigger_outbox import Batch, Outbox, Rows, lock, maintain, staging, topic_names
from trigger_outbox.commit import key_of
from trigger_outbox.follow import boot_time_s
from trigger_outbox.lock import writers_lock
from trigger_outbox.outbox import drop_topic

ROWS = 3
REOPEN_AFTER_S = 0.2
PAUSE_S = 1.0
QUICK = {"trigger_outbox.follow.REOPEN_AFTER_S": REOPEN_AFTER_S}
AGE_S = 3_600


def append(outbox: Outbox, writer: str, first: int, count: int) -> None:
    for batch in range(first, first + count):
        outbox.append(Batch(Rows.of(rows_of(writer, batch, ROWS)), SCHEMA, txn=(writer, batch)), upkeep=False)


def clean(outbox: Outbox, writer: str, first: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Lets the log grow by a few commits, ages all of it, and cleans it up; returns the next batch of `writer`."""
    monkeypatch.setattr(maintain, "LOG_VERSIONS_KEPT", 2)
    Path(outbox.home.url, lock.LOCK_FILE).unlink(missing_ok=True)  # a stopped writer may hold it, and each append would wait
    append(outbox, writer, first, 4)
    assert outbox.checkpoint()
    append(outbox, writer, first + 4, 3)
    folder = Path(outbox.follower.store.url) / "_delta_log"
    for file in folder.glob("[!.]*"):
        found = file.stat()
        os.utime(file, (found.st_atime - AGE_S, found.st_mtime - AGE_S))
    append(outbox, writer, first + 7, 1)
    assert outbox.clean_log() > 0
    return first + 8


def let_fence_pass(worker: Worker) -> None:
    """A stop that is longer than the worker's own bound, by the clock that it looks at."""
    stopped_s = boot_time_s()
    await_true(lambda: boot_time_s() - stopped_s > PAUSE_S, "the pause to pass")
    worker.resume()


@pytest.mark.parametrize("txn", [True, False])
@pytest.mark.parametrize(
    ("point", "fenced"),
    [
        (Point("put", "d0/", "before", nth=2), 1),  # it encodes, and puts into the hole
        (Point("create", "_delta_log/", "before", nth=2), 1),
        (Point("os.link", "_delta_log/", "before", nth=2), 1),
        (Point("create", "_delta_log/", "after", nth=2), 0),  # it has landed: must not be written again
    ],
)
def test_A23_a_writer_stopped_across_a_cleanup_writes_each_batch_once(
    tmp_path: Path, crew: Crew, monkeypatch: pytest.MonkeyPatch, point: Point, fenced: int, txn: bool
) -> None:
    outbox = Outbox.create(tmp_path / "topics", "t", SCHEMA)
    record = tmp_path / "w.jsonl"
    job = Job("write", str(tmp_path / "topics"), record=str(record), batches=3, rows=ROWS, txn=txn, upkeep=False, points=(point,))
    worker = crew.start(job)
    worker.wait_for("at ")
    worker.wait_stopped()
    others = clean(outbox, "o", 0, monkeypatch)
    assert outbox.follower.store.get(key_of(1)) is None
    worker.resume()
    assert f"fenced {fenced}" in worker.finish()
    check_history(read_log(outbox), read_events([record]), batches={"w": 3, "o": others}, rows=ROWS)


@pytest.mark.parametrize("txn", [True, False])
@pytest.mark.parametrize("pair", ["alone", "with its own rows again"])
def test_A23_a_landed_commit_is_known_by_its_rows_when_its_files_were_merged(
    tmp_path: Path, crew: Crew, monkeypatch: pytest.MonkeyPatch, txn: bool, pair: str
) -> None:
    """Neither its name nor its files are left; only the rows, at their offsets, tell."""
    outbox = Outbox.create(tmp_path / "topics", "t", SCHEMA)
    record = tmp_path / "w.jsonl"
    point = Point("create", "_delta_log/", "after", nth=2)
    worker = crew.start(
        Job("write", str(tmp_path / "topics"), record=str(record), batches=3, rows=ROWS, txn=txn, upkeep=False, points=(point,))
    )
    worker.wait_for("at ")
    worker.wait_stopped()
    if pair != "alone":
        outbox.append(Batch(Rows.of(rows_of("again", 0, ROWS)), SCHEMA), upkeep=False)
    others = clean(outbox, "o", 0, monkeypatch)
    assert outbox.compact(files_min=2) > 0
    others = clean(outbox, "o", others, monkeypatch)
    outbox.vacuum(retention_hours=0)
    worker.resume()
    worker.finish()
    log = read_log(outbox)
    batches = {"w": 3, "o": others} | ({} if pair == "alone" else {"again": 1})
    check_history(log, read_events([record]), batches=batches, rows=ROWS)
    assert [event["repeated"] for event in read_events([record])["w"] if event["event"] == "acked"] == [False] * 3


def test_A23_a_writer_without_a_txn_whose_rows_were_trimmed_says_that_it_can_not_know(
    tmp_path: Path, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = Outbox.create(tmp_path, "t", SCHEMA)
    job = Job("write", str(tmp_path), rows=ROWS, txn=False, upkeep=False, points=(Point("create", "_delta_log/", "after"),))
    worker = crew.start(job)
    worker.wait_for("at ")
    worker.wait_stopped()
    clean(outbox, "o", 0, monkeypatch)
    outbox.trim(2 * ROWS)
    worker.resume()
    assert worker.end() == 1
    assert any(line.startswith("failed CommitStateUnknown") for line in worker.lines), worker.lines


@pytest.mark.parametrize("when", ["before", "after"])
def test_A23_a_reader_stopped_across_a_cleanup_believes_no_orphan(
    tmp_path: Path, crew: Crew, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    path, over = tmp_path / "topics", tmp_path / "over"
    outbox = Outbox.create(path, "t", SCHEMA)
    append(outbox, "o", 0, 2)
    record = tmp_path / "r.jsonl"
    miss = Point("get", key_of(3), when, nth=3)
    reader = crew.start(Job("read", str(path), name="r", record=str(record), constants=QUICK, until=str(over), points=(miss,)))
    # A writer that has folded up to version 2 as well, and dies right after it has put version 3 into the hole.
    orphan = Point("create", "_delta_log/", "before"), Point("create", "_delta_log/", "after", signal=signal.SIGKILL)
    writer = crew.start(Job("write", str(path), name="w", rows=ROWS, upkeep=False, points=orphan))
    for worker in (reader, writer):
        worker.wait_for("at create" if worker is writer else "at get")
        worker.wait_stopped()
    others = clean(outbox, "o", 2, monkeypatch)
    writer.resume()
    assert writer.end() == -signal.SIGKILL
    assert outbox.follower.store.get(key_of(3)) is not None, "there is no orphan to be believed"
    let_fence_pass(reader)
    reader.wait_for(f"at {others * ROWS}")
    over.touch()
    reader.finish()
    check_history(read_log(outbox), read_events([record]), batches={"o": others}, rows=ROWS)


def test_A23_a_writer_that_was_idle_across_a_cleanup_still_knows_every_txn(
    tmp_path: Path, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot reads its log when it is asked for a txn, and then the log is gone."""
    first, second = Outbox.create(tmp_path, "t", SCHEMA), Outbox.open(tmp_path, "t")
    append(first, "late", 0, 1)
    second.refresh()
    others = clean(first, "o", 0, monkeypatch)
    others = clean(first, "o", others, monkeypatch)
    second.refresh()
    done = second.append(Batch(Rows.of(rows_of("late", 0, ROWS)), SCHEMA, txn=("late", 0)))
    assert done.repeated
    done = second.append(Batch(Rows.of(rows_of("new", 0, ROWS)), SCHEMA, txn=("new", 0)))
    assert not done.repeated
    check_once(read_log(first), {"late": 1, "new": 1, "o": others}, ROWS)


@pytest.mark.parametrize("call", ["put", "create"])
@pytest.mark.parametrize("commits", [0, 2, 5], ids=["lower", "the same version", "higher"])
def test_A21_a_writer_of_a_dropped_topic_is_refused_by_the_new_one(tmp_path: Path, crew: Crew, call: str, commits: int) -> None:
    """At the same version, its put lands in the log of the new table: it must not stay there."""
    old = Outbox.create(tmp_path, "t", SCHEMA)
    append(old, "o", 0, 2)
    worker = crew.start(Job("write", str(tmp_path), name="late", rows=ROWS, upkeep=False, points=(Point(call, "", "before"),)))
    worker.wait_for("at ")
    worker.wait_stopped()
    assert drop_topic(tmp_path, "t")
    new = Outbox.create(tmp_path, "t", SCHEMA)
    append(new, "n", 0, commits)
    worker.resume()
    assert worker.end() == 1
    assert any(line.startswith("failed TopicRecreated") for line in worker.lines), worker.lines
    append(new, "n", commits, 3)
    log = read_log(Outbox.open(tmp_path, "t"))
    assert log.batches == [("n", batch) for batch in range(commits + 3)]


@pytest.mark.parametrize("call", ["put", "create"])
def test_A21_a_writer_of_a_dropped_topic_does_not_bring_it_back(tmp_path: Path, crew: Crew, call: str) -> None:
    append(Outbox.create(tmp_path, "t", SCHEMA), "o", 0, 2)
    worker = crew.start(Job("write", str(tmp_path), name="late", rows=ROWS, upkeep=False, points=(Point(call, "", "before"),)))
    worker.wait_for("at ")
    worker.wait_stopped()
    assert drop_topic(tmp_path, "t")
    worker.resume()
    assert worker.end() == 1
    assert any(line.startswith("failed TopicNotFound") for line in worker.lines), worker.lines
    assert topic_names(tmp_path) == []
    with pytest.raises(TopicNotFound):
        Outbox.open(tmp_path, "t")
    append(Outbox.create(tmp_path, "t", SCHEMA), "n", 0, 1)


def test_A21_a_reader_of_a_dropped_topic_is_refused_by_the_new_one(tmp_path: Path, crew: Crew) -> None:
    old = Outbox.create(tmp_path, "t", SCHEMA)
    append(old, "o", 0, 3)
    reader = crew.start(Job("read", str(tmp_path), constants=QUICK, points=(Point("get", key_of(4), "before", nth=2),)))
    reader.wait_for("at get")
    reader.wait_stopped()
    assert drop_topic(tmp_path, "t")
    append(Outbox.create(tmp_path, "t", SCHEMA), "n", 0, 6)
    let_fence_pass(reader)
    assert reader.end() == 1
    assert any(line.startswith("failed TopicRecreated") for line in reader.lines), reader.lines


def test_A25_a_stopped_holder_of_the_lock_delays_others_by_its_bound_only(tmp_path: Path, crew: Crew) -> None:
    outbox = Outbox.create(tmp_path, "t", SCHEMA)
    holder = crew.start(Job("hold_lock", str(tmp_path)))
    holder.wait_for("held True")
    holder.wait_stopped()
    with writers_lock(outbox.home, lock.LOCK_WAIT_S_MAX) as held:
        assert not held, "a stopped process holds it"
    append(outbox, "o", 0, 3)
    holder.kill()
    with writers_lock(outbox.home) as held:
        assert held, "and a dead one does not"
    check_once(read_log(outbox), {"o": 3}, ROWS)


def test_A25_a_writer_stopped_inside_its_append_holds_nobody_up(tmp_path: Path, crew: Crew) -> None:
    outbox = Outbox.create(tmp_path, "t", SCHEMA)
    worker = crew.start(Job("write", str(tmp_path), rows=ROWS, points=(Point("create", "_delta_log/", "before"),)))
    worker.wait_for("at create")
    worker.wait_stopped()
    append(outbox, "o", 0, 3)
    worker.resume()
    worker.finish()
    check_once(read_log(outbox), {"o": 3, "w": 1}, ROWS)


@pytest.mark.parametrize("rows", [ROWS, 20_000])
def test_C15_a_vacuum_while_an_append_waits_for_its_commit_takes_no_row(tmp_path: Path, crew: Crew, rows: int) -> None:
    """Delta accepts the commit of a file that is gone; the writer looks, and puts it again."""
    outbox = Outbox.create(tmp_path / "topics", "t", SCHEMA)
    append(outbox, "o", 0, 2)
    record = tmp_path / "w.jsonl"
    worker = crew.start(
        Job(
            "write",
            str(tmp_path / "topics"),
            record=str(record),
            rows=rows,
            constants={"trigger_outbox.append.LOOK_AGAIN_AFTER_S": 0.0},
            points=(Point("create", "_delta_log/", "before"),),
        )
    )
    worker.wait_for("at create")
    worker.wait_stopped()
    files = Path(outbox.follower.store.url)
    waiting = {str(file.relative_to(files)) for file in files.glob("d*/*/*.parquet")} - {file.path for file in outbox.state.files}
    assert len(waiting) == 1
    removed: set[str] = set()

    def vacuumed() -> bool:
        removed.update(outbox.vacuum(retention_hours=0))
        return waiting <= removed

    await_true(vacuumed, "the vacuum to take the waiting file")
    worker.resume()
    worker.finish()
    log = read_log(outbox)
    assert log.batches == [("o", 0), ("o", 1), ("w", 0)]
    assert log.runs[-1].end - log.runs[-1].start == rows


def test_C15_a_vacuum_stopped_between_its_list_and_its_deletes_takes_no_active_file(tmp_path: Path, crew: Crew) -> None:
    outbox = Outbox.create(tmp_path, "t", SCHEMA)
    append(outbox, "o", 0, 6)
    assert outbox.compact(files_min=2) > 0
    worker = crew.start(Job("vacuum", str(tmp_path), points=(Point("delete", "", "before"),)))
    worker.wait_for("at delete")
    worker.wait_stopped()
    append(outbox, "o", 6, 6)
    outbox.compact(files_min=2)
    worker.resume()
    worker.finish()
    check_once(read_log(outbox), {"o": 12}, ROWS)


def test_A20_staging_of_killed_tasks_is_swept(tmp_path: Path, crew: Crew) -> None:
    """Both what a task had written whole and what it was writing."""
    outbox = Outbox.create(tmp_path, "t", SCHEMA)
    folder = tmp_path / "t" / "staging"
    for name, when in (("query-1", "before"), ("query-2", "after")):
        point = Point("os.replace", "staging/", when, nth=3, signal=signal.SIGKILL)
        worker = crew.start(Job("stage", str(tmp_path), name=name, batches=4, points=(point,)))
        assert worker.end() == -signal.SIGKILL
    assert staging.sweep_owner(outbox.home, "query-2", 0) == 1
    left = sorted(str(file.relative_to(folder).parent) for file in folder.rglob("*") if file.is_file())
    assert left == ["query-1/0", "query-1/1", "query-1/2", "query-2/1", "query-2/2"]
    assert staging.sweep_old(outbox.home) == 0, "younger than a week: a task may still be running"
    staging.sweep_old(outbox.home, age_ms=-1)
    assert not folder.exists()
