"""`subscribe`: history, then the live tail, over one seam; and the same for `async for`."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pyarrow as pa

from offsets import OffsetRange, check_offset, plan
from trigger_core.errors import DataLoss, InvalidOffset, InvalidOption
from trigger_outbox import Outbox
from trigger_source.tail import Tail

WAIT_MS_MAX = 1000
"""One wait for news; a subscriber that is closed from another thread notices within it."""
COLD_ROWS_AT_ONCE = 1_000_000
"""History is read in parts of so many rows, so that news is taken in between."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def subscribe(
    path: str | os.PathLike[str],
    topic: str,
    *,
    start: str | int | datetime = "latest",
    end: int | None = None,
    broker: str = "local:",
    predicate: str | None = None,
    consumer: str | None = None,
    timeout: float | None = None,
    storage: Mapping[str, str] | None = None,
) -> Subscriber:
    """Iterates over record batches from `start` on: `earliest`, `latest` (as of this call), an offset, or a time.

    Each row comes once, in order, with `_offset` and `_produced_at`. Ends at offset `end` if given, or when nothing new came
    for `timeout` seconds; else it waits for ever. Attached when it returns: what is published from then on arrives. Raises
    `TopicNotFound`, and `DataLoss` if the start was trimmed. For one thread; `close()` it, from any thread, or use it as a
    context manager.
    """
    if predicate is not None or consumer is not None:
        name = "predicate" if predicate is not None else "consumer"
        raise InvalidOption(f"{name} is not available yet", "filter the batches, or keep the position yourself", option=name)
    if timeout is not None and timeout < 0:
        raise InvalidOption(f"timeout is {timeout}", "give seconds, 0 or more, or None to wait for ever", option="timeout")
    outbox = Outbox.open(path, topic, storage)
    tail = Tail(outbox, broker)
    try:
        tail.attach()
        head = tail.refresh()
        at = _start(outbox, start, head)
        if end is not None and check_offset(end, "end") < at:
            raise InvalidOffset(f"start {at} is beyond end {end}", "give a start that is at or below the end", start=at, end=end)
        return Subscriber(tail, at, end, timeout)
    except BaseException:
        tail.close()
        raise


class Subscriber:
    """An iterator of record batches. `position` is the next offset it will give."""

    def __init__(self, tail: Tail, start: int, end: int | None, timeout_s: float | None) -> None:
        self.position = start
        self.tail = tail
        self.hot_rows = 0
        self.cold_rows = 0
        self._end = end
        self._timeout_s = timeout_s
        self._closed = threading.Event()
        self._batches = self._run()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        try:
            batch = next(self._batches)
        except BaseException:
            self.tail.close()
            raise
        self.position += batch.num_rows
        if self._closed.is_set():
            self.close()  # it was asked for from another thread while this one was inside
        return batch

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the iteration and leaves no thread, socket or file. While another thread waits in it, that thread does so."""
        self._closed.set()
        try:
            self._batches.close()
        except ValueError:
            return  # running in another thread, which notices within WAIT_MS_MAX
        self.tail.close()

    def _run(self) -> Generator[pa.RecordBatch, None, None]:
        at = self.position
        while self._end is None or at < self._end:
            head = self._news(at)
            if head is None:
                return
            wanted = OffsetRange(at, min(head, at + COLD_ROWS_AT_ONCE, head if self._end is None else self._end))
            yield from self._serve(wanted)
            at = wanted.end
            self.tail.forget(at)

    def _news(self, at: int) -> int | None:
        """The head once it is past `at`; None when the time is up, or when closed."""
        give_up_s = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        while True:
            left_ms = WAIT_MS_MAX if give_up_s is None else max(0, min(WAIT_MS_MAX, int((give_up_s - time.monotonic()) * 1000)))
            head = self.tail.wait(at, left_ms)
            if head > at:
                return head
            if self._closed.is_set() or (give_up_s is not None and time.monotonic() >= give_up_s):
                return None

    def _serve(self, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        for piece in plan(wanted, self.tail.hot(wanted)):
            payload = self.tail.payload(piece.key) if piece.key is not None else None
            if payload is not None:
                self.hot_rows += len(piece.range)
                yield from payload.rows().to_batches()
            else:
                self.cold_rows += len(piece.range)
                yield from self.tail.outbox.read(piece.range)


async def asubscribe(
    path: str | os.PathLike[str],
    topic: str,
    *,
    start: str | int | datetime = "latest",
    end: int | None = None,
    broker: str = "local:",
    predicate: str | None = None,
    consumer: str | None = None,
    timeout: float | None = None,
    storage: Mapping[str, str] | None = None,
) -> AsyncIterator[pa.RecordBatch]:
    """`subscribe` for `async for`: waits in a thread of its own, never in the event loop. Attached at the first `anext`."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1, thread_name_prefix="trigger-subscribe") as thread:

        def begin() -> Subscriber:
            return subscribe(
                path,
                topic,
                start=start,
                end=end,
                broker=broker,
                predicate=predicate,
                consumer=consumer,
                timeout=timeout,
                storage=storage,
            )

        subscriber = await loop.run_in_executor(thread, begin)
        try:
            while (batch := await loop.run_in_executor(thread, next, subscriber, None)) is not None:
                yield batch
        finally:
            subscriber.close()  # so that a wait that is under way ends soon; then it is waited for, outside of the event loop
            await loop.run_in_executor(thread, subscriber.close)


def _start(outbox: Outbox, start: str | int | datetime, head: int) -> int:
    if isinstance(start, datetime):
        moment = start if start.tzinfo is not None else start.astimezone()
        return outbox.offset_at((moment - _EPOCH) // timedelta(microseconds=1))
    if start == "latest":
        return head
    if start == "earliest":
        return outbox.state.earliest
    if isinstance(start, str) and not start.isdecimal():
        raise InvalidOption(f"start {start!r} is not known", "give earliest, latest, an offset or a datetime", option="start")
    at = check_offset(int(start) if isinstance(start, str) else start, "start")
    if at > head:
        raise InvalidOffset(
            f"start {at} is beyond the head {head}", "start at latest, or at an offset up to the head", start=at, end=head
        )
    if at < outbox.state.earliest:
        raise DataLoss(
            f"offset {at} was trimmed: earliest is {outbox.state.earliest}, latest is {head}",
            "start at 'earliest'",
            requested=at,
            earliest=outbox.state.earliest,
            latest=head,
        )
    return at
