"""The suite itself: a broker with every capability passes every scenario, and each broken one is found out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

import pytest

from offsets.ranges import check_offset
from trigger_broker import (
    Capability,
    ConsumerPosition,
    Delivery,
    Fetched,
    Malformed,
    Received,
    SubscriptionCounts,
    TopicRef,
    conformance,
)
from trigger_broker.conformance import Scenario, run, run_all, scenarios
from trigger_broker.entry import read_entry
from trigger_broker.inbox import Inbox
from trigger_broker.known_topics import KnownTopics
from trigger_core.errors import BrokerError, OffsetEvicted
from trigger_core.wakeup import Wakeup, decode, encode


@dataclass
class Pending:
    """An entry that a group's consumer holds."""

    consumer: str | None
    since_s: float
    deliveries: int


@dataclass
class Group:
    next_index: int
    pending: dict[int, Pending] = field(default_factory=dict)
    consumers: set[str] = field(default_factory=set)


@dataclass
class Kept:
    """A topic on the server: `log[i]` is None once purged."""

    log: list[bytes | None] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    purged_end: int = 0
    inboxes: dict[str, Inbox] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)


class Server:
    """What a broker's server would hold: shared by its connections, with every capability there is."""

    def __init__(self) -> None:
        self.schemas = KnownTopics()
        self.topics: dict[str, Kept] = {}
        self.arrived = threading.Condition()
        self.subscribers = 0

    def topic(self, topic_id: str) -> Kept:
        return self.topics.setdefault(topic_id, Kept())


class ReferenceBroker:
    """The contract in its simplest form, for the suite to be tried on."""

    kind = "reference"
    capabilities: frozenset[Capability] = frozenset({"delivery", "retention", "groups", "dedup", "purge"})

    def __init__(self, server: Server) -> None:
        self.server = server
        self.closed = False
        self.subscriptions: list[ReferenceSubscription] = []

    def check_open(self) -> None:
        if self.closed:
            raise BrokerError("closed", "connect again")

    def ensure_topic(self, topic: TopicRef) -> None:
        self.server.schemas.ensure(topic)

    def drop_topic(self, topic_id: str) -> None:
        self.server.schemas.forget(topic_id)
        self.server.topics.pop(topic_id, None)

    def publish(self, wakeup: Wakeup, timeout_ms: int) -> Delivery:
        self.check_open()
        with self.server.arrived:
            kept = self.server.topic(wakeup.topic_id)
            if wakeup.id in kept.ids:
                return Delivery(sent=1, dropped=0)
            kept.ids.add(wakeup.id)
        return self.publish_raw(wakeup.topic_id, encode(wakeup), timeout_ms)

    def publish_raw(self, topic_id: str, raw: bytes, timeout_ms: int) -> Delivery:
        self.check_open()
        with self.server.arrived:
            kept = self.server.topic(topic_id)
            kept.log.append(raw)
            for inbox in kept.inboxes.values():
                inbox.put(read_entry(raw, topic_id, str(len(kept.log) - 1)))
            self.server.arrived.notify_all()
        return Delivery(sent=1, dropped=0)

    def subscribe(self, topic: TopicRef, from_offset: int | None = None) -> ReferenceSubscription:
        self.check_open()
        if from_offset is not None:
            check_offset(from_offset, "from_offset")
        with self.server.arrived:
            kept = self.server.topic(topic.topic_id)
            if from_offset is not None and from_offset < kept.purged_end:
                raise OffsetEvicted("evicted", "read Delta", requested=from_offset, earliest=kept.purged_end)
            self.server.subscribers += 1
            subscription = ReferenceSubscription(kept, f"subscriber-{self.server.subscribers}")
            for index, raw in enumerate(kept.log if from_offset is not None else []):
                if raw is not None:
                    subscription.inbox.put(read_entry(raw, topic.topic_id, str(index)))
            kept.inboxes[subscription.name] = subscription.inbox
        self.subscriptions.append(subscription)
        return subscription

    def consumers(self, topic_id: str) -> list[ConsumerPosition]:
        kept = self.server.topic(topic_id)
        members = [ConsumerPosition(name, group) for group, held in kept.groups.items() for name in sorted(held.consumers)]
        return [*(ConsumerPosition(name) for name in kept.inboxes), *members]

    def close(self) -> None:
        self.closed = True
        for subscription in self.subscriptions:
            subscription.close()

    def __enter__(self) -> ReferenceBroker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def create_group(self, topic: TopicRef, group: str, from_offset: int | None = None) -> None:
        kept = self.server.topic(topic.topic_id)
        kept.groups.setdefault(group, Group(next_index=len(kept.log)))

    def read_new(self, topic_id: str, group: str, consumer: str, count: int, timeout_ms: int) -> list[Received]:
        kept = self.server.topic(topic_id)
        held = kept.groups[group]
        with self.server.arrived:
            self.server.arrived.wait_for(lambda: held.next_index < len(kept.log), timeout_ms / 1000)
            indexes = range(held.next_index, min(len(kept.log), held.next_index + count))
            held.next_index = indexes.stop
            held.consumers.add(consumer)
            held.pending.update({index: Pending(consumer, time.monotonic(), 0) for index in indexes})
            return [self.hand_out(topic_id, held, index, consumer) for index in indexes]

    def reclaim_idle(self, topic_id: str, group: str, consumer: str, min_idle_ms: int, count: int) -> list[Received]:
        held = self.server.topic(topic_id).groups[group]
        now_s = time.monotonic()
        idle = [i for i, p in held.pending.items() if p.consumer is None or now_s - p.since_s >= min_idle_ms / 1000]
        held.consumers.add(consumer)
        return [self.hand_out(topic_id, held, index, consumer) for index in idle[:count]]

    def hand_out(self, topic_id: str, held: Group, index: int, consumer: str) -> Received:
        deliveries = held.pending[index].deliveries + 1
        held.pending[index] = Pending(consumer, time.monotonic(), deliveries)
        return read_entry(self.server.topic(topic_id).log[index] or b"", topic_id, str(index), deliveries)

    def ack(self, topic_id: str, group: str, native_id: str) -> None:
        self.server.topic(topic_id).groups[group].pending.pop(int(native_id), None)

    def ack_many(self, topic_id: str, group: str, native_ids: Sequence[str]) -> None:
        for native_id in native_ids:
            self.ack(topic_id, group, native_id)

    def forget_consumer(self, topic_id: str, group: str, consumer: str) -> None:
        held = self.server.topic(topic_id).groups[group]
        held.consumers.discard(consumer)
        for pending in held.pending.values():
            if pending.consumer == consumer:
                pending.consumer = None

    def purge(self, topic_id: str, end: int) -> None:
        kept = self.server.topic(topic_id)
        kept.purged_end = max(kept.purged_end, end)
        kept.log = [None if raw is None or decode(raw).start < end else raw for raw in kept.log]


class ReferenceSubscription:
    def __init__(self, kept: Kept, name: str) -> None:
        self.kept = kept
        self.name = name
        self.inbox = Inbox()

    def receive(self, timeout_ms: int) -> list[Received]:
        if self.inbox.closed:
            raise BrokerError("closed", "subscribe again")
        return self.inbox.take(timeout_ms)

    def counts(self) -> SubscriptionCounts:
        return self.inbox.counts()

    def close(self) -> None:
        self.inbox.close()
        self.kept.inboxes.pop(self.name, None)

    def __enter__(self) -> ReferenceSubscription:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def connect_to(broker: type[ReferenceBroker]) -> Callable[[], ReferenceBroker]:
    server = Server()
    return lambda: broker(server)


@pytest.mark.parametrize("scenario", scenarios(), ids=lambda scenario: scenario.name)
def test_a_broker_with_every_capability_passes(scenario: Scenario) -> None:
    outcome = run(scenario, connect_to(ReferenceBroker))
    assert (outcome.status, outcome.reason) == ("passed", "")


def test_scenarios_are_named_once_and_say_what_they_prove() -> None:
    names = [scenario.name for scenario in scenarios()]
    assert len(set(names)) == len(names)
    assert all(scenario.contract for scenario in scenarios())


class WithoutDelivery(ReferenceBroker):
    capabilities = frozenset()


def test_a_skip_names_the_capability_that_is_missing() -> None:
    outcomes = {outcome.name: outcome for outcome in run_all(connect_to(WithoutDelivery))}
    assert {outcome.status for outcome in outcomes.values()} == {"passed", "skipped"}
    assert outcomes["a_group_shares_the_work"].reason == "the broker does not declare delivery, groups"
    assert outcomes["ensure_topic_is_idempotent"].status == "passed"


class Reorders(ReferenceBroker):
    """Hands every third wakeup out late."""

    held: tuple[Wakeup, int] | None = None

    def publish(self, wakeup: Wakeup, timeout_ms: int) -> Delivery:
        if wakeup.start % 3 == 1:
            type(self).held = (wakeup, timeout_ms)
            return Delivery(sent=1, dropped=0)
        delivery = super().publish(wakeup, timeout_ms)
        if self.held is not None:
            held, type(self).held = self.held, None
            super().publish(*held)
        return delivery


class CutsPayloads(ReferenceBroker):
    def publish(self, wakeup: Wakeup, timeout_ms: int) -> Delivery:
        return super().publish(wakeup.without_payload(), timeout_ms)


class RepeatsEverything(ReferenceBroker):
    def publish(self, wakeup: Wakeup, timeout_ms: int) -> Delivery:
        super().publish_raw(wakeup.topic_id, encode(wakeup), timeout_ms)
        return super().publish_raw(wakeup.topic_id, encode(wakeup), timeout_ms)


class AcceptsAnySchema(ReferenceBroker):
    def ensure_topic(self, topic: TopicRef) -> None:
        pass


class WrapsOffsets(ReferenceBroker):
    def subscribe(self, topic: TopicRef, from_offset: int | None = None) -> ReferenceSubscription:
        return super().subscribe(topic, None if from_offset is None else from_offset % 2**63)


class DropsGarbage(ReferenceBroker):
    def publish_raw(self, topic_id: str, raw: bytes, timeout_ms: int) -> Delivery:
        if isinstance(read_entry(raw, topic_id, "0"), Malformed):
            return Delivery(sent=1, dropped=0)
        return super().publish_raw(topic_id, raw, timeout_ms)


class MixesTopics(ReferenceBroker):
    def publish(self, wakeup: Wakeup, timeout_ms: int) -> Delivery:
        for topic_id in list(self.server.topics):
            if topic_id != wakeup.topic_id and wakeup.topic_id.startswith(topic_id):
                super().publish_raw(topic_id, encode(wakeup), timeout_ms)
        return super().publish(wakeup, timeout_ms)


class ForgetsDeliveries(ReferenceBroker):
    def hand_out(self, topic_id: str, held: Group, index: int, consumer: str) -> Received:
        held.pending[index].deliveries = 0
        return super().hand_out(topic_id, held, index, consumer)


class KeepsAcknowledged(ReferenceBroker):
    def ack(self, topic_id: str, group: str, native_id: str) -> None:
        pass


class RewindsGroups(ReferenceBroker):
    def create_group(self, topic: TopicRef, group: str, from_offset: int | None = None) -> None:
        self.server.topic(topic.topic_id).groups[group] = Group(next_index=0)


class PurgesNothing(ReferenceBroker):
    def purge(self, topic_id: str, end: int) -> None:
        pass


class LeaksThreads(ReferenceBroker):
    ended = threading.Event()

    def subscribe(self, topic: TopicRef, from_offset: int | None = None) -> ReferenceSubscription:
        threading.Thread(target=self.ended.wait, daemon=True).start()
        return super().subscribe(topic, from_offset)


class LivesOnAfterClose(ReferenceBroker):
    def check_open(self) -> None:
        pass


@pytest.mark.parametrize(
    ("broken", "found_by"),
    [
        (Reorders, "one_subscriber_receives_all_in_order"),
        (CutsPayloads, "a_payload_arrives_byte_for_byte"),
        (RepeatsEverything, "a_duplicate_is_dropped"),
        (AcceptsAnySchema, "another_schema_is_a_conflict"),
        (WrapsOffsets, "an_impossible_offset_is_refused"),
        (DropsGarbage, "malformed_bytes_are_isolated"),
        (MixesTopics, "topics_do_not_mix"),
        (ForgetsDeliveries, "what_a_dead_consumer_held_is_reclaimed"),
        (KeepsAcknowledged, "a_malformed_entry_can_be_acknowledged"),
        (RewindsGroups, "creating_a_group_again_keeps_its_position"),
        (PurgesNothing, "purged_wakeups_are_gone"),
        (LeaksThreads, "close_leaves_nothing"),
        (LivesOnAfterClose, "close_is_final_and_idempotent"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_broken_broker_is_found_out(
    broken: type[ReferenceBroker], found_by: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    # What is lost here stays lost: there is no use in waiting as long as for a loaded server.
    monkeypatch.setattr(conformance, "DELIVERY_MS_MAX", 300)
    monkeypatch.setattr(conformance, "STUCK_MS", 300)
    LeaksThreads.ended.clear()
    request.addfinalizer(LeaksThreads.ended.set)
    (scenario,) = (scenario for scenario in scenarios() if scenario.name == found_by)
    outcome = run(scenario, connect_to(broken))
    assert outcome.status == "failed"
    assert outcome.reason.startswith("ConformanceFailure: "), outcome.reason


def test_the_reference_decodes_what_it_was_given() -> None:
    with connect_to(ReferenceBroker)() as broker:
        topic = TopicRef("t", "t", "s")
        with broker.subscribe(topic) as subscription:
            broker.publish(Wakeup(1, "t", 0, 1, "s"), 0)
            assert subscription.receive(0) == [Fetched(Wakeup(1, "t", 0, 1, "s"), "0")]
