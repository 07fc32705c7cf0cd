"""Rows that tell where they belong: with one publisher, `n` is the offset."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

import pyarrow as pa

import pyspark_trigger as trigger

DEADLINE_S = 60.0


def numbered(start: int, count: int) -> pa.Table:
    numbers = range(start, start + count)
    return pa.table({"n": pa.array(numbers, pa.int64()), "text": pa.array([f"row {n}" for n in numbers], pa.string())})


def publish_numbered(path: str, topic: str, batches: int, rows: int = 3, *, broker: str = "local:") -> int:
    """Publishes `batches` more and returns the head."""
    at = trigger.Topic(path, topic).head() if any(each.name == topic for each in trigger.topics(path)) else 0
    for _ in range(batches):
        start, end = trigger.publish(path, topic, numbered(at, rows), broker=broker)
        assert (start, end) == (at, at + rows)
        at = end
    return at


def table_of(batches: Iterable[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches(list(batches))


def offsets_of(batches: Iterable[pa.RecordBatch]) -> list[int]:
    """The offsets; asserts that each row is the one that was published there."""
    found: list[int] = []
    for batch in batches:
        assert batch.column("_offset").to_pylist() == batch.column("n").to_pylist()
        found += batch.column("_offset").to_pylist()
    return found


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Polls with a deadline, yielding the processor between looks."""
    give_up_s, pause = time.monotonic() + DEADLINE_S, threading.Event()
    while not condition():
        assert time.monotonic() < give_up_s, f"not within {DEADLINE_S} s: {what}"
        pause.wait(0.01)
