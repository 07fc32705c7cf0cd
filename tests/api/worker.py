"""Other processes of a test: a publisher or a subscriber that speaks JSON lines, so that kills and pauses are real.

Run as `python -m tests.api.worker publisher|subscriber <settings as JSON>`; `Worker` is the test's side of it.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from typing import Any, ClassVar

DEADLINE_S = 60.0
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Worker:
    """A process that was started by the test, and the lines it has said so far."""

    started: ClassVar[list[Worker]] = []

    def __init__(self, role: str, **settings: Any) -> None:
        command = [sys.executable, "-m", "tests.api.worker", role, json.dumps(settings)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.said: list[dict[str, Any]] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        Worker.started.append(self)

    def tell(self, **order: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def hear(self, key: str) -> Any:
        """The value of the next line that has `key`; other lines are kept in `said`."""
        give_up_s = time.monotonic() + DEADLINE_S
        while True:
            line = self._lines.get(timeout=max(0.01, give_up_s - time.monotonic()))
            assert line is not None, f"the worker ended with {self.process.wait()} before it said {key!r}"
            said = json.loads(line)
            self.said.append(said)
            if key in said:
                return said[key]

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """A real SIGKILL; what it said before is in `said`."""
        self.process.kill()
        self.process.wait(DEADLINE_S)
        self.drain()

    def drain(self) -> None:
        """Takes in every line until the process has closed its side."""
        while (line := self._lines.get(timeout=DEADLINE_S)) is not None:
            if line.endswith("\n"):  # a killed process may leave half a line
                self.said.append(json.loads(line))

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass  # an order that the process did not live to read

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)


def say(**said: Any) -> None:
    print(json.dumps(said), flush=True)


def publisher(path: str, topic: str, name: str = "p", broker: str = "local:") -> None:
    """Publishes what it is told to: `rows` in one batch, or `batches` of `rows` as fast as it can. Says each range."""
    import pyspark_trigger as trigger

    sent = 0
    say(ready=True)
    for line in sys.stdin:
        order = json.loads(line)
        for _ in range(order.get("batches", 1)):
            rows = [{"who": name, "n": sent + index} for index in range(order["rows"])]
            start, end = trigger.publish(path, topic, rows, broker=broker)
            sent += len(rows)
            say(range=[start, end])
        say(done=True)


def subscriber(path: str, topic: str, **options: Any) -> None:
    """Says every batch: its offsets, its `n`, and how many rows came hot and cold so far."""
    import pyspark_trigger as trigger

    with trigger.subscribe(path, topic, **options) as feed:
        say(ready=feed.position)
        for batch in feed:
            offsets = batch.column("_offset").to_pylist()
            say(offsets=offsets, n=batch.column("n").to_pylist(), hot=feed.hot_rows, cold=feed.cold_rows, position=feed.position)
        say(done=feed.position)


def peak(path: str, topic: str, rows: int) -> None:
    """Reads `rows` rows and says the most Arrow memory that took."""
    import pyarrow as pa

    import pyspark_trigger as trigger

    seen = sum(batch.num_rows for batch in trigger.subscribe(path, topic, start=0, end=rows, timeout=0))
    say(peak=pa.default_memory_pool().max_memory(), rows=seen)


if __name__ == "__main__":
    {"publisher": publisher, "subscriber": subscriber, "peak": peak}[sys.argv[1]](**json.loads(sys.argv[2]))
