"""`make bench`: the log against its peers in one run, as a Markdown table. `--smoke` is the same, small."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake

import pyspark_trigger as trigger
from offsets import OffsetRange
from trigger_outbox import Batch, Outbox, Rows
from trigger_outbox.follow import Follower

ROWS = 100
WINDOW = 100
"""Appends that a point of the flatness curve is the median of."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench")
    parser.add_argument("--smoke", action="store_true", help="small sizes: does it still run?")
    parser.add_argument("--appends", type=int, default=50_000)
    parser.add_argument("--rows", type=int, default=5_000_000)
    options = parser.parse_args()
    appends, rows = (600, 200_000) if options.smoke else (options.appends, options.rows)
    print("| figure | measured | target |\n|---|---|---|")
    for measure in (append_ratio, publish_to_subscribe, lambda: flatness(appends), writers, lambda: range_read(rows)):
        for figure, measured, target in measure():
            print(f"| {figure} | {measured} | {target} |", flush=True)
    return 0


def sample(count: int = ROWS) -> pa.Table:
    return pa.table({"id": pa.arange(0, count), "name": ["some text"] * count, "amount": [1.5] * count})


def batch(rows: pa.Table) -> Batch:
    return Batch(Rows.of(rows), rows.schema)


@contextmanager
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="trigger-bench-") as path:
        yield path


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def append_ratio() -> Iterator[tuple[str, str, str]]:
    rows = sample()
    with folder() as path:
        outbox = Outbox.create(path, "t", rows.schema)
        write_deltalake(f"{path}/peer", rows)
        ours, theirs = [], []
        for _ in range(150):  # alternating, so that a noisy moment meets both
            ours.append(timed(lambda: outbox.append(batch(rows), upkeep=False)))
            theirs.append(timed(lambda: write_deltalake(f"{path}/peer", rows, mode="append")))
    mine, peer = statistics.median(ours), statistics.median(theirs)
    yield f"append of {ROWS} rows, fsync on, p50", f"{mine:.2f} ms = {mine / peer:.3f} × write_deltalake", "≤ 0.25 ×"


_SUBSCRIBER = """
import sys, time, json, statistics
import pyspark_trigger as trigger
feed = trigger.subscribe(sys.argv[1], "t", start="earliest", end=int(sys.argv[2]))
print("ready", flush=True)
ages = [time.time_ns() // 1000 - rows.column("sent_us")[-1].as_py() for rows in feed]
print(json.dumps({"p50_us": statistics.median(ages[1:]), "hot": feed.hot_rows}))
"""


def publish_to_subscribe(count: int = 300) -> Iterator[tuple[str, str, str]]:
    with folder() as path:
        trigger.publish(path, "t", [{"sent_us": 0}])
        child = subprocess.Popen([sys.executable, "-c", _SUBSCRIBER, path, str(count + 1)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        child.stdout.readline()
        outbox = Outbox.open(path, "t")
        for _ in range(count):
            rows = pa.table({"sent_us": [time.time_ns() // 1000]})
            trigger.publish(path, "t", rows)
            time.sleep(0.005)
        one_row = batch(pa.table({"sent_us": [0]}))
        appends = [timed(lambda: outbox.append(one_row, upkeep=False)) for _ in range(count)]
        told = json.loads(child.stdout.read())
        child.wait()
    append_ms, seen_ms = statistics.median(appends), told["p50_us"] / 1000
    yield (
        "publish → subscribe in another process, 1 row, p50",
        f"{seen_ms:.2f} ms = append + {seen_ms - append_ms:.2f} ms",
        "≤ append + 2 ms",
    )


def _read(outbox: Outbox, wanted: OffsetRange) -> int:
    return sum(rows.num_rows for rows in outbox.read(wanted))


def flatness(appends: int) -> Iterator[tuple[str, str, str]]:
    rows = sample()
    with folder() as path:
        outbox = Outbox.create(path, "t", rows.schema)
        reader = Follower(outbox.follower.store, "t")
        reader.reopen()
        process = psutil.Process()
        points: dict[int, tuple[float, float, float, float]] = {}
        times: list[float] = []
        pauses: list[float] = []
        for number in range(1, appends + 1):
            times.append(timed(lambda: outbox.append(batch(rows), upkeep=False)))
            pauses.append(timed(lambda: outbox.keep_up(outbox.state.version)))
            if number in (WINDOW, appends):
                reader.refresh()
                heads = statistics.median(timed(reader.refresh) for _ in range(WINDOW))
                wanted = OffsetRange(outbox.state.end - 1000, outbox.state.end - 900)
                lookup = statistics.median(timed(partial(_read, outbox, wanted)) for _ in range(WINDOW))
                points[number] = (statistics.median(times[-WINDOW:]), heads, lookup, process.memory_info().rss / 2**20)
    first, last = points[WINDOW], points[appends]
    for index, name in enumerate(("append", "head read", "range look-up", "memory of writer and follower")):
        unit = "MiB" if index == 3 else "ms"
        measured = f"{first[index]:.3f} → {last[index]:.3f} {unit} = {last[index] / first[index]:.2f} ×"
        yield f"{name} at {appends:,} appends against {WINDOW}", measured, "≤ 1.25 ×"
    yield (
        f"worst maintenance pause of {appends:,}",
        f"{max(pauses):.0f} ms, {statistics.mean(pauses):.2f} ms a commit on average",
        "reported",
    )


_WRITER = """
import sys, time
import pyarrow as pa
from trigger_outbox import Batch, Outbox, Rows
outbox = Outbox.open(sys.argv[1], "t")
rows = pa.table({"id": pa.arange(0, 100), "name": ["some text"] * 100, "amount": [1.5] * 100})
outbox.append(Batch(Rows.of(rows), rows.schema))
print("ready", flush=True)
sys.stdin.readline()
end, done = time.monotonic() + float(sys.argv[2]), 0
while time.monotonic() < end:
    outbox.append(Batch(Rows.of(rows), rows.schema))
    done += 1
print(done)
"""


def writers(seconds: float = 8.0) -> Iterator[tuple[str, str, str]]:
    def run(count: int) -> list[int]:
        with folder() as path:
            Outbox.create(path, "t", sample().schema)
            command = [sys.executable, "-c", _WRITER, path, str(seconds)]
            running = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)]
            for each in running:
                assert each.stdout is not None
                each.stdout.readline()
            for each in running:
                assert each.stdin is not None
                each.stdin.write("go\n")
                each.stdin.flush()
            return [int(each.communicate()[0]) for each in running]

    one, four = run(1), run(4)
    yield (
        "4 writers on one topic, commits/s together",
        f"{sum(four) / one[0]:.2f} × one writer's {one[0] / seconds:.0f}/s",
        "≥ 0.8 ×",
    )
    yield "the slowest of them", f"{min(four) / max(four):.2f} × the fastest", "≥ 0.5 ×"


_READER = """
import sys, time, json, resource
from offsets import OffsetRange
from trigger_outbox import Outbox
outbox = Outbox.open(sys.argv[1], "t")
began = time.perf_counter()
count = sum(rows.num_rows for rows in outbox.read(OffsetRange(0, int(sys.argv[2]))))
seconds = time.perf_counter() - began
print(json.dumps({"rows": count, "s": seconds, "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


def range_read(rows: int) -> Iterator[tuple[str, str, str]]:
    with folder() as path:
        outbox = Outbox.create(path, "t", sample(1).schema)
        part = sample(500_000)
        for _ in range(max(1, rows // part.num_rows)):
            outbox.append(batch(part))
        total = outbox.state.end

        def read(count: int) -> dict[str, float]:
            command = [sys.executable, "-c", _READER, path, str(count)]
            return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)  # type: ignore[no-any-return]

        small, large = read(max(1, total // 5)), read(total)
        files = [str(Path(path) / "t" / "outbox" / file.path) for file in outbox.state.files]
        peer_s = timed(lambda: [pq.ParquetFile(file).read() for file in files]) / 1000
        ours_s = statistics.median(read(total)["s"] for _ in range(3))
    yield f"range read of {total:,} rows", f"{peer_s / ours_s:.2f} × pyarrow's own read of the same files", "≥ 0.8 ×"
    growth = large["mib"] / small["mib"]
    yield (
        f"its peak memory, {total // 5:,} → {total:,} rows",
        f"{small['mib']:.0f} → {large['mib']:.0f} MiB = {growth:.2f} ×",
        "independent",
    )


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    sys.exit(main())
