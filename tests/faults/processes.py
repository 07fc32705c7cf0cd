"""Starting, stopping, killing and awaiting processes of a fault test. Every wait has a deadline, nothing outlives its test."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.faults.worker import Job

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120.0
CHECK_S = 0.005


class Worker:
    """One process that does a `Job`; `lines` is all it has said so far."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.lines: list[str] = []
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.worker", job.to_json()],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.errors: list[str] = []
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._threads = [
            threading.Thread(target=self._listen, args=(self._process.stdout, self._queue.put), daemon=True),
            threading.Thread(target=self._listen, args=(self._process.stderr, self.errors.append), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _listen(self, stream: Any, take: Callable[[str], None]) -> None:
        with stream:
            for line in stream:
                take(line.rstrip("\n"))
        if take == self._queue.put:
            self._queue.put(None)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait_for(self, start: str, deadline_s: float = DEADLINE_S) -> str:
        """The next line that begins so. AssertionError with what the process said if it ends first or takes too long."""
        while True:
            try:
                line = self._queue.get(timeout=deadline_s)
            except queue.Empty:
                raise AssertionError(f"{self} did not say {start!r} within {deadline_s} s") from None
            if line is None:
                self._queue.put(None)
                raise AssertionError(f"{self} ended without {start!r}")
            self.lines.append(line)
            if line.startswith(start):
                return line

    def wait_stopped(self) -> None:
        """Until the kernel says that it is stopped: a signal is not delivered at once."""
        status = Path(f"/proc/{self.pid}/stat")
        await_true(lambda: status.read_text().rpartition(")")[2].split()[0] == "T", f"{self} to stop")

    @property
    def ended_well(self) -> bool:
        return self._process.poll() == 0

    def stop(self) -> None:
        """SIGSTOP; harmless if it has ended."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, also of a stopped process; harmless if it has ended."""
        self._process.kill()
        self.end()

    def end(self, deadline_s: float = DEADLINE_S) -> int:
        """The exit code; all it said is in `lines` then."""
        try:
            code = self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self} did not end within {deadline_s} s") from None
        for thread in self._threads:
            thread.join(deadline_s)
        while (line := self._queue.get()) is not None:
            self.lines.append(line)
        self._queue.put(None)
        return code

    def finish(self, deadline_s: float = DEADLINE_S) -> list[str]:
        """Waits for a good end and returns what it said."""
        code = self.end(deadline_s)
        assert code == 0, f"{self} ended with {code}"
        return self.lines

    def __str__(self) -> str:
        return f"{self.job.do} {self.job.name!r} (said {self.lines[-3:]}, errors {self.errors[-5:]})"


class Crew:
    """The processes of one test; all are gone when it ends."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []

    def start(self, job: Job) -> Worker:
        worker = Worker(job)
        self.workers.append(worker)
        return worker

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for worker in self.workers:
            worker.kill()


def await_true(condition: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    clock = threading.Event()
    for _ in range(int(deadline_s / CHECK_S)):
        if condition():
            return
        clock.wait(CHECK_S)
    raise AssertionError(f"waited {deadline_s} s for {what}")
