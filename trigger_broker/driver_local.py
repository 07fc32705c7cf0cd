"""`local:` — wakeups between processes of one user on one host, without a server: Unix datagrams to every subscriber.

Owns sending and receiving; `rendezvous` knows who is where. Each publish opens a socket per subscriber, so a stopped one
can fill nobody's send buffer but its own, nothing is shared between threads, and nothing is inherited by a fork.

    send ─► full ─► wait, once per publish ─► pointer ─► drop, and no more waiting for it until it accepts again
      └──► too large ─► pointer
      └──► nobody answers ─► remove its socket
"""

from __future__ import annotations

import atexit
import errno
import os
import select
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Literal

from offsets.ranges import check_offset
from trigger_broker import rendezvous
from trigger_broker.entry import read_entry
from trigger_broker.inbox import Inbox
from trigger_broker.known_topics import KnownTopics
from trigger_broker.protocol import Capability, ConsumerPosition, Delivery, Received, SubscriptionCounts, TopicRef
from trigger_core.errors import BrokerError, BrokerUnavailable
from trigger_core.wakeup import WAKEUP_BYTES_MAX, Wakeup, encode

STALL_MS_MAX = 20
"""What full subscribers may cost one publish, all of them together."""
STALLED_TOPICS_MAX = 1024
SEND_BUFFER_BYTES = 128 * 1024
"""Larger datagrams get a larger send buffer: the kernel's usual one refuses them from some 208 KiB on."""
DRAIN_COUNT_MAX = 64
"""Datagrams taken before any is decoded: the kernel may queue ten only, and senders wait for room."""
ANNOUNCED_CHECK_MS = 1000
"""How often an idle subscriber looks whether its socket's name is still there."""
CLOSE_S_MAX = 2.0

_FULL = frozenset({errno.EAGAIN, errno.EWOULDBLOCK})
_Outcome = Literal["sent", "reduced", "full", "refused", "gone"]


def open_broker(url: str, options: Mapping[str, str]) -> LocalBroker:
    return LocalBroker(rendezvous.base_directory())


class LocalBroker:
    kind = "local"
    capabilities: frozenset[Capability] = frozenset({"delivery"})

    def __init__(self, base: str) -> None:
        self._base = base
        self._topics = KnownTopics()
        self._subscriptions: set[LocalSubscription] = set()
        self._stalled: dict[str, frozenset[str]] = {}
        self._closed = False
        self._lock = threading.Lock()
        _brokers.add(self)

    def ensure_topic(self, topic: TopicRef) -> None:
        self._check_open()
        self._topics.ensure(topic)
        rendezvous.sweep(self._base)

    def drop_topic(self, topic_id: str) -> None:
        """Live subscribers keep their sockets: nobody publishes to a dropped topic's id again, and they close in time."""
        self._check_open()
        self._topics.forget(topic_id)
        self._stalled.pop(topic_id, None)
        rendezvous.peers(self._base, topic_id, alive=True)

    def publish(self, wakeup: Wakeup, timeout_ms: int) -> Delivery:
        pointer = None if wakeup.payload is None else lambda: encode(wakeup.without_payload())
        return self._fan_out(wakeup.topic_id, encode(wakeup), pointer, timeout_ms)

    def publish_raw(self, topic_id: str, raw: bytes, timeout_ms: int) -> Delivery:
        return self._fan_out(topic_id, raw, None, timeout_ms)

    def subscribe(self, topic: TopicRef, from_offset: int | None = None) -> LocalSubscription:
        self._check_open()
        if from_offset is not None:
            check_offset(from_offset, "from_offset")
        subscription = LocalSubscription(self, self._base, topic.topic_id)
        with self._lock:
            if not self._closed:
                self._subscriptions.add(subscription)
                return subscription
        subscription.close()
        self._check_open()
        raise AssertionError("a closed connection stays closed")

    def consumers(self, topic_id: str) -> list[ConsumerPosition]:
        self._check_open()
        return [ConsumerPosition(name) for name in rendezvous.peers(self._base, topic_id, alive=True)]

    def close(self) -> None:
        with self._lock:
            self._closed = True
            subscriptions = list(self._subscriptions)
        for subscription in subscriptions:
            subscription.signal_close()  # all at once, so that their threads end side by side
        deadline = time.monotonic() + CLOSE_S_MAX
        for subscription in subscriptions:
            subscription.finish_close(deadline)

    def __enter__(self) -> LocalBroker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _fan_out(self, topic_id: str, message: bytes, pointer: Callable[[], bytes] | None, timeout_ms: int) -> Delivery:
        self._check_open()
        names = rendezvous.peers(self._base, topic_id)
        if not names:
            return Delivery(sent=0, dropped=0)
        directory = rendezvous.topic_directory(self._base, topic_id)
        stalled_before = self._stalled.get(topic_id, frozenset())
        outcomes: dict[str, _Outcome] = {}
        waiting: dict[str, _Letter] = {}
        try:
            for name in names:
                letter = _Letter(os.path.join(directory, name), message, pointer)
                outcomes[name] = letter.post()
                if outcomes[name] == "full" and name not in stalled_before:
                    waiting[name] = letter
                else:
                    if outcomes[name] == "full":
                        outcomes[name] = letter.post_pointer()
                    letter.close()
            _wait_for_room(waiting, outcomes, min(timeout_ms, STALL_MS_MAX))
        finally:
            for letter in waiting.values():
                letter.close()
        self._remember_stalled(topic_id, frozenset(name for name, outcome in outcomes.items() if outcome == "full"))
        found = list(outcomes.values())
        reduced = found.count("reduced")
        return Delivery(sent=found.count("sent") + reduced, dropped=found.count("full") + found.count("refused"), reduced=reduced)

    def _remember_stalled(self, topic_id: str, stalled: frozenset[str]) -> None:
        if not stalled:
            self._stalled.pop(topic_id, None)
            return
        if len(self._stalled) >= STALLED_TOPICS_MAX:
            self._stalled.clear()  # costs each of them one more wait
        self._stalled[topic_id] = stalled

    def _forget(self, subscription: LocalSubscription) -> None:
        with self._lock:
            self._subscriptions.discard(subscription)

    def _check_open(self) -> None:
        if self._closed:
            raise BrokerError("this connection to local: is closed", "connect again")

    def _after_fork_in_child(self) -> None:
        # Locks may have been held by threads that do not exist here.
        self._lock = threading.Lock()
        self._topics = KnownTopics()
        for subscription in self._subscriptions:
            subscription.disown()
        self._subscriptions = set()


class _Letter:
    """One message to one subscriber, over a socket of its own: connected, so that poll() tells when there is room."""

    def __init__(self, path: str, message: bytes, pointer: Callable[[], bytes] | None) -> None:
        self._path = path
        self._message = message
        self._pointer = pointer
        self._connected = False
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        except OSError as error:
            raise BrokerUnavailable(f"no socket to send with ({error})", "raise the limit on open files") from error
        self._socket.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def post(self) -> _Outcome:
        outcome = self._send(self._message)
        return self.post_pointer() if outcome == "refused" else outcome

    def post_pointer(self) -> _Outcome:
        """The last resort where the whole message was refused or found no room."""
        if self._pointer is None:
            # Nothing smaller to send. Trying once more costs a microsecond, and there may be room by now.
            return self._send(self._message)
        outcome = self._send(self._pointer())
        return "reduced" if outcome == "sent" else outcome

    def close(self) -> None:
        self._socket.close()

    def _send(self, message: bytes) -> _Outcome:
        try:
            if not self._connected:
                self._socket.connect(self._path)
                self._connected = True
            if len(message) > SEND_BUFFER_BYTES:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, len(message) + SEND_BUFFER_BYTES)
            self._socket.send(message)
        except OSError as error:
            if rendezvous.is_gone(error):
                rendezvous.bury(self._path)
                return "gone"
            # Refused is mostly too large (EMSGSIZE), or no memory for one so large (ENOBUFS, ENOMEM). Whatever else ails
            # one subscriber must not keep the others from theirs.
            return "full" if error.errno in _FULL else "refused"
        return "sent"


def _wait_for_room(waiting: Mapping[str, _Letter], outcomes: dict[str, _Outcome], wait_ms: int) -> None:
    """Posts each waiting letter once its subscriber has room, or its pointer after `wait_ms` in all."""
    poller = select.poll()
    by_fileno = {letter.fileno(): name for name, letter in waiting.items()}
    for fileno in by_fileno:
        poller.register(fileno, select.POLLOUT)
    deadline = time.monotonic() + wait_ms / 1000
    while by_fileno:
        remaining_ms = (deadline - time.monotonic()) * 1000
        if remaining_ms <= 0:
            break
        for fileno, _ in poller.poll(remaining_ms):
            name = by_fileno[fileno]
            outcomes[name] = waiting[name].post()
            if outcomes[name] != "full":
                poller.unregister(fileno)
                del by_fileno[fileno]
    for name in by_fileno.values():
        outcomes[name] = waiting[name].post_pointer()


class LocalSubscription:
    """A socket, and a thread that empties it into an inbox: the kernel may queue ten datagrams only."""

    def __init__(self, broker: LocalBroker, base: str, topic_id: str) -> None:
        self._broker = broker
        self._base = base
        self._topic_id = topic_id
        self._inbox = Inbox()
        self._arrived = 0
        self._peeked = bytearray(1)
        self._disowned = False
        self._closing = threading.Lock()
        self._attachment = rendezvous.attach(base, topic_id)
        try:
            self._wake_read, self._wake_write = os.pipe()
        except OSError as error:
            self._attachment.detach()
            raise BrokerUnavailable(f"no pipe ({error})", "raise the limit on open files") from error
        self._thread = threading.Thread(target=self._run, name="trigger-local-receive", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self._attachment.detach()
            self._close_pipe()
            raise BrokerUnavailable(f"no thread to receive with ({error})", "raise the limit on threads") from error

    def receive(self, timeout_ms: int) -> list[Received]:
        if self._disowned:
            raise BrokerError("this subscription belongs to the process that forked this one", "subscribe again here")
        if self._inbox.closed:
            raise BrokerError("this subscription is closed", "subscribe again")
        return self._inbox.take(timeout_ms)

    def counts(self) -> SubscriptionCounts:
        return self._inbox.counts()

    def signal_close(self) -> None:
        """Tells the thread to end, without waiting for it."""
        if self._disowned:
            return
        with self._closing:
            if not self._inbox.closed:
                self._inbox.close()
                os.write(self._wake_write, b"x")

    def close(self) -> None:
        if self._disowned:
            return
        self.signal_close()
        self.finish_close(time.monotonic() + CLOSE_S_MAX)

    def finish_close(self, deadline: float) -> None:
        """Waits for the thread, which removes socket and file, until `deadline` on the monotonic clock."""
        if self._disowned:
            return
        self._thread.join(max(0.0, deadline - time.monotonic()))
        with self._closing:
            if not self._thread.is_alive():
                self._close_pipe()
        self._broker._forget(self)

    def __enter__(self) -> LocalSubscription:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def disown(self) -> None:
        """In a forked child: the socket is the parent's, and must die with the parent even if the child lives on."""
        self._disowned = True
        self._attachment.socket.close()
        self._close_pipe()

    def _close_pipe(self) -> None:
        if self._wake_read >= 0:
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._wake_read = self._wake_write = -1

    def _run(self) -> None:
        try:
            poller = select.poll()
            poller.register(self._wake_read, select.POLLIN)
            poller.register(self._attachment.socket, select.POLLIN)
            while not self._inbox.closed:
                if poller.poll(ANNOUNCED_CHECK_MS):
                    self._drain()
                elif not self._attachment.announced():
                    self._reattach(poller)
        finally:
            self._attachment.detach()

    def _drain(self) -> None:
        arrived: list[bytes] = []
        try:
            while len(arrived) < DRAIN_COUNT_MAX:
                arrived.append(self._attachment.socket.recv(self._next_bytes()))
        except BlockingIOError:
            pass  # that was all
        for raw in arrived:
            self._arrived += 1
            self._inbox.put(read_entry(raw, self._topic_id, str(self._arrived)))

    def _next_bytes(self) -> int:
        """The size of the datagram at the head, so that no buffer of the largest size is needed; `BlockingIOError` if there
        is none. More than a wakeup may have is cut, and so malformed."""
        # Peeked, not asked of FIONREAD: that says 0 for an empty queue, and a datagram that came then would be cut.
        waiting = self._attachment.socket.recv_into(self._peeked, 1, socket.MSG_PEEK | socket.MSG_TRUNC)
        return min(max(waiting, 1), WAKEUP_BYTES_MAX + 1)

    def _reattach(self, poller: select.poll) -> None:
        try:
            renewed = rendezvous.attach(self._base, self._topic_id)
        except BrokerUnavailable:
            return  # tried again at the next check; until then the reader polls the log
        poller.unregister(self._attachment.socket)
        self._attachment.socket.close()
        self._attachment = renewed
        poller.register(renewed.socket, select.POLLIN)
        self._inbox.count_reattached()


_brokers: weakref.WeakSet[LocalBroker] = weakref.WeakSet()


def _close_all() -> None:
    for broker in list(_brokers):
        broker.close()


def _disown_all() -> None:
    for broker in list(_brokers):
        broker._after_fork_in_child()


# A process that ends without close() leaves nothing either; one that is killed is tidied up after by the next publish.
atexit.register(_close_all)
os.register_at_fork(after_in_child=_disown_all)
