"""Two publishers and a subscriber as processes of their own; one publisher is killed, the subscriber is killed and resumed,
files are merged beside them, and at the end every row is counted. All figures come from the run; a row that is missing or
repeated fails it."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import pyspark_trigger as trigger

TOPIC = "orders"
BATCHES = 120
ROWS_PER_BATCH = 5
DEADLINE_S = 90.0


@dataclass
class Seen:
    """What the subscribers reported, over all their lives."""

    offsets: list[int] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)
    hot: int = 0
    cold: int = 0


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="trigger-demo-") as folder:
        return Demo(Path(folder)).run()


class Demo:
    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "topics")
        self.position = folder / "position.jsonl"
        self.topic = trigger.Topic(self.path, TOPIC)
        self.seen = Seen()
        self.began = time.monotonic()

    def run(self) -> int:
        trigger.publish(self.path, TOPIC, [{"publisher": "setup", "batch": 0, "sent_us": 0}])
        self.say(f"topic {TOPIC!r} at {self.path}: a Delta table, no server")
        reader = self.start("subscriber", self.path, str(self.position))
        first, second = self.start("publisher", self.path, "A", "0"), self.start("publisher", self.path, "B", "0")
        self.until(lambda: self.head() >= 150)
        first.send_signal(signal.SIGKILL)
        first.wait()
        self.say(f"publisher A killed with SIGKILL at offset {self.head()}")
        self.until(lambda: len(self.read_seen().offsets) >= 200)
        reader.send_signal(signal.SIGKILL)
        reader.wait()
        stopped = self.next_position()
        self.say(f"subscriber killed with SIGKILL at position {stopped}")
        first = self.start("publisher", self.path, "A", str(self.committed("A")))
        self.say(f"publisher A resumed at its batch {self.committed('A')}: a batch that was committed is not written again")
        self.until(lambda: self.head() >= stopped + 200)
        self.say(f"files merged beside the writers: {self.topic.compact()}, the topic has {self.topic.describe().files} files")
        self.say(f"subscriber resumed at {stopped}; what it missed is {self.head() - stopped} rows behind, replayed from Delta")
        reader = self.start("subscriber", self.path, str(self.position))
        first.wait(DEADLINE_S)
        second.wait(DEADLINE_S)
        self.until(lambda: self.next_position() >= self.head())
        reader.terminate()
        reader.wait()
        return self.audit()

    def audit(self) -> int:
        seen, written = self.read_seen(), self.head()
        missing = written - len(set(seen.offsets))
        repeated = len(seen.offsets) - len(set(seen.offsets))
        in_order = seen.offsets == sorted(seen.offsets)
        expected = 1 + 2 * BATCHES * ROWS_PER_BATCH
        report = self.topic.verify()
        live = sorted(seen.latencies_ms)
        if live:
            self.say(f"publish → subscribe while live: p50 {statistics.median(live):.1f} ms, worst {live[-1]:.1f} ms")
        self.say(f"rows served hot {seen.hot}, replayed from Delta {seen.cold}")
        self.say(
            f"audit: written {written} (expected {expected}), read {len(seen.offsets)}, missing {missing}, repeated {repeated},"
            f" in order {in_order}, log {'whole' if report.ok else report.problems}"
        )
        good = missing == repeated == 0 and written == expected and in_order and report.ok and seen.hot > 0 and seen.cold > 0
        return 0 if good else 1

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "demo.worker", *arguments])

    def until(self, condition: object) -> None:
        shown = 0.0
        while not condition():  # type: ignore[operator]
            if time.monotonic() - self.began > DEADLINE_S:
                raise SystemExit(f"the demo did not come to its end within {DEADLINE_S:.0f} s")
            if time.monotonic() - shown > 1:
                shown = time.monotonic()
                seen = self.read_seen()
                recent = seen.latencies_ms[-20:]
                latency = f", latency {statistics.median(recent):5.1f} ms" if recent else ""
                self.say(f"head {self.head():5}  read {len(seen.offsets):5}{latency}")
            time.sleep(0.05)

    def head(self) -> int:
        return self.topic.head()

    def committed(self, publisher: str) -> int:
        """The first batch of a publisher that is not in the log: found by reading it, as a service would on restart."""
        batches = [
            number
            for rows in self.topic.read(columns=["publisher", "batch"])
            for who, number in zip(rows.column("publisher").to_pylist(), rows.column("batch").to_pylist(), strict=True)
            if who == publisher
        ]
        return max(0, max(batches, default=0))

    def read_seen(self) -> Seen:
        seen = Seen()
        for line in self.position.read_text().splitlines() if self.position.exists() else []:
            entry = json.loads(line)
            seen.offsets.extend(range(entry["start"], entry["end"]))
            seen.hot, seen.cold = seen.hot + entry["hot"], seen.cold + entry["cold"]
            if entry["latency_ms"] is not None:
                seen.latencies_ms.append(entry["latency_ms"])
        return seen

    def next_position(self) -> int:
        return max(self.read_seen().offsets, default=-1) + 1

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} s  {text}", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[1]))
    sys.exit(main())
