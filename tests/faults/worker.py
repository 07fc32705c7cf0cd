"""One process of a fault test: `python -m tests.faults.worker '<job as JSON>'`.

Owns what the tests do to a process from inside: constants made small, the exact call at which it stops or kills itself, and the
record of what it did. Everything else is the product, unchanged. Lines on stdout tell the test how far it is.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from offsets import OffsetRange
from tests.faults.history import SCHEMA, digest, rows_of
from trigger_core.errors import CommitContended, CommitStateUnknown, StoreUnavailable, TriggerError
from trigger_outbox import Appended, Batch, Outbox, Rows, staging
from trigger_outbox.lock import writers_lock
from trigger_outbox.outbox import drop_topic

STORE_TRIES_MAX = 60
IDLE_S = 0.005
SYSTEM_CALLS = ("mkdir", "open", "fsync", "link", "replace", "unlink")
SECONDS_MAX = 3_600.0


@dataclass(frozen=True)
class Point:
    """A call at which this process stops or dies: the `nth`, counted from 1, whose key or path contains `key`. `call` is one of
    the store's (`create`, `put`, `get`, `delete`), one of the system's (`os.link`, `os.fsync`…), or `os.` for any of those."""

    call: str
    key: str = ""
    when: str = "before"
    nth: int = 1
    signal: int = signal.SIGSTOP


@dataclass(frozen=True)
class Job:
    """What a worker does. `record` is its append-only file; a worker that is started again goes on from there."""

    do: str
    path: str
    topic: str = "t"
    storage: dict[str, str] = field(default_factory=dict)
    name: str = "w"
    record: str = ""
    batches: int = 1
    rows: int = 3
    read_rows: int = 500
    txn: bool = True
    upkeep: bool = True
    seconds: float = SECONDS_MAX
    until: str = ""
    """A file: its appearance ends the loop."""
    encode_s: float = 0.0
    keep_rows: int = 0
    files_min: int = 2
    constants: dict[str, float] = field(default_factory=dict)
    """`module.NAME`: value. Set in every module that imported the name."""
    points: tuple[Point, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Job:
        body = json.loads(text)
        return Job(**{**body, "points": tuple(Point(**point) for point in body["points"])})


class Recorder:
    """Appends one JSON line per event; a SIGKILL loses none that was written."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) if path else None

    def write(self, event: str, **facts: Any) -> None:
        if self._descriptor is not None:
            os.write(self._descriptor, (json.dumps({"event": event, "at": time.monotonic_ns(), **facts}) + "\n").encode())


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def set_constants(constants: dict[str, float]) -> None:
    """Also where `from … import NAME` has copied it."""
    for dotted, value in constants.items():
        module_name, _, name = dotted.rpartition(".")
        assert hasattr(importlib.import_module(module_name), name), dotted
        for module in [module for key, module in sys.modules.items() if key.partition(".")[0] == "trigger_outbox"]:
            if hasattr(module, name):
                setattr(module, name, value)


class Trap:
    """Counts calls, and stops or kills this process at the chosen ones."""

    def __init__(self, job: Job) -> None:
        self._points = job.points
        self._seen = [0] * len(job.points)

    def wrap(self, owner: Any, call: str, label: str) -> None:
        """Replaces the function `call` of `owner` by one that passes this trap before and after."""
        if not any(label.startswith(point.call) for point in self._points):
            return
        inner: Callable[..., Any] = getattr(owner, call)

        def passing(*arguments: Any, **named: Any) -> Any:
            # The last text is the target: of a link or a replace, too.
            key = next((str(each) for each in reversed(arguments) if isinstance(each, str)), "")
            self._pass(label, key, "before")
            result = inner(*arguments, **named)
            self._pass(label, key, "after")
            return result

        setattr(owner, call, passing)

    def wrap_system(self) -> None:
        for call in SYSTEM_CALLS:
            self.wrap(os, call, f"os.{call}")

    def _pass(self, call: str, key: str, when: str) -> None:
        for index, point in enumerate(self._points):
            if not call.startswith(point.call) or point.when != when or point.key not in key:
                continue
            self._seen[index] += 1
            if self._seen[index] == point.nth:
                say(f"at {call} {when}")
                os.kill(os.getpid(), point.signal)


def open_outbox(job: Job, trap: Trap) -> Outbox:
    outbox = Outbox.open(job.path, job.topic, job.storage)
    for call in ("create", "put", "get", "delete"):
        trap.wrap(outbox.follower.store, call, call)
    trap.wrap_system()
    return outbox


def ends(job: Job) -> Callable[[], bool]:
    """Whether the loop of `job` is to end: its time is over, its file is there."""
    deadline = time.monotonic() + job.seconds
    until = Path(job.until) if job.until else None
    return lambda: time.monotonic() > deadline or (until is not None and until.exists())


def events(record: str) -> list[dict[str, Any]]:
    """A last line that a SIGKILL cut short was never written: each is one write."""
    if not record or not Path(record).exists():
        return []
    return [json.loads(line) for line in Path(record).read_text().splitlines()]


def slowed(rows: Rows, seconds: float) -> Rows:
    """The same rows, which take that long to come."""

    def chunks() -> Iterator[pa.Table]:
        threading.Event().wait(seconds)
        yield from rows.chunks()

    return Rows(chunks, rows.count)


# ── what a process can do ────────────────────────────────────────────────────────────────────────────────────────────────────


def write(job: Job, recorder: Recorder, trap: Trap) -> None:
    """Appends its batches, each until it is acknowledged, and goes on after the last one it had recorded."""
    outbox = open_outbox(job, trap)
    over = ends(job)
    done = {event["batch"] for event in events(job.record) if event["event"] == "acked"}
    say("ready")
    for batch in range(job.batches):
        if batch in done:
            continue
        if over():
            break
        rows = Rows.of(rows_of(job.name, batch, job.rows))
        if job.encode_s:
            rows = slowed(rows, job.encode_s)
        recorder.write("began", batch=batch)
        appended = append(outbox, job, rows, batch)
        span = None if appended.range is None else [appended.range.start, appended.range.end]
        recorder.write("acked", batch=batch, range=span, repeated=appended.repeated, attempts=appended.attempts)
        say(f"acked {batch}")
    say(f"fenced {outbox.appender.fenced}")


def append(outbox: Outbox, job: Job, rows: Rows, batch: int) -> Appended:
    txn = (job.name, batch) if job.txn else None
    for _ in range(STORE_TRIES_MAX):
        try:
            return outbox.append(Batch(rows, SCHEMA, txn=txn), upkeep=job.upkeep)
        except CommitContended:  # nothing was written, and the cure is to run it again
            say("contended")
        except (StoreUnavailable, CommitStateUnknown) as error:
            if not job.txn:
                raise
            say(f"again {error.code}")  # the cure that the error names
    raise AssertionError(f"batch {batch} was not written in {STORE_TRIES_MAX} tries")


def read(job: Job, recorder: Recorder, trap: Trap) -> None:
    """Reads on from its recorded position, piece by piece, until told to end and at the head."""
    outbox = open_outbox(job, trap)
    over = ends(job)
    at = max((event["range"][1] for event in events(job.record) if event["event"] == "read"), default=0)
    say("ready")
    while True:
        last_round = over()
        asked = time.monotonic_ns()
        outbox.refresh()
        head = outbox.state.end
        recorder.write("head", asked=asked, head=head)
        while at < head:
            wanted = OffsetRange(at, min(head, at + job.read_rows))
            table = pa.Table.from_batches(outbox.read(wanted), outbox.state.metadata.schema.arrow)
            recorder.write("read", range=[wanted.start, wanted.end], digest=digest(table))
            at = wanted.end
            say(f"at {at}")
        if last_round:
            return
        threading.Event().wait(IDLE_S)


def compact(job: Job, recorder: Recorder, trap: Trap) -> None:
    """Merges whatever can be merged, all the time."""
    outbox = open_outbox(job, trap)
    over = ends(job)
    say("ready")
    while not over():
        merged = outbox.compact(files_min=job.files_min)
        if merged:
            recorder.write("merged", files=merged)
            say(f"merged {merged}")
        else:
            threading.Event().wait(IDLE_S)


def keep_log(job: Job, recorder: Recorder, trap: Trap) -> None:
    """Checkpoints, cleans the log, all the time."""
    outbox = open_outbox(job, trap)
    over = ends(job)
    say("ready")
    while not over():
        outbox.checkpoint()
        cleaned = outbox.clean_log()
        if cleaned:
            recorder.write("cleaned", files=cleaned)
            say(f"cleaned {cleaned}")
        threading.Event().wait(IDLE_S)


def trim(job: Job, recorder: Recorder, trap: Trap) -> None:
    """Keeps the newest `keep_rows`, all the time."""
    outbox = open_outbox(job, trap)
    over = ends(job)
    say("ready")
    while not over():
        outbox.refresh()
        before = outbox.state.end - job.keep_rows
        if before > outbox.state.earliest:
            with contextlib.suppress(CommitContended):
                removed = outbox.trim(before)
                recorder.write("trimmed", range=[removed.start, removed.end])
        threading.Event().wait(IDLE_S)


def vacuum(job: Job, recorder: Recorder, trap: Trap) -> None:
    """VACUUM with no retention at all, once."""
    outbox = open_outbox(job, trap)
    say("ready")
    removed = outbox.vacuum(retention_hours=0)
    recorder.write("vacuumed", files=removed)
    say(f"vacuumed {len(removed)}")


def stage(job: Job, recorder: Recorder, trap: Trap) -> None:
    """What a task does with rows that are too many for a message."""
    outbox = open_outbox(job, trap)
    say("ready")
    for batch in range(job.batches):
        staging.stage(outbox.home, job.name, batch, 0, 0, rows_of(job.name, batch, job.rows).to_batches(), SCHEMA)
        say(f"staged {batch}")


def create(job: Job, recorder: Recorder, trap: Trap) -> None:
    trap.wrap_system()
    say("ready")
    Outbox.create(job.path, job.topic, SCHEMA, job.storage)
    say("created")


def drop(job: Job, recorder: Recorder, trap: Trap) -> None:
    trap.wrap_system()
    say("ready")
    drop_topic(job.path, job.topic, job.storage)
    say("dropped")


def hold_lock(job: Job, recorder: Recorder, trap: Trap) -> None:
    """Takes the writers' lock, and stops with it."""
    outbox = open_outbox(job, trap)
    with writers_lock(outbox.home) as held:
        say(f"held {held}")
        os.kill(os.getpid(), signal.SIGSTOP)


JOBS = {each.__name__: each for each in (write, read, compact, keep_log, trim, vacuum, create, drop, stage, hold_lock)}


def main(text: str) -> int:
    job = Job.from_json(text)
    set_constants(job.constants)
    recorder = Recorder(job.record)
    try:
        JOBS[job.do](job, recorder, Trap(job))
    except TriggerError as error:
        recorder.write("failed", code=error.code, text=str(error))
        say(f"failed {error.code} {str(error)!r}")
        return 1
    say("done")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
