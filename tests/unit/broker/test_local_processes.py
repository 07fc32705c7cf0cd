"""`local:` across real processes: delivered, killed, stopped, forked, and ended without a word."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import trigger_broker
from trigger_broker import Fetched, TopicRef, connect
from trigger_core.wakeup import Wakeup

ROOT = Path(trigger_broker.__file__).parents[1]
TOPIC = TopicRef("topic-id", "orders", "schema")
DEADLINE_S = 60

PRELUDE = """
import json, os, sys
from trigger_broker import TopicRef, connect
from trigger_core.wakeup import Wakeup
TOPIC = TopicRef("topic-id", "orders", "schema")
def say(*words):
    print(json.dumps(words), flush=True)
"""

SUBSCRIBER = """
subscription = connect("local:").subscribe(TOPIC)
say("attached")
while True:
    for entry in subscription.receive(1000):
        say("received", entry.wakeup.start, len(entry.wakeup.payload or b""))
"""


class Process:
    """A Python process that reports in lines of JSON."""

    def __init__(self, script: str) -> None:
        self.running = subprocess.Popen(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PRELUDE + textwrap.dedent(script)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._pending = b""

    def hears(self) -> list[object]:
        """The next line it says, waited for with a deadline."""
        assert self.running.stdout is not None
        deadline = time.monotonic() + DEADLINE_S
        while b"\n" not in self._pending:
            ready, _, _ = select.select([self.running.stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the process said nothing in time"
            read = os.read(self.running.stdout.fileno(), 65536)
            assert read, f"the process ended with {self.running.wait(DEADLINE_S)}"
            self._pending += read
        line, self._pending = self._pending.split(b"\n", 1)
        said: list[object] = json.loads(line)
        return said

    def tell(self) -> None:
        """Lets a script that waits for a line of input go on."""
        assert self.running.stdin is not None
        self.running.stdin.write(b"\n")

    def end(self) -> None:
        if self.running.poll() is None:
            self.running.kill()
        self.running.wait(DEADLINE_S)
        for stream in (self.running.stdin, self.running.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
def processes(runtime: Path) -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for process in started:
        process.end()
    # What the killed left is the next one's to remove, as it is for users.
    with connect("local:") as broker:
        broker.ensure_topic(TOPIC)


def start(processes: list[Process], script: str) -> Process:
    process = Process(script)
    processes.append(process)
    return process


def wakeup(number: int, payload: bytes | None = None) -> Wakeup:
    return Wakeup(number, TOPIC.topic_id, number, number + 1, TOPIC.schema, payload=payload)


def sockets(runtime: Path) -> list[Path]:
    return [path for path in runtime.rglob("*") if path.is_socket()]


def test_wakeups_reach_every_other_process(processes: list[Process]) -> None:
    readers = [start(processes, SUBSCRIBER) for _ in range(2)]
    for reader in readers:
        assert reader.hears() == ["attached"]
    with connect("local:") as broker:
        for number, size in enumerate((0, 10, 256 * 1024)):
            assert broker.publish(wakeup(number, bytes(size)), 5000) == trigger_broker.Delivery(sent=2, dropped=0)
            for reader in readers:
                assert reader.hears() == ["received", number, size]


def test_a_killed_peer_is_cleaned_up_by_the_next_publish(processes: list[Process], runtime: Path) -> None:
    killed, lives = start(processes, SUBSCRIBER), start(processes, SUBSCRIBER)
    for reader in (killed, lives):
        assert reader.hears() == ["attached"]
    killed.running.send_signal(signal.SIGKILL)
    killed.running.wait(DEADLINE_S)
    assert len(sockets(runtime)) == 2
    with connect("local:") as broker:
        assert broker.publish(wakeup(1), 5000) == trigger_broker.Delivery(sent=1, dropped=0)
        assert lives.hears() == ["received", 1, 0]
        (left,) = sockets(runtime)
        assert left.name.startswith(f"{lives.running.pid}-")


def test_the_last_killed_peer_leaves_no_directory(processes: list[Process], runtime: Path) -> None:
    killed = start(processes, SUBSCRIBER)
    assert killed.hears() == ["attached"]
    killed.running.send_signal(signal.SIGKILL)
    killed.running.wait(DEADLINE_S)
    with connect("local:") as broker:
        assert broker.publish(wakeup(1), 5000) == trigger_broker.Delivery(sent=0, dropped=0)
    assert list(runtime.iterdir()) == []


def test_a_stopped_peer_costs_others_nothing_and_catches_up(processes: list[Process]) -> None:
    stopped, lives = start(processes, SUBSCRIBER), start(processes, SUBSCRIBER)
    for reader in (stopped, lives):
        assert reader.hears() == ["attached"]
    stopped.running.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, stopped.running.pid, os.WSTOPPED | os.WNOWAIT)
    dropped = number = 0
    with connect("local:") as broker:
        # Blocked on the stopped one, even once, this would hang for good; the bound itself is milliseconds.
        deadline = time.monotonic() + DEADLINE_S
        while dropped < 50:
            dropped += broker.publish(wakeup(number), 100).dropped
            assert lives.hears() == ["received", number, 0]
            assert time.monotonic() < deadline
            number += 1
        stopped.running.send_signal(signal.SIGCONT)
        assert stopped.hears() == ["received", 0, 0]
        caught_up = 0
        deadline = time.monotonic() + DEADLINE_S
        while caught_up != 9000:
            assert time.monotonic() < deadline
            broker.publish(wakeup(9000), 100)
            said = stopped.hears()
            caught_up = int(str(said[1]))


def test_a_process_that_ends_without_close_leaves_nothing(processes: list[Process], runtime: Path) -> None:
    ends = start(processes, 'subscription = connect("local:").subscribe(TOPIC)\nsay("attached")\nsys.stdin.readline()')
    assert ends.hears() == ["attached"]
    assert len(sockets(runtime)) == 1
    ends.tell()
    assert ends.running.wait(DEADLINE_S) == 0
    assert list(runtime.iterdir()) == []


def test_a_forked_child_publishes_and_does_not_receive(processes: list[Process]) -> None:
    """The child's inherited subscription raises, its close touches nothing of the parent's, and it may subscribe anew."""
    forks = start(
        processes,
        """
        broker = connect("local:")
        broker.ensure_topic(TOPIC)
        subscription = broker.subscribe(TOPIC)
        child = os.fork()
        if child == 0:
            try:
                subscription.receive(0)
                say("received")
            except Exception as error:
                say(type(error).__name__, "subscribe again here" in str(error))
            subscription.close()
            with broker.subscribe(TOPIC) as own:
                say("sent", broker.publish(Wakeup(1, "topic-id", 7, 8, "schema"), 5000).sent)
                say("child", own.receive(60000)[0].wakeup.start)
            os._exit(0)
        os.waitpid(child, 0)
        say("parent", subscription.receive(60000)[0].wakeup.start)
        broker.close()
        """,
    )
    assert forks.hears() == ["BrokerError", True]
    assert forks.hears() == ["sent", 2]
    assert forks.hears() == ["child", 7]
    assert forks.hears() == ["parent", 7]
    assert forks.running.wait(DEADLINE_S) == 0


def test_a_forked_child_does_not_keep_a_killed_parent_alive(processes: list[Process], runtime: Path) -> None:
    """A socket answers while anybody has it open: the child must not."""
    parent = start(
        processes,
        """
        subscription = connect("local:").subscribe(TOPIC)
        child = os.fork()
        if child == 0:
            say("child", os.getpid())
            sys.stdin.readline()
            os._exit(0)
        os.waitpid(child, 0)
        """,
    )
    said = parent.hears()
    child = int(str(said[1]))
    parent.running.send_signal(signal.SIGKILL)
    parent.running.wait(DEADLINE_S)
    os.kill(child, 0)  # it lives
    with connect("local:") as broker:
        assert broker.publish(wakeup(1), 5000) == trigger_broker.Delivery(sent=0, dropped=0)
    assert list(runtime.iterdir()) == []
    parent.tell()


def test_a_wakeup_from_another_process_is_received_here(processes: list[Process]) -> None:
    with connect("local:") as broker, broker.subscribe(TOPIC) as subscription:
        sender = start(
            processes, 'say(connect("local:").publish(Wakeup(3, "topic-id", 5, 6, "schema", payload=b"row"), 5000).sent)'
        )
        assert sender.hears() == [1]
        (entry,) = subscription.receive(DEADLINE_S * 1000)
        assert isinstance(entry, Fetched)
        assert (entry.wakeup.version, entry.wakeup.payload) == (3, b"row")
