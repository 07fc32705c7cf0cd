"""`local:` in one process: what the conformance suite, which knows no driver, can't see."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trigger_broker import Delivery, Fetched, Malformed, TopicRef, connect, driver_local, rendezvous
from trigger_broker.driver_local import LocalBroker, LocalSubscription
from trigger_core.errors import BrokerError, BrokerUnavailable
from trigger_core.wakeup import WAKEUP_BYTES_MAX, Wakeup

TOPIC = TopicRef("topic-id", "orders", "schema")
DEADLINE_S = 60
QUEUE_COUNT_MAX = 5000  # the kernel's own is 10, many distributions set 512


def wakeup(number: int, payload: bytes | None = None) -> Wakeup:
    return Wakeup(number, TOPIC.topic_id, number, number + 1, TOPIC.schema, payload=payload)


def local() -> LocalBroker:
    broker = connect("local:")
    assert isinstance(broker, LocalBroker)
    return broker


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        pause.wait(0.005)


class Deaf:
    """A peer whose socket is bound and announced and never read, as of a stopped process."""

    def __init__(self) -> None:
        self.attachment = rendezvous.attach(rendezvous.base_directory(), TOPIC.topic_id)

    def __enter__(self) -> Deaf:
        return self

    def __exit__(self, *_: object) -> None:
        self.attachment.detach()

    def read_all(self) -> int:
        count = 0
        try:
            while self.attachment.socket.recv(WAKEUP_BYTES_MAX):
                count += 1
        except BlockingIOError:
            return count
        raise AssertionError("an empty datagram")


def fill(broker: LocalBroker) -> None:
    for number in range(QUEUE_COUNT_MAX):
        if broker.publish(wakeup(number), 1).dropped:
            return
    raise AssertionError(f"a peer that never reads accepted {QUEUE_COUNT_MAX} datagrams")


def test_connecting_does_no_io(runtime: Path) -> None:
    with connect("local:"):
        assert list(runtime.iterdir()) == []


def test_publishing_alone_makes_no_directory(runtime: Path) -> None:
    with local() as broker:
        broker.ensure_topic(TOPIC)
        broker.publish(wakeup(0), 100)
        assert list(runtime.iterdir()) == []


def test_a_full_peer_is_dropped_from_and_others_receive() -> None:
    with local() as broker, Deaf() as deaf:
        fill(broker)
        with broker.subscribe(TOPIC) as subscription:
            delivery = broker.publish(wakeup(9000), 100)
            assert (delivery.sent, delivery.dropped) == (1, 1)
            (entry,) = subscription.receive(DEADLINE_S * 1000)
            assert isinstance(entry, Fetched)
            assert entry.wakeup == wakeup(9000)
        assert deaf.read_all() > 0
        assert broker.publish(wakeup(9001), 100).dropped == 0


def test_a_full_peer_is_waited_for_once_and_forgiven_when_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    real = driver_local._wait_for_room

    def counted(waiting: dict[str, driver_local._Letter], outcomes: dict[str, driver_local._Outcome], wait_ms: int) -> None:
        waits.append(len(waiting))
        real(waiting, outcomes, wait_ms)

    monkeypatch.setattr(driver_local, "_wait_for_room", counted)
    with local() as broker, Deaf() as deaf:
        fill(broker)
        assert waits[-1] == 1
        broker.publish(wakeup(9000), 100)
        broker.publish(wakeup(9001), 100)
        assert waits[-2:] == [0, 0]
        deaf.read_all()
        assert broker.publish(wakeup(9002), 100).sent == 1
        fill(broker)
        assert waits[-1] == 1


def test_a_wait_ends_when_the_peer_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_local, "STALL_MS_MAX", DEADLINE_S * 1000)
    with local() as broker, Deaf() as deaf:
        fill(broker)
        broker._stalled.clear()
        done: list[object] = []
        publisher = threading.Thread(target=lambda: done.append(broker.publish(wakeup(9000), DEADLINE_S * 1000)))
        publisher.start()
        assert deaf.read_all() > 0
        publisher.join(DEADLINE_S)
        assert [delivery.sent for delivery in done if isinstance(delivery, Delivery)] == [1]


def test_a_payload_the_kernel_refuses_goes_as_a_pointer(monkeypatch: pytest.MonkeyPatch) -> None:
    # With no larger send buffer asked for, half a MiB is beyond what the kernel takes.
    monkeypatch.setattr(driver_local, "SEND_BUFFER_BYTES", WAKEUP_BYTES_MAX)
    with local() as broker, broker.subscribe(TOPIC) as subscription:
        large = wakeup(1, bytes(1024 * 1024))
        delivery = broker.publish(large, 100)
        assert (delivery.sent, delivery.reduced) == (1, 1)
        (entry,) = subscription.receive(DEADLINE_S * 1000)
        assert isinstance(entry, Fetched)
        assert entry.wakeup == large.without_payload()
        assert broker.publish_raw(TOPIC.topic_id, bytes(1024 * 1024), 100).dropped == 1


def test_an_empty_datagram_is_malformed_and_not_the_end() -> None:
    with local() as broker, broker.subscribe(TOPIC) as subscription:
        delivery = broker.publish_raw(TOPIC.topic_id, b"", 100)
        assert delivery.sent == 1
        (entry,) = subscription.receive(DEADLINE_S * 1000)
        assert isinstance(entry, Malformed)
        assert entry.raw == b""
        assert broker.publish(wakeup(1), 100).sent == 1
        assert isinstance(subscription.receive(DEADLINE_S * 1000)[0], Fetched)


def test_E8_a_socket_removed_by_a_cleaner_is_attached_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_local, "ANNOUNCED_CHECK_MS", 10)
    with local() as broker, broker.subscribe(TOPIC) as subscription:
        (name,) = rendezvous.peers(rendezvous.base_directory(), TOPIC.topic_id)
        os.unlink(Path(rendezvous.topic_directory(rendezvous.base_directory(), TOPIC.topic_id)) / name)
        wait_until(lambda: subscription.counts().reattached == 1)
        assert broker.publish(wakeup(1), 100).sent == 1
        (entry,) = subscription.receive(DEADLINE_S * 1000)
        assert isinstance(entry, Fetched)


def test_F4_close_leaves_no_thread_descriptor_or_file(runtime: Path) -> None:
    threads, descriptors = set(threading.enumerate()), set(os.listdir("/proc/self/fd"))
    broker = local()
    subscriptions = [broker.subscribe(TOPIC) for _ in range(5)]
    assert len(list(runtime.rglob("*-*"))) >= 5
    broker.publish(wakeup(1), 100)
    subscriptions[0].close()
    broker.close()
    assert set(threading.enumerate()) <= threads
    assert set(os.listdir("/proc/self/fd")) <= descriptors
    assert list(runtime.iterdir()) == []


def test_subscribing_while_closing_leaves_nothing(runtime: Path) -> None:
    for _ in range(20):
        broker = local()
        made: list[LocalSubscription] = []

        def subscribe(broker: LocalBroker = broker, made: list[LocalSubscription] = made) -> None:
            try:
                made.append(broker.subscribe(TOPIC))
            except BrokerError:
                pass  # closed first, which is as good

        thread = threading.Thread(target=subscribe)
        thread.start()
        broker.close()
        thread.join(DEADLINE_S)
        broker.close()
        assert list(runtime.iterdir()) == []


def test_an_unsafe_directory_makes_the_broker_unavailable(runtime: Path) -> None:
    base = runtime / "pyspark-trigger"
    base.mkdir()
    base.chmod(0o777)
    with local() as broker:
        for use in (lambda: broker.subscribe(TOPIC), lambda: broker.publish(wakeup(1), 100), lambda: broker.ensure_topic(TOPIC)):
            with pytest.raises(BrokerUnavailable, match="open to others"):
                use()
    base.rmdir()


def test_no_pipe_means_no_subscription_and_nothing_left(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> tuple[int, int]:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("os.pipe", refuse)
    with local() as broker, pytest.raises(BrokerUnavailable, match="no pipe"):
        broker.subscribe(TOPIC)
    assert list(runtime.iterdir()) == []


def test_threads_publish_at_once() -> None:
    with local() as broker, broker.subscribe(TOPIC) as subscription:
        sent: list[int] = []

        def publish(first: int) -> None:
            sent.extend(n for n in range(first, first + 100) if broker.publish(wakeup(n), 5000).dropped == 0)

        threads = [threading.Thread(target=publish, args=(first,)) for first in (0, 100, 200, 300)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        received: list[int] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(received) < len(sent):
            assert time.monotonic() < deadline
            received += [entry.wakeup.start for entry in subscription.receive(1000) if isinstance(entry, Fetched)]
        assert sorted(received) == sorted(sent)
