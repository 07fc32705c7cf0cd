"""`none:` — no broker: readers find new commits by polling the log. Delivers nothing and never fails."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from offsets.ranges import check_offset
from trigger_broker.inbox import Inbox
from trigger_broker.known_topics import KnownTopics
from trigger_broker.protocol import Capability, ConsumerPosition, Delivery, Received, SubscriptionCounts, TopicRef
from trigger_core.errors import BrokerError
from trigger_core.wakeup import Wakeup


def open_broker(url: str, options: Mapping[str, str]) -> NoBroker:
    return NoBroker()


class NoBroker:
    kind = "none"
    capabilities: frozenset[Capability] = frozenset()

    def __init__(self) -> None:
        self._topics = KnownTopics()
        self._subscriptions: set[_Silence] = set()
        self._closed = False

    def ensure_topic(self, topic: TopicRef) -> None:
        self._check_open()
        self._topics.ensure(topic)

    def drop_topic(self, topic_id: str) -> None:
        self._check_open()
        self._topics.forget(topic_id)

    def publish(self, wakeup: Wakeup, timeout_ms: int) -> Delivery:
        self._check_open()
        return Delivery(sent=0, dropped=0)

    def publish_raw(self, topic_id: str, raw: bytes, timeout_ms: int) -> Delivery:
        self._check_open()
        return Delivery(sent=0, dropped=0)

    def subscribe(self, topic: TopicRef, from_offset: int | None = None) -> _Silence:
        self._check_open()
        if from_offset is not None:
            check_offset(from_offset, "from_offset")
        silence = _Silence(self)
        self._subscriptions.add(silence)
        return silence

    def consumers(self, topic_id: str) -> list[ConsumerPosition]:
        self._check_open()
        return []

    def close(self) -> None:
        self._closed = True
        for silence in list(self._subscriptions):
            silence.close()

    def __enter__(self) -> NoBroker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _forget(self, silence: _Silence) -> None:
        self._subscriptions.discard(silence)

    def _check_open(self) -> None:
        if self._closed:
            raise BrokerError("this connection to none: is closed", "connect again")


class _Silence:
    """A subscription that waits as long as it is told and receives nothing."""

    def __init__(self, broker: NoBroker) -> None:
        self._broker = broker
        self._inbox = Inbox()

    def receive(self, timeout_ms: int) -> list[Received]:
        if self._inbox.closed:
            raise BrokerError("this subscription is closed", "subscribe again")
        return self._inbox.take(timeout_ms)

    def counts(self) -> SubscriptionCounts:
        return self._inbox.counts()

    def close(self) -> None:
        self._inbox.close()
        self._broker._forget(self)

    def __enter__(self) -> _Silence:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
