"""Where a driver's receive thread leaves wakeups for the reader: bounded in bytes and in count, the newest kept.

Too many bytes: the oldest payloads go, their pointers stay. Too many entries: the oldest go. Both are counted, and neither
loses a row, because rows are in Delta. No sockets, no codec.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from threading import Condition

from trigger_broker.protocol import Fetched, Received, SubscriptionCounts

INBOX_BYTES_MAX = 16 * 1024 * 1024
INBOX_COUNT_MAX = 4096


class Inbox:
    """One writer, one reader; `close` from anywhere."""

    def __init__(self, bytes_max: int = INBOX_BYTES_MAX, count_max: int = INBOX_COUNT_MAX) -> None:
        self._bytes_max = bytes_max
        self._count_max = count_max
        self._entries: deque[Received] = deque()
        self._bytes = 0
        self._pointers = 0  # so many entries at the left have no bytes left to give up
        self._counts = SubscriptionCounts()
        self._closed = False
        self._changed = Condition()

    @property
    def closed(self) -> bool:
        return self._closed

    def put(self, entry: Received) -> None:
        """Never blocks; what comes after `close` is discarded."""
        with self._changed:
            if self._closed:
                return
            self._entries.append(entry)
            self._bytes += _bytes_of(entry)
            self._count(received=1, malformed=int(not isinstance(entry, Fetched)))
            while self._bytes > self._bytes_max:
                self._reduce_oldest()
            if len(self._entries) > self._count_max:
                self._bytes -= _bytes_of(self._entries.popleft())
                self._pointers = max(0, self._pointers - 1)
                self._count(dropped=1)
            self._changed.notify()

    def take(self, timeout_ms: int) -> list[Received]:
        """Everything there is, waiting at most `timeout_ms` for the first entry; [] after that, or once closed."""
        deadline = time.monotonic() + timeout_ms / 1000
        with self._changed:
            while not self._entries and not self._closed:
                remaining = deadline - time.monotonic()
                if remaining <= 0 or not self._changed.wait(remaining):
                    break
            taken = list(self._entries)
            self._entries.clear()
            self._bytes = self._pointers = 0
            return taken

    def counts(self) -> SubscriptionCounts:
        return self._counts

    def count_reattached(self) -> None:
        with self._changed:
            self._count(reattached=1)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._entries.clear()
            self._changed.notify_all()

    def _reduce_oldest(self) -> None:
        while not _bytes_of(self._entries[self._pointers]):
            self._pointers += 1
        entry = self._entries[self._pointers]
        self._bytes -= _bytes_of(entry)
        if isinstance(entry, Fetched):
            self._entries[self._pointers] = replace(entry, wakeup=entry.wakeup.without_payload())
            self._count(reduced=1)
        else:
            # Half of some malformed bytes would be evidence of nothing.
            del self._entries[self._pointers]
            self._count(dropped=1)

    def _count(self, **more: int) -> None:
        self._counts = replace(self._counts, **{name: getattr(self._counts, name) + rise for name, rise in more.items()})


def _bytes_of(entry: Received) -> int:
    return len(entry.wakeup.payload or b"") if isinstance(entry, Fetched) else len(entry.raw)
