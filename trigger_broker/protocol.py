"""What a broker is: the whole contract, and nothing that does I/O. `conformance.py` is this text as checks.

A broker carries wakeups, which are hints; Delta has the rows. So it may lose, repeat, delay or reorder them and no row is
lost; it may not block, grow without bound, or raise because of what somebody else published.

Threads: a broker may be shared by threads. A subscription is received from by one thread and may be closed by another.
Forks: after a fork the child may publish with the broker it inherited; an inherited subscription raises `BrokerError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from trigger_core.wakeup import Wakeup

Capability = Literal[
    "delivery",  # delivers at all: every broker but `none:`
    "retention",  # keeps wakeups for subscribers that come later, within a bound of its own
    "groups",  # competing consumers: it is a `GroupBroker`
    "dedup",  # delivers one of several wakeups with the same id
    "purge",  # can delete what it keeps: it is a `PurgingBroker`
    "cross_host",  # reaches other machines
]


@dataclass(frozen=True)
class TopicRef:
    """A topic as brokers know it. `topic_id` is the Delta table's id: a recreated topic is another topic."""

    topic_id: str
    name: str
    schema: str
    """Fingerprint of the schema."""


@dataclass(frozen=True)
class Delivery:
    """What became of one published wakeup; a broker with a server counts the server as the one receiver."""

    sent: int
    dropped: int
    reduced: int = 0
    """How many of `sent` got the pointer without its payload."""


@dataclass(frozen=True)
class Fetched:
    """A wakeup that decoded. `native_id` is the broker's own name for it and never a position."""

    wakeup: Wakeup
    native_id: str
    deliveries: int = 1
    """How often the broker has handed it out, this time included: its count, not ours."""


@dataclass(frozen=True)
class Malformed:
    """Bytes that are no wakeup, kept whole for the dead letters."""

    raw: bytes
    reason: str
    native_id: str
    deliveries: int = 1


Received: TypeAlias = Fetched | Malformed


@dataclass(frozen=True)
class ConsumerPosition:
    """A subscriber or group member. Positions are engine offsets, the next to come; None where the broker can't know."""

    name: str
    group: str | None = None
    delivered: int | None = None
    acked: int | None = None


@dataclass(frozen=True)
class SubscriptionCounts:
    """Running totals since `subscribe`."""

    received: int = 0
    malformed: int = 0
    reduced: int = 0
    """Payloads given up because the reader was slow."""
    dropped: int = 0
    """Wakeups given up for the same reason."""
    reattached: int = 0
    """How often the broker lost sight of this subscription and the driver attached it anew."""


@runtime_checkable
class Subscription(Protocol):
    """One reader's feed of one topic."""

    def receive(self, timeout_ms: int) -> list[Received]:
        """What has arrived, oldest first, waiting at most `timeout_ms` for the first; 0 returns at once.

        Bad bytes are an entry, never an exception. Returns [] when closed meanwhile; raises `BrokerError` if closed before.
        """
        ...

    def counts(self) -> SubscriptionCounts: ...

    def close(self) -> None:
        """Within 2 s, leaving no thread, socket or file. Idempotent."""
        ...

    def __enter__(self) -> Subscription: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


@runtime_checkable
class Broker(Protocol):
    """A connection, opened lazily: making one does no I/O."""

    @property
    def kind(self) -> str: ...

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    def ensure_topic(self, topic: TopicRef) -> None:
        """Idempotent, and called at every start. The same id with another schema than this connection, or the server,
        knows: `SchemaConflict`; after `drop_topic` any schema is welcome."""
        ...

    def drop_topic(self, topic_id: str) -> None:
        """Forgets the topic and what is kept of it. Idempotent."""
        ...

    def publish(self, wakeup: Wakeup, timeout_ms: int) -> Delivery:
        """Sends within `timeout_ms`; nobody listening is fine, a reader that is slow is dropped from, not waited for.

        A payload too large for the transport is left out. Raises `BrokerUnavailable`.
        """
        ...

    def publish_raw(self, topic_id: str, raw: bytes, timeout_ms: int) -> Delivery:
        """Sends bytes as they are, unchecked: how the conformance suite sends garbage."""
        ...

    def subscribe(self, topic: TopicRef, from_offset: int | None = None) -> Subscription:
        """Attached when it returns: whatever is published from then on arrives.

        With "retention" and a `from_offset`, delivery starts at or before it, so the caller drops the overlap; what is no
        longer kept raises `OffsetEvicted` with `requested` and `earliest`. Otherwise only what is new arrives. A
        `from_offset` outside 0 … 2^63 - 1 raises `InvalidOffset`.
        """
        ...

    def consumers(self, topic_id: str) -> list[ConsumerPosition]: ...

    def close(self) -> None:
        """Closes every subscription made here too, within 2 s. Idempotent; later use raises `BrokerError`."""
        ...

    def __enter__(self) -> Broker: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


@runtime_checkable
class GroupBroker(Broker, Protocol):
    """Capability "groups": each wakeup goes to one consumer of a group, and again to another until it is acknowledged."""

    def create_group(self, topic: TopicRef, group: str, from_offset: int | None = None) -> None:
        """Idempotent: a group that exists keeps its position. `from_offset` as in `subscribe`."""
        ...

    def read_new(self, topic_id: str, group: str, consumer: str, count: int, timeout_ms: int) -> list[Received]:
        """At most `count` entries nobody in the group was given yet. Never blocks a publish or an ack."""
        ...

    def reclaim_idle(self, topic_id: str, group: str, consumer: str, min_idle_ms: int, count: int) -> list[Received]:
        """Takes over at most `count` entries unacknowledged for `min_idle_ms`; `deliveries` has risen."""
        ...

    def ack(self, topic_id: str, group: str, native_id: str) -> None:
        """Idempotent."""
        ...

    def ack_many(self, topic_id: str, group: str, native_ids: Sequence[str]) -> None: ...

    def forget_consumer(self, topic_id: str, group: str, consumer: str) -> None:
        """What it had not acknowledged can be reclaimed at once. Idempotent."""
        ...


@runtime_checkable
class PurgingBroker(Broker, Protocol):
    """Capability "purge": an erased row's copy can be removed before the broker's retention does it."""

    def purge(self, topic_id: str, end: int) -> None:
        """Deletes every kept wakeup whose range starts below `end`. Idempotent."""
        ...
