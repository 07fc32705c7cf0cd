"""One random history: writers, readers, mergers and cleaners on one topic, killed and stopped as chance has it, then checked.

The fence is made small in every process alike, so that stops of a second lie on both sides of it.
"""

from __future__ import annotations

import random
import signal
import threading
from dataclasses import dataclass, replace
from pathlib import Path

from tests.faults.history import SCHEMA, check_history, read_events, read_log
from tests.faults.processes import Crew, Worker
from tests.faults.supervision import random_kill
from tests.faults.worker import Job
from trigger_outbox import Outbox

ROWS = 3
FENCE_S = 1.0
CONSTANTS = {
    "trigger_outbox.follow.FENCE_S": FENCE_S,
    "trigger_outbox.follow.REOPEN_AFTER_S": FENCE_S / 2,
    "trigger_outbox.maintain.LOG_VERSIONS_KEPT": 5,
    "trigger_outbox.maintain.CHECKPOINT_VERSIONS": 7,
    "trigger_outbox.maintain.CLEANUP_VERSIONS": 11,
}
PAUSE_S_MAX = 2.5 * FENCE_S
STEP_S_MAX = 0.2


@dataclass(frozen=True)
class Size:
    writers: int = 3
    readers: int = 2
    batches: int = 40
    faults: int = 12


def run_history(folder: Path, place: str, storage: dict[str, str], crew: Crew, chance: random.Random, size: Size) -> None:
    """Raises AssertionError with the first contradiction between what the processes recorded and what the log has."""
    topics, over = place, folder / "over"
    outbox = Outbox.create(topics, "t", SCHEMA, storage)
    base = Job("write", topics, storage=storage, batches=size.batches, rows=ROWS, constants=CONSTANTS)
    writers = [replace(base, name=f"w{n}", record=str(folder / f"w{n}.jsonl")) for n in range(size.writers)]
    helpers = [
        replace(base, do="read", name=f"r{n}", record=str(folder / f"r{n}.jsonl"), until=str(over), read_rows=chance.choice((7, 50, 500)))
        for n in range(size.readers)
    ]
    helpers += [replace(base, do="compact", name="merger", until=str(over)), replace(base, do="keep_log", name="keeper", until=str(over))]
    running = {job.name: crew.start(job) for job in [*writers, *helpers]}
    for _ in range(size.faults):
        if all(running[job.name].ended_well for job in writers):
            break
        _one_fault(crew, running, chance)
    for job in writers:
        _finish(crew, running, job)
    over.touch()
    for job in helpers:
        _finish(crew, running, job)
    events = read_events(folder.glob("*.jsonl"))
    check_history(read_log(outbox), events, batches={job.name: size.batches for job in writers}, rows=ROWS)
    for job in helpers[: size.readers]:
        last = [event["range"][1] for event in events[job.name] if event["event"] == "read"][-1]
        assert last == size.writers * size.batches * ROWS, f"reader {job.name} ended at {last}"


def _one_fault(crew: Crew, running: dict[str, Worker], chance: random.Random) -> None:
    """Kills one process, or stops one for a while; what has died is started again, perhaps with its next death in it."""
    clock = threading.Event()
    clock.wait(chance.random() * STEP_S_MAX)
    name = chance.choice(sorted(running))
    worker = running[name]
    if chance.random() < 0.5:
        worker.kill()
    else:
        worker.stop()
        clock.wait(chance.random() * PAUSE_S_MAX)
        worker.resume()
    for name, worker in sorted(running.items()):
        if not worker.alive and not worker.ended_well:
            _expect_killed(worker)
            points = (random_kill(chance),) if chance.random() < 0.5 else ()
            running[name] = crew.start(replace(worker.job, points=points))


def _finish(crew: Crew, running: dict[str, Worker], job: Job) -> None:
    worker = running[job.name]
    if worker.end() != 0:
        _expect_killed(worker)
        crew.start(replace(job, points=())).finish()


def _expect_killed(worker: Worker) -> None:
    code = worker.end()
    assert code == -signal.SIGKILL, f"{worker} ended with {code}"
