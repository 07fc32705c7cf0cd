"""The broker contract as scenarios that any driver can be run through, ours or an outsider's. Free of pytest.

    outcomes = run_all(lambda: connect("nats://127.0.0.1:4222"))

A scenario says which capabilities it needs; a broker that does not declare them skips it, with that reason, and nothing
else skips. Each scenario uses a topic of its own, so a server may be shared. Waits have deadlines that a loaded machine
keeps; no scenario asserts that something is fast, only that it is not stuck.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from trigger_broker.protocol import (
    Broker,
    Capability,
    Fetched,
    GroupBroker,
    Malformed,
    PurgingBroker,
    Received,
    Subscription,
    TopicRef,
)
from trigger_core.errors import BrokerError, InvalidOffset, OffsetEvicted, SchemaConflict
from trigger_core.wakeup import PAYLOAD_BYTES_MAX, Wakeup, encode

_T = TypeVar("_T")

Connect: TypeAlias = Callable[[], Broker]
"""Makes a new connection to the broker under test."""

DELIVERY_MS_MAX = 30_000
"""What was sent has arrived by then, or is lost."""
PUBLISH_MS = 5_000
STUCK_MS = 10_000
"""A call that should not wait, and has not come back by then, waits."""
CLOSE_MS_MAX = 2_000
BURST_COUNT = 5
"""Sent before any is received: fewer than the shortest queue of a transport we know, ten."""
FLOOD_COUNT = 400
FLOOD_PAYLOAD_BYTES = 64 * 1024


class ConformanceFailure(Exception):
    """A broker broke its contract; the text says how."""


@dataclass(frozen=True)
class Scenario:
    name: str
    needs: frozenset[Capability]
    run: Callable[[Connect], None]
    """Raises `ConformanceFailure`, or whatever the broker raised."""

    @property
    def contract(self) -> str:
        """What it proves, in words."""
        return (self.run.__doc__ or "").strip()


@dataclass(frozen=True)
class Outcome:
    name: str
    status: Literal["passed", "skipped", "failed"]
    reason: str = ""


def scenarios() -> list[Scenario]:
    """Every scenario, in the order of this file."""
    return list(_SCENARIOS)


def run(scenario: Scenario, connect: Connect) -> Outcome:
    """One scenario against one broker; never raises for what the broker does."""
    try:
        with connect() as broker:
            missing = scenario.needs - broker.capabilities
        if missing:
            return Outcome(scenario.name, "skipped", f"the broker does not declare {', '.join(sorted(missing))}")
        scenario.run(connect)
    except Exception as error:  # noqa: BLE001  # a broker under test may raise anything, and the rest still run
        return Outcome(scenario.name, "failed", f"{type(error).__name__}: {error}")
    return Outcome(scenario.name, "passed")


def run_all(connect: Connect) -> list[Outcome]:
    return [run(scenario, connect) for scenario in scenarios()]


_SCENARIOS: list[Scenario] = []


def _scenario(*needs: Capability) -> Callable[[Callable[[Connect], None]], Callable[[Connect], None]]:
    def register(check: Callable[[Connect], None]) -> Callable[[Connect], None]:
        _SCENARIOS.append(Scenario(check.__name__, frozenset(needs), check))
        return check

    return register


# Topics


@_scenario()
def ensure_topic_is_idempotent(connect: Connect) -> None:
    """Ensuring a topic again, on the same or a new connection, changes nothing and raises nothing (T11)."""
    topic = _topic()
    with connect() as first, connect() as second:
        first.ensure_topic(topic)
        first.ensure_topic(topic)
        second.ensure_topic(topic)


@_scenario()
def another_schema_is_a_conflict(connect: Connect) -> None:
    """The same topic id with another schema raises `SchemaConflict`, and the first schema stays welcome (F1)."""
    topic = _topic()
    other = TopicRef(topic.topic_id, topic.name, "another-schema")
    with connect() as broker:
        broker.ensure_topic(topic)
        _expect_raises(SchemaConflict, lambda: broker.ensure_topic(other), "ensure_topic with another schema")
        broker.ensure_topic(topic)
        broker.drop_topic(topic.topic_id)
        broker.ensure_topic(other)


@_scenario()
def drop_topic_is_idempotent(connect: Connect) -> None:
    """Dropping a topic twice, or one that never was, raises nothing."""
    topic = _topic()
    with connect() as broker:
        broker.ensure_topic(topic)
        broker.drop_topic(topic.topic_id)
        broker.drop_topic(topic.topic_id)
        broker.drop_topic(_topic().topic_id)


@_scenario("delivery")
def topics_do_not_mix(connect: Connect) -> None:
    """A subscriber of `q1` receives nothing of `q10` (C9)."""
    stem = uuid.uuid4().hex
    one, ten = (TopicRef(f"{stem}-q{number}", f"q{number}", "schema") for number in (1, 10))
    with connect() as broker:
        broker.ensure_topic(one)
        broker.ensure_topic(ten)
        with broker.subscribe(one) as subscription:
            _publish_all(broker, _wakeups(ten, 3))
            _publish_all(broker, _wakeups(one, 1))
            received = _receive(subscription, 1)
            _expect(
                [entry.wakeup.topic_id for entry in _fetched(received)] == [one.topic_id], "a wakeup of another topic arrived"
            )


# Publishing and receiving


@_scenario()
def nobody_listening_is_no_failure(connect: Connect) -> None:
    """Publishing with no subscriber raises nothing and drops nothing."""
    topic = _topic()
    with connect() as broker:
        broker.ensure_topic(topic)
        for wakeup in _wakeups(topic, 3):
            _expect(broker.publish(wakeup, PUBLISH_MS).dropped == 0, "a wakeup was dropped though nobody listens")


@_scenario("delivery")
def one_subscriber_receives_all_in_order(connect: Connect) -> None:
    """What one connection publishes, another's subscriber receives: all of it, once, in order."""
    topic = _topic()
    wakeups = _wakeups(topic, 50)
    with connect() as publisher, connect() as reader:
        publisher.ensure_topic(topic)
        with reader.subscribe(topic) as subscription:
            _expect(_relay(publisher, wakeups, [subscription])[0] == wakeups, "not every wakeup arrived once and in order")


@_scenario("delivery")
def two_subscribers_each_receive_all(connect: Connect) -> None:
    """Subscribers don't compete: each receives everything (B13)."""
    topic = _topic()
    wakeups = _wakeups(topic, 20)
    with connect() as publisher, connect() as one, connect() as two:
        publisher.ensure_topic(topic)
        with one.subscribe(topic) as first, two.subscribe(topic) as second:
            for received in _relay(publisher, wakeups, [first, second]):
                _expect(received == wakeups, "one of two subscribers did not receive everything in order")


@_scenario("delivery")
def a_leaving_subscriber_disturbs_nobody(connect: Connect) -> None:
    """After one of two subscribers closed, publishing succeeds and the other receives."""
    topic = _topic()
    before, after = _wakeups(topic, 6)[:3], _wakeups(topic, 6)[3:]
    with connect() as publisher, connect() as one, connect() as two:
        publisher.ensure_topic(topic)
        with two.subscribe(topic) as stays:
            with one.subscribe(topic) as leaves:
                _relay(publisher, before, [leaves, stays])
            _expect(_relay(publisher, after, [stays])[0] == after, "the subscriber that stayed missed something")


@_scenario("delivery")
def a_duplicate_does_no_harm(connect: Connect) -> None:
    """The same wakeup sent twice arrives once or twice, and what follows arrives."""
    topic = _topic()
    first, last = _wakeups(topic, 2)
    with connect() as broker:
        broker.ensure_topic(topic)
        with broker.subscribe(topic) as subscription:
            _publish_all(broker, [first, first, last])
            received = [entry.wakeup for entry in _fetched(_receive_until(subscription, last))]
            _expect(received in ([first, last], [first, first, last]), f"sent [1, 1, 2], received {_ranges(received)}")


@_scenario("delivery", "dedup")
def a_duplicate_is_dropped(connect: Connect) -> None:
    """A broker that declares "dedup" delivers one of two wakeups with the same id (T9)."""
    topic = _topic()
    first, last = _wakeups(topic, 2)
    with connect() as broker:
        broker.ensure_topic(topic)
        with broker.subscribe(topic) as subscription:
            _publish_all(broker, [first, first, last])
            received = [entry.wakeup for entry in _fetched(_receive_until(subscription, last))]
            _expect(received == [first, last], f"sent [1, 1, 2], received {_ranges(received)}")


@_scenario("delivery")
def a_payload_arrives_byte_for_byte(connect: Connect) -> None:
    """Every byte value, at the default payload limit, with trace and partitions, arrives as it was sent."""
    topic = _topic()
    payload = bytes(range(256)) * 1024
    sent = Wakeup(7, topic.topic_id, 3, 9, topic.schema, (0, 5), {"traceparent": "00-ab-cd-01", "note": "ä\n\x00"}, payload)
    with connect() as broker:
        broker.ensure_topic(topic)
        with broker.subscribe(topic) as subscription:
            delivery = broker.publish(sent, PUBLISH_MS)
            _expect((delivery.dropped, delivery.reduced) == (0, 0), f"256 KiB were not sent whole: {delivery}")
            (received,) = _fetched(_receive(subscription, 1))
            _expect(received.wakeup == sent, "the wakeup arrived changed")


@_scenario("delivery")
def a_pointer_arrives_as_one(connect: Connect) -> None:
    """A wakeup without payload arrives without one, which is not an empty one."""
    topic = _topic()
    pointer = _wakeups(topic, 1)[0].without_payload()
    empty = Wakeup(2, topic.topic_id, 1, 2, topic.schema, payload=b"")
    with connect() as broker:
        broker.ensure_topic(topic)
        with broker.subscribe(topic) as subscription:
            _expect(
                _relay(broker, [pointer, empty], [subscription])[0] == [pointer, empty], "a pointer or an empty payload changed"
            )


@_scenario("delivery")
def an_oversize_payload_arrives_whole_or_as_a_pointer(connect: Connect) -> None:
    """The largest wakeup there can be is delivered: whole, or without its payload and counted so (A11, T9)."""
    topic = _topic()
    largest = Wakeup(1, topic.topic_id, 0, 1, topic.schema, payload=os.urandom(PAYLOAD_BYTES_MAX))
    with connect() as broker:
        broker.ensure_topic(topic)
        with broker.subscribe(topic) as subscription:
            delivery = broker.publish(largest, PUBLISH_MS)
            _expect(delivery.sent == 1, f"neither the wakeup nor its pointer was sent: {delivery}")
            (received,) = _fetched(_receive(subscription, 1))
            wanted = largest.without_payload() if delivery.reduced else largest
            _expect(received.wakeup == wanted, "what arrived is neither the wakeup nor its pointer, or not what was counted")


@_scenario("delivery")
def malformed_bytes_are_isolated(connect: Connect) -> None:
    """Garbage between good wakeups is an entry with its bytes and a reason; its neighbours arrive (E1, T10, T27)."""
    topic = _topic()
    before, after = _wakeups(topic, 2)
    garbage = [b"no wakeup", b"TRG1", bytes(range(256))]
    with connect() as broker:
        broker.ensure_topic(topic)
        with broker.subscribe(topic) as subscription:
            broker.publish(before, PUBLISH_MS)
            for raw in garbage:
                broker.publish_raw(topic.topic_id, raw, PUBLISH_MS)
            broker.publish(after, PUBLISH_MS)
            received = _receive(subscription, 2 + len(garbage))
            bad = [entry for entry in received if isinstance(entry, Malformed)]
            _expect([entry.raw for entry in bad] == garbage, "malformed bytes were lost or changed")
            _expect(all(entry.reason and entry.native_id for entry in bad), "a malformed entry has no reason or no id")
            good = [entry.wakeup for entry in received if isinstance(entry, Fetched)]
            _expect(good == [before, after], "good wakeups suffered from malformed neighbours")
            _expect(subscription.counts().malformed == len(garbage), "malformed entries were not counted")


@_scenario("delivery")
def a_wakeup_of_another_topic_is_malformed(connect: Connect) -> None:
    """Bytes that decode, but to another topic's wakeup, are not taken for this topic's (C11)."""
    topic, other = _topic(), _topic()
    forged = encode(_wakeups(other, 1)[0])
    with connect() as broker:
        broker.ensure_topic(topic)
        with broker.subscribe(topic) as subscription:
            broker.publish_raw(topic.topic_id, forged, PUBLISH_MS)
            (received,) = _receive(subscription, 1)
            _expect(isinstance(received, Malformed) and received.raw == forged, "another topic's wakeup was taken for this one's")


# Waiting


@_scenario()
def a_zero_timeout_returns_at_once(connect: Connect) -> None:
    """receive(0) with nothing there returns [] without waiting (T30)."""
    topic = _topic()
    with connect() as broker:
        broker.ensure_topic(topic)
        with broker.subscribe(topic) as subscription:
            received, took_ms = _timed(lambda: subscription.receive(0))
            _expect(received == [], "something arrived that nobody sent")
            _expect(took_ms < STUCK_MS, f"receive(0) took {took_ms:.0f} ms")


@_scenario()
def a_timeout_ends_the_wait(connect: Connect) -> None:
    """receive(50) with nothing there returns [], having waited."""
    topic = _topic()
    with connect() as broker:
        broker.ensure_topic(topic)
        with broker.subscribe(topic) as subscription:
            received, took_ms = _timed(lambda: subscription.receive(50))
            _expect(received == [], "something arrived that nobody sent")
            _expect(40 < took_ms < STUCK_MS, f"receive(50) took {took_ms:.0f} ms")


@_scenario("delivery")
def an_idle_reader_blocks_nobody(connect: Connect) -> None:
    """While a reader waits, publishing on the same connection goes on, and wakes the reader (E5, T30)."""
    topic = _topic()
    (wakeup,) = _wakeups(topic, 1)
    with connect() as broker:
        broker.ensure_topic(topic)
        with broker.subscribe(topic) as subscription, _Background(lambda: subscription.receive(DELIVERY_MS_MAX)) as reader:
            _, took_ms = _timed(lambda: broker.publish(wakeup, PUBLISH_MS))
            _expect(took_ms < PUBLISH_MS + STUCK_MS, f"publish took {took_ms:.0f} ms while a reader waited")
            received = reader.result()
            _expect([entry.wakeup for entry in _fetched(received)] == [wakeup], "the waiting reader did not receive it")


@_scenario("delivery")
def a_slow_reader_never_blocks_publish(connect: Connect) -> None:
    """A reader that does not read costs publishers nothing but its own wakeups, memory stays bounded, and it catches up (T31)."""
    topic = _topic()
    payload = os.urandom(FLOOD_PAYLOAD_BYTES)
    with connect() as publisher, connect() as reader:
        publisher.ensure_topic(topic)
        with reader.subscribe(topic) as subscription:
            for number in range(FLOOD_COUNT):
                wakeup = Wakeup(number, topic.topic_id, number, number + 1, topic.schema, payload=payload)
                _, took_ms = _timed(lambda wakeup=wakeup: publisher.publish(wakeup, PUBLISH_MS))  # type: ignore[misc]
                _expect(took_ms < PUBLISH_MS + STUCK_MS, f"publish {number} took {took_ms:.0f} ms")
            last = Wakeup(FLOOD_COUNT, topic.topic_id, FLOOD_COUNT, FLOOD_COUNT + 1, topic.schema)
            received = _fetched(_receive_until(subscription, last, publisher))
            starts = [entry.wakeup.start for entry in received]
            _expect(starts == sorted(starts), "the slow reader received wakeups out of order")


# Positions


@_scenario()
def an_impossible_offset_is_refused(connect: Connect) -> None:
    """`from_offset` below 0, or at 2^63 where it would wrap to "everything", raises `InvalidOffset` (T13)."""
    topic = _topic()
    with connect() as broker:
        broker.ensure_topic(topic)
        for offset in (-1, 2**63):
            _expect_raises(InvalidOffset, lambda offset=offset: broker.subscribe(topic, offset), f"from_offset {offset}")  # type: ignore[misc]


@_scenario("delivery")
def subscribing_at_the_head_misses_nothing_later(connect: Connect) -> None:
    """Whatever is published once subscribe has returned arrives, also with a `from_offset` (B8, B9, T1, B7)."""
    topic = _topic()
    old, new = _wakeups(topic, 6)[:3], _wakeups(topic, 6)[3:]
    with connect() as broker:
        broker.ensure_topic(topic)
        _publish_all(broker, old)
        for from_offset in (None, old[-1].end):
            with broker.subscribe(topic, from_offset) as subscription:
                _publish_all(broker, new)
                received = [entry.wakeup for entry in _fetched(_receive_until(subscription, new[-1]))]
                _expect([wakeup for wakeup in received if wakeup in new][-len(new) :] == new, "a later wakeup is missing")


@_scenario("delivery", "retention")
def retained_wakeups_are_replayed(connect: Connect) -> None:
    """A late subscriber receives everything from at or before its offset, or `OffsetEvicted` with both numbers (C2, T3)."""
    topic = _topic()
    wakeups = _wakeups(topic, 10)
    wanted = wakeups[5:]
    with connect() as publisher, connect() as reader:
        publisher.ensure_topic(topic)
        _publish_all(publisher, wakeups)
        try:
            subscription = reader.subscribe(topic, wanted[0].start)
        except OffsetEvicted as error:
            _expect({"requested", "earliest"} <= set(error.facts), "OffsetEvicted without requested and earliest")
            return
        with subscription:
            received = [entry.wakeup for entry in _fetched(_receive_until(subscription, wakeups[-1]))]
            _expect([wakeup for wakeup in received if wakeup in wanted] == wanted, f"asked from 5, received {_ranges(received)}")


@_scenario("delivery", "retention", "purge")
def purged_wakeups_are_gone(connect: Connect) -> None:
    """After purge(end) nothing that starts below `end` is delivered to anybody who comes later (C16)."""
    topic = _topic()
    wakeups = _wakeups(topic, 6)
    with connect() as broker:
        assert isinstance(broker, PurgingBroker)
        broker.ensure_topic(topic)
        _publish_all(broker, wakeups)
        broker.purge(topic.topic_id, wakeups[3].end)
        broker.purge(topic.topic_id, wakeups[3].end)
        _expect_raises(OffsetEvicted, lambda: broker.subscribe(topic, 0), "subscribing below what was purged")
        with broker.subscribe(topic, wakeups[4].start) as subscription:
            received = [entry.wakeup for entry in _fetched(_receive_until(subscription, wakeups[-1]))]
            _expect(received == wakeups[4:], f"after a purge up to 4, received {_ranges(received)}")


@_scenario("delivery")
def subscribers_are_listed(connect: Connect) -> None:
    """`consumers` names each subscriber while it is there, under names of their own (F3)."""
    topic = _topic()
    with connect() as broker:
        broker.ensure_topic(topic)
        with broker.subscribe(topic), broker.subscribe(topic):
            names = [position.name for position in broker.consumers(topic.topic_id)]
            _expect(len(set(names)) == len(names) >= 2, f"two subscribers are listed as {names}")
        _wait_until(
            lambda: broker.consumers(topic.topic_id) == [], CLOSE_MS_MAX + STUCK_MS, "closed subscribers are still listed"
        )


# Closing


@_scenario()
def close_ends_a_wait(connect: Connect) -> None:
    """Closing a subscription, from another thread, ends its receive (F4)."""
    topic = _topic()
    with connect() as broker:
        broker.ensure_topic(topic)
        subscription = broker.subscribe(topic)
        with _Background(lambda: _receive_until_closed(subscription)) as reader:
            subscription.close()
            _expect(reader.result() == [], "something arrived that nobody sent")


@_scenario()
def close_is_final_and_idempotent(connect: Connect) -> None:
    """After close, of a subscription or its connection, use raises `BrokerError`; closing again does nothing."""
    topic = _topic()
    broker = connect()
    broker.ensure_topic(topic)
    one, two = broker.subscribe(topic), broker.subscribe(topic)
    one.close()
    one.close()
    _expect_raises(BrokerError, lambda: one.receive(0), "receive on a closed subscription")
    broker.close()
    broker.close()
    _expect_raises(BrokerError, lambda: two.receive(0), "receive after the connection was closed")
    _expect_raises(BrokerError, lambda: broker.publish(_wakeups(topic, 1)[0], PUBLISH_MS), "publish on a closed connection")
    _expect_raises(BrokerError, lambda: broker.subscribe(topic), "subscribe on a closed connection")


@_scenario()
def close_leaves_nothing(connect: Connect) -> None:
    """Closing a connection with open subscriptions ends their threads and sockets (F4)."""
    topic = _topic()
    threads, sockets = set(threading.enumerate()), _open_sockets()
    broker = connect()
    broker.ensure_topic(topic)
    for _ in range(3):
        broker.subscribe(topic)
    broker.publish(_wakeups(topic, 1)[0], PUBLISH_MS)
    _, took_ms = _timed(broker.close)
    _expect(took_ms < CLOSE_MS_MAX + STUCK_MS, f"close took {took_ms:.0f} ms")
    _wait_until(lambda: set(threading.enumerate()) <= threads, STUCK_MS, "threads outlive close")
    _wait_until(lambda: _open_sockets() <= sockets, STUCK_MS, "sockets outlive close")


# Groups


@_scenario("delivery", "groups")
def a_group_shares_the_work(connect: Connect) -> None:
    """Two consumers of one group receive each wakeup once between them; another group receives all of them too."""
    topic = _topic()
    wakeups = _wakeups(topic, 6)
    with connect() as broker:
        assert isinstance(broker, GroupBroker)
        _prepare_groups(broker, topic, "workers", "others")
        _publish_all(broker, wakeups)
        shared = [*_read_new(broker, topic, "workers", "one", 3), *_read_new(broker, topic, "workers", "two", 3)]
        _expect([entry.wakeup for entry in _fetched(shared)] == wakeups, "two consumers did not share the wakeups in order")
        others = _read_new(broker, topic, "others", "one", 6)
        _expect([entry.wakeup for entry in _fetched(others)] == wakeups, "the other group did not receive everything")
        _expect(broker.read_new(topic.topic_id, "workers", "one", 10, 0) == [], "a wakeup was handed out twice without a reclaim")


@_scenario("delivery", "groups")
def creating_a_group_again_keeps_its_position(connect: Connect) -> None:
    """A worker that starts, creates its group as every worker does, and does not rewind it."""
    topic = _topic()
    first, second = _wakeups(topic, 2)
    with connect() as broker:
        assert isinstance(broker, GroupBroker)
        _prepare_groups(broker, topic, "workers")
        broker.publish(first, PUBLISH_MS)
        _read_new(broker, topic, "workers", "one", 1)
        broker.create_group(topic, "workers")
        broker.publish(second, PUBLISH_MS)
        received = _fetched(_read_new(broker, topic, "workers", "one", 1))
        _expect([entry.wakeup for entry in received] == [second], "the group was rewound or moved")


@_scenario("delivery", "groups")
def what_a_dead_consumer_held_is_reclaimed(connect: Connect) -> None:
    """Unacknowledged entries go to another consumer, with the broker's own rising count; acknowledged ones don't (E3, T26)."""
    topic = _topic()
    wakeups = _wakeups(topic, 3)
    with connect() as broker:
        assert isinstance(broker, GroupBroker)
        _prepare_groups(broker, topic, "workers")
        _publish_all(broker, wakeups)
        held = _read_new(broker, topic, "workers", "dies", 3)
        broker.ack(topic.topic_id, "workers", held[0].native_id)
        broker.ack(topic.topic_id, "workers", held[0].native_id)
        for count in (2, 3):
            again = _fetched(_reclaim(broker, topic, "workers", "lives", 2))
            _expect([entry.wakeup for entry in again] == wakeups[1:], "not exactly the unacknowledged were reclaimed")
            _expect({entry.deliveries for entry in again} == {count}, f"delivery {count} is counted as {again[0].deliveries}")
        broker.ack_many(topic.topic_id, "workers", [entry.native_id for entry in again])
        _expect(broker.reclaim_idle(topic.topic_id, "workers", "lives", 0, 10) == [], "acknowledged entries were reclaimed")


@_scenario("delivery", "groups")
def an_idle_entry_is_not_reclaimed_early(connect: Connect) -> None:
    """An entry held for less than `min_idle_ms` stays with its consumer."""
    topic = _topic()
    with connect() as broker:
        assert isinstance(broker, GroupBroker)
        _prepare_groups(broker, topic, "workers")
        _publish_all(broker, _wakeups(topic, 1))
        _read_new(broker, topic, "workers", "works", 1)
        _expect(broker.reclaim_idle(topic.topic_id, "workers", "eager", 3_600_000, 10) == [], "an entry in work was taken away")


@_scenario("delivery", "groups")
def a_malformed_entry_can_be_acknowledged(connect: Connect) -> None:
    """In a group too, garbage is one entry with its bytes, and once acknowledged it does not come back (E1)."""
    topic = _topic()
    with connect() as broker:
        assert isinstance(broker, GroupBroker)
        _prepare_groups(broker, topic, "workers")
        broker.publish_raw(topic.topic_id, b"no wakeup", PUBLISH_MS)
        (bad,) = _read_new(broker, topic, "workers", "one", 1)
        _expect(isinstance(bad, Malformed) and bad.raw == b"no wakeup", "malformed bytes were lost or changed")
        broker.ack(topic.topic_id, "workers", bad.native_id)
        _expect(broker.reclaim_idle(topic.topic_id, "workers", "two", 0, 10) == [], "an acknowledged entry came back")


@_scenario("delivery", "groups")
def a_forgotten_consumer_leaves_its_entries(connect: Connect) -> None:
    """After forget_consumer it is not listed, and what it held can be reclaimed at once (F3)."""
    topic = _topic()
    wakeups = _wakeups(topic, 2)
    with connect() as broker:
        assert isinstance(broker, GroupBroker)
        _prepare_groups(broker, topic, "workers")
        _publish_all(broker, wakeups)
        _read_new(broker, topic, "workers", "leaves", 2)
        _expect("leaves" in _members(broker, topic), "a consumer that holds entries is not listed")
        broker.forget_consumer(topic.topic_id, "workers", "leaves")
        broker.forget_consumer(topic.topic_id, "workers", "leaves")
        _expect("leaves" not in _members(broker, topic), "a forgotten consumer is listed")
        again = _fetched(_reclaim(broker, topic, "workers", "stays", 2))
        _expect([entry.wakeup for entry in again] == wakeups, "what it held was lost")


# What the scenarios share


class _Background:
    """A call in a thread of its own, whose result is awaited with a deadline."""

    def __init__(self, call: Callable[[], list[Received]]) -> None:
        self._call = call
        self._result: list[Received] | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self._result = self._call()
        except Exception as error:  # noqa: BLE001  # raised again in result()
            self._error = error

    def __enter__(self) -> _Background:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join((DELIVERY_MS_MAX + STUCK_MS) / 1000)

    def result(self) -> list[Received]:
        self._thread.join((DELIVERY_MS_MAX + STUCK_MS) / 1000)
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise ConformanceFailure("a call in another thread did not come back")
        return self._result


def _topic() -> TopicRef:
    topic_id = str(uuid.uuid4())
    return TopicRef(topic_id, f"conformance-{topic_id[:8]}", "schema")


def _wakeups(topic: TopicRef, count: int) -> list[Wakeup]:
    return [Wakeup(n + 1, topic.topic_id, n, n + 1, topic.schema, payload=b"row %d" % n) for n in range(count)]


def _publish_all(broker: Broker, wakeups: Sequence[Wakeup]) -> None:
    assert len(wakeups) <= 2 * BURST_COUNT, "a longer burst may overflow a transport: relay it"
    for wakeup in wakeups:
        delivery = broker.publish(wakeup, PUBLISH_MS)
        _expect((delivery.dropped, delivery.reduced) == (0, 0), f"a short burst was not sent whole: {delivery}")


def _relay(broker: Broker, wakeups: Sequence[Wakeup], subscriptions: Sequence[Subscription]) -> list[list[Wakeup]]:
    """Publishes in bursts, each received by every subscription before the next; what each received."""
    received: list[list[Wakeup]] = [[] for _ in subscriptions]
    for start in range(0, len(wakeups), BURST_COUNT):
        burst = wakeups[start : start + BURST_COUNT]
        _publish_all(broker, burst)
        for subscription, mine in zip(subscriptions, received, strict=True):
            mine.extend(entry.wakeup for entry in _fetched(_receive(subscription, len(burst))))
    return received


def _receive(subscription: Subscription, count: int) -> list[Received]:
    """At least `count` entries, or a failure that says how many came."""
    received: list[Received] = []
    deadline = time.monotonic() + DELIVERY_MS_MAX / 1000
    while len(received) < count:
        remaining_ms = int((deadline - time.monotonic()) * 1000)
        _expect(remaining_ms > 0, f"{len(received)} of {count} entries arrived within {DELIVERY_MS_MAX} ms")
        received.extend(subscription.receive(remaining_ms))
    return received


def _receive_until(subscription: Subscription, last: Wakeup, publisher: Broker | None = None) -> list[Received]:
    """Everything up to `last`, which `publisher` sends again each time nothing came: it may have been dropped, lawfully."""
    received: list[Received] = []
    deadline = time.monotonic() + DELIVERY_MS_MAX / 1000
    while not any(isinstance(entry, Fetched) and entry.wakeup == last for entry in received):
        _expect(time.monotonic() < deadline, f"the last of the wakeups did not arrive within {DELIVERY_MS_MAX} ms")
        came = subscription.receive(100)
        if not came and publisher is not None:
            publisher.publish(last, PUBLISH_MS)
        received.extend(came)
    return received


def _receive_until_closed(subscription: Subscription) -> list[Received]:
    """What arrives until the subscription is closed, which may be before this thread first asks."""
    try:
        return subscription.receive(DELIVERY_MS_MAX)
    except BrokerError:
        return []


def _fetched(received: Sequence[Received]) -> list[Fetched]:
    bad = [entry.reason for entry in received if isinstance(entry, Malformed)]
    _expect(not bad, f"good wakeups arrived malformed: {bad}")
    return [entry for entry in received if isinstance(entry, Fetched)]


def _prepare_groups(broker: GroupBroker, topic: TopicRef, *groups: str) -> None:
    broker.ensure_topic(topic)
    for group in groups:
        broker.create_group(topic, group)


def _read_new(broker: GroupBroker, topic: TopicRef, group: str, consumer: str, count: int) -> list[Received]:
    return _gather(lambda left: broker.read_new(topic.topic_id, group, consumer, left, 100), count)


def _reclaim(broker: GroupBroker, topic: TopicRef, group: str, consumer: str, count: int) -> list[Received]:
    return _gather(lambda left: broker.reclaim_idle(topic.topic_id, group, consumer, 0, left), count)


def _gather(fetch: Callable[[int], list[Received]], count: int) -> list[Received]:
    received: list[Received] = []
    deadline = time.monotonic() + DELIVERY_MS_MAX / 1000
    while len(received) < count:
        _expect(time.monotonic() < deadline, f"{len(received)} of {count} entries arrived within {DELIVERY_MS_MAX} ms")
        came = fetch(count - len(received))
        _expect(len(came) <= count - len(received), f"{len(came)} entries came where {count - len(received)} were asked for")
        received.extend(came)
    return received


def _members(broker: GroupBroker, topic: TopicRef) -> list[str]:
    return [position.name for position in broker.consumers(topic.topic_id) if position.group == "workers"]


def _ranges(wakeups: Sequence[Wakeup]) -> list[str]:
    return [f"[{wakeup.start}, {wakeup.end})" for wakeup in wakeups]


def _open_sockets() -> set[str]:
    """Where the system shows them: what `readlink` says of every descriptor that is a socket."""
    found: set[str] = set()
    try:
        descriptors = os.listdir("/proc/self/fd")
    except OSError:
        return found
    for descriptor in descriptors:
        target = _link_target(f"/proc/self/fd/{descriptor}")
        if target.startswith("socket:"):
            found.add(target)
    return found


def _link_target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""  # closed meanwhile


def _timed(call: Callable[[], _T]) -> tuple[_T, float]:
    start = time.monotonic()
    result = call()
    return result, (time.monotonic() - start) * 1000


def _wait_until(condition: Callable[[], bool], timeout_ms: int, otherwise: str) -> None:
    deadline = time.monotonic() + timeout_ms / 1000
    pause = threading.Event()
    while not condition():
        _expect(time.monotonic() < deadline, otherwise)
        pause.wait(0.005)


def _expect(condition: bool, otherwise: str) -> None:
    # Not `assert`: the suite must find the same faults under `python -O`.
    if not condition:
        raise ConformanceFailure(otherwise)


def _expect_raises(kind: type[Exception], call: Callable[[], object], what: str) -> None:
    try:
        call()
    except kind:
        return
    raise ConformanceFailure(f"{what} did not raise {kind.__name__}")
