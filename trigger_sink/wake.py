"""Telling readers of a commit, after it: bounded in time, never raised. A courtesy that costs next to nothing while it fails.

closed ──publish fails──► open for CIRCUIT_OPEN_S ──next publish──► closed, or open again
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from offsets import OffsetRange
from trigger_broker import Broker, TopicRef, connect
from trigger_core.errors import TriggerError
from trigger_core.wakeup import Wakeup

CIRCUIT_OPEN_S = 5.0
log = logging.getLogger("pyspark_trigger")


@dataclass
class WakeCounts:
    sent: int = 0
    failed: int = 0
    skipped: int = 0
    """Not tried, because the broker had just failed."""


class Waker:
    """Sends wakeups to one broker, which it reaches for at the first wakeup, in the process that sends it."""

    def __init__(self, url: str, options: Mapping[str, str], timeout_ms: int) -> None:
        self.counts = WakeCounts()
        self._url, self._options, self._timeout_ms = url, dict(options), timeout_ms
        # No I/O: a URL that can't be meant, or a client library that is missing, is refused here, before anything is written.
        self._broker: Broker | None = connect(url, self._options)
        self._ensured: set[str] = set()
        self._closed_until_s = 0.0
        self._lock = threading.Lock()

    def wake(self, topic: TopicRef, version: int, rows: OffsetRange, payload: bytes | None) -> None:
        """One try within the time allowed. Whatever goes wrong is counted and logged: the rows are in Delta already."""
        with self._lock:
            if time.monotonic() < self._closed_until_s:
                self.counts.skipped += 1
                return
            try:
                wakeup = Wakeup(version, topic.topic_id, rows.start, rows.end, topic.schema, payload=payload)
                broker = self._connected(topic)
                broker.publish(wakeup, self._timeout_ms)
                self.counts.sent += 1
            except (TriggerError, OSError) as error:
                self.counts.failed += 1
                self._closed_until_s = time.monotonic() + CIRCUIT_OPEN_S
                log.warning("topic %s: rows %s are committed, their wakeup was not sent: %s", topic.name, rows, error)

    def _connected(self, topic: TopicRef) -> Broker:
        if self._broker is None:
            self._broker = connect(self._url, self._options)
        if topic.topic_id not in self._ensured:
            self._broker.ensure_topic(topic)
            self._ensured.add(topic.topic_id)
        return self._broker

    def close(self) -> None:
        with self._lock:
            if self._broker is not None:
                self._broker.close()
            self._broker = None
            self._ensured.clear()
