"""Killing processes again and again at points that chance chooses, until what they do is done."""

from __future__ import annotations

import random
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tests.faults.processes import Crew
from tests.faults.worker import Job, Point

CALLS = ("create", "put", "get", "os.")
CALLS_MAX = 40


def kill_and_restart(crew: Crew, jobs: list[Job], chance: random.Random, kills: int) -> None:
    """Runs `jobs` side by side. Each is killed `kills` times at most, and then left to finish."""
    seeds = [chance.getrandbits(32) for _ in jobs]
    with ThreadPoolExecutor(len(jobs)) as pool:
        running = [pool.submit(_supervise, crew, job, random.Random(seed), kills) for job, seed in zip(jobs, seeds, strict=True)]
        for each in running:
            each.result()


def _supervise(crew: Crew, job: Job, chance: random.Random, kills: int) -> None:
    for _ in range(kills):
        if chance.random() < 0.6:  # from inside, at an exact call
            worker = crew.start(replace(job, points=(random_kill(chance),)))
        else:  # from outside, wherever it happens to be
            worker = crew.start(job)
            for _ in range(chance.randint(1, 4)):
                try:
                    worker.wait_for("acked" if job.do == "write" else "at ")
                except AssertionError:
                    break  # it has finished
            worker.kill()
        code = worker.end()
        assert code in (0, -signal.SIGKILL), f"{worker} ended with {code}"
        if code == 0:
            return
    crew.start(job).finish()


def random_kill(chance: random.Random) -> Point:
    return Point(chance.choice(CALLS), "", chance.choice(("before", "after")), chance.randint(1, CALLS_MAX), signal.SIGKILL)
