"""The tail of a topic: what has landed, and the payloads of the newest commits while they are at hand. What the Spark source and
`subscribe` share.

    broker ──wakeup──► is there such a commit? ──► fold it ──► is the payload what it says? ──► hot
       ╎ silent                                       ▲
       └╌╌╌ poll ─────────────────────────────────────┘

A position moves on what the commit files say, never on what a message says: a wakeup that is forged, early, late, garbled or
repeated costs one small read. Attached first, then the head is read; whatever overlaps is dropped by arithmetic.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from offsets import HotPayload, OffsetRange
from trigger_broker import Broker, Fetched, Malformed, Received, Subscription, TopicRef, connect
from trigger_core.errors import TriggerError
from trigger_core.wakeup import Wakeup
from trigger_outbox import Outbox
from trigger_outbox.commit import Record
from trigger_outbox.encode import decode_payload
from trigger_outbox.schema import TopicSchema

CACHE_BYTES_DEFAULT = 64 * 1024 * 1024
POLL_INTERVAL_MS_DEFAULT = 1000
RECORDS_MAX = 4096
"""Commits whose digests are remembered for payloads that may still come."""
PROBE_INTERVAL_S = 0.005
"""After a wakeup that pointed at nothing, how long others may not ask."""
REATTACH_S_MIN, REATTACH_S_MAX = 0.5, 15.0
log = logging.getLogger("pyspark_trigger")


@dataclass
class TailCounts:
    """Running totals, for whoever wants to know."""

    wakeups: int = 0
    malformed: int = 0
    refused: int = 0
    """Wakeups of another topic, or whose payload is not the commit's."""
    polls: int = 0
    attached: int = 0


@dataclass(frozen=True)
class Payload:
    """Rows of one commit, verified against its digest, still encoded."""

    range: OffsetRange
    data: bytes
    produced_at_us: int
    schema: TopicSchema

    def rows(self) -> pa.Table:
        return decode_payload(self.data, self.range.start, self.range.end, self.produced_at_us, self.schema)


class Tail:
    """Serves one thread. Nothing is started before `attach`, and nothing that matters depends on `close`."""

    def __init__(
        self,
        outbox: Outbox,
        broker: str,
        broker_options: Mapping[str, str] | None = None,
        *,
        cache_bytes: int = CACHE_BYTES_DEFAULT,
        poll_interval_ms: int = POLL_INTERVAL_MS_DEFAULT,
    ) -> None:
        self.outbox = outbox
        self.counts = TailCounts()
        self._url, self._options = broker, dict(broker_options or {})
        self._cache_bytes_max = cache_bytes
        self._poll_interval_s = poll_interval_ms / 1000
        self._broker: Broker | None = connect(broker, self._options)  # no I/O: a URL that can't be meant is refused here
        self._feed: Subscription | None = None
        self._reattach_s = REATTACH_S_MIN
        self._attach_after_s = 0.0
        self._polled_s = float("-inf")
        self._fruitless_s = float("-inf")
        self._records: OrderedDict[int, Record] = OrderedDict()
        self._payloads: OrderedDict[int, Payload] = OrderedDict()
        self._held_bytes = 0

    @property
    def head(self) -> int:
        return self.outbox.state.end

    def attach(self) -> None:
        """Attaches to the broker if it is not, and may by now be tried again. A broker that is down is only slower."""
        if self._feed is not None or time.monotonic() < self._attach_after_s:
            return
        try:
            state = self.outbox.state
            topic = TopicRef(state.table_id, self.outbox.topic, state.metadata.schema.fingerprint)
            self._broker = self._broker or connect(self._url, self._options)
            self._feed = self._broker.subscribe(topic)
            self.counts.attached += 1
            self._reattach_s = REATTACH_S_MIN
            self._polled_s = float("-inf")  # what landed while we were not attached
        except (TriggerError, OSError) as error:
            log.warning("topic %s: no wakeups for now, polling: %s", self.outbox.topic, error)
            self._attach_after_s = time.monotonic() + self._reattach_s
            self._reattach_s = min(REATTACH_S_MAX, 2 * self._reattach_s)

    def wait(self, beyond: int, timeout_ms: int) -> int:
        """The head, as soon as it is past `beyond`, or after `timeout_ms`. 0 looks without waiting."""
        self.attach()
        deadline = time.monotonic() + timeout_ms / 1000
        self._take(self._receive(0))
        self._poll_if_due()
        while self.head <= beyond:
            now = time.monotonic()
            if now >= deadline:
                break
            until = min(deadline, self._polled_s + self._poll_interval_s)
            self._take(self._receive(max(1, int((until - now) * 1000))))
            self._poll_if_due()
        return self.head

    def refresh(self) -> int:
        """The head, asked of the log now."""
        self._polled_s = time.monotonic()
        commits = self.outbox.refresh()
        for commit in commits:
            if commit.record is not None and commit.record.payload_sha256 is not None:
                self._records[commit.version] = commit.record
        while len(self._records) > RECORDS_MAX:
            self._records.popitem(last=False)
        return self.head

    def hot(self, wanted: OffsetRange) -> list[HotPayload]:
        """What could be served without Delta."""
        return [
            HotPayload(payload.range, len(payload.data), str(payload.range.start))
            for payload in self._payloads.values()
            if wanted.covers(payload.range)
        ]

    def payload(self, key: str) -> Payload | None:
        return self._payloads.get(int(key))

    def forget(self, below: int) -> None:
        """Lets go of payloads that will not be asked for again."""
        for start in [start for start, payload in self._payloads.items() if payload.range.end <= below]:
            self._drop(start)

    def close(self) -> None:
        broker, self._broker, self._feed = self._broker, None, None
        if broker is not None:
            broker.close()

    def _receive(self, timeout_ms: int) -> list[Received]:
        if self._feed is None:
            if timeout_ms:
                time.sleep(timeout_ms / 1000)
            self.attach()
            return []
        try:
            return self._feed.receive(timeout_ms)
        except (TriggerError, OSError) as error:
            log.warning("topic %s: the broker is gone, polling: %s", self.outbox.topic, error)
            self.close()
            self._attach_after_s = time.monotonic() + self._reattach_s
            return []

    def _take(self, received: list[Received]) -> None:
        for entry in received:
            if isinstance(entry, Malformed):
                self.counts.malformed += 1
                log.warning("topic %s: a message that is no wakeup was ignored: %s", self.outbox.topic, entry.reason)
            elif isinstance(entry, Fetched):
                self._take_wakeup(entry.wakeup)

    def _take_wakeup(self, wakeup: Wakeup) -> None:
        self.counts.wakeups += 1
        if wakeup.topic_id != self.outbox.state.table_id:
            self.counts.refused += 1
            return
        if wakeup.version > self.outbox.state.version:
            self._probe(wakeup.version)
        if wakeup.payload is not None:
            self._keep(wakeup)

    def _probe(self, version: int) -> None:
        """Looks for a commit that a wakeup speaks of. After one that was not there, the next look waits a little: a flood of
        forged wakeups costs no more than a fast poll."""
        now = time.monotonic()
        if now - self._fruitless_s < PROBE_INTERVAL_S:
            self._polled_s = min(self._polled_s, now + PROBE_INTERVAL_S - self._poll_interval_s)
            return
        self.refresh()
        if self.outbox.state.version < version:
            self._fruitless_s = now

    def _keep(self, wakeup: Wakeup) -> None:
        record = self._records.get(wakeup.version)
        if record is None:
            return  # older than what we follow, or of no commit: Delta serves
        if (wakeup.start, wakeup.end, wakeup.payload_sha256) != (record.start, record.end, record.payload_sha256):
            self.counts.refused += 1
            return
        assert wakeup.payload is not None and record.produced_at_us is not None
        schema = self.outbox.state.metadata.schema
        if wakeup.schema != schema.fingerprint or len(wakeup.payload) > self._cache_bytes_max:
            return
        self._drop(wakeup.start)
        rows = OffsetRange(wakeup.start, wakeup.end)
        self._payloads[wakeup.start] = Payload(rows, wakeup.payload, record.produced_at_us, schema)
        self._held_bytes += len(wakeup.payload)
        while self._held_bytes > self._cache_bytes_max:
            self._drop(next(iter(self._payloads)))

    def _drop(self, start: int) -> None:
        payload = self._payloads.pop(start, None)
        if payload is not None:
            self._held_bytes -= len(payload.data)

    def _poll_if_due(self) -> None:
        if time.monotonic() - self._polled_s >= self._poll_interval_s:
            self.counts.polls += 1
            self.refresh()
