"""Publishers and subscribers that are killed, stopped and started again, as real processes."""

from __future__ import annotations

import os
import random
import signal

import pyarrow as pa

import pyspark_trigger as trigger
from tests.api.conftest import sockets_in
from tests.api.rows import wait_until
from tests.api.worker import Worker

SCHEMA = pa.schema([("who", pa.string()), ("n", pa.int64())])


def offsets_said(reader: Worker) -> list[int]:
    return [offset for said in reader.said for offset in said.get("offsets", [])]


def test_a_subscriber_survives_its_publishers_sigkill(path: str, workers: type[Worker]) -> None:
    """Killed at a random moment of a stream, five times; what was acknowledged arrives, once, and the next goes on."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    topic = trigger.Topic(path, "t").create(SCHEMA)
    reader = workers("subscriber", path=path, topic="t", start="earliest")
    reader.hear("ready")
    acknowledged: list[tuple[str, int, int]] = []
    for turn in range(5):
        name = f"writer {turn}"
        writer = workers("publisher", path=path, topic="t", name=name)
        writer.hear("ready")
        writer.tell(rows=2, batches=100_000)
        for _ in range(chance.randrange(1, 30)):
            writer.hear("range")
        writer.kill()
        acknowledged += [(name, *said["range"]) for said in writer.said if "range" in said]
    head = topic.head()
    wait_until(lambda: reader.hear("position") == head, "the reader is at the head")
    assert offsets_said(reader) == list(range(head))
    rows = pa.Table.from_batches(topic.read()).to_pylist()
    for name, start, end in acknowledged:
        assert [row["who"] for row in rows[start:end]] == [name] * (end - start)
    for turn in range(5):
        own = [row["n"] for row in rows if row["who"] == f"writer {turn}"]
        assert own == list(range(len(own)))
    assert topic.verify().ok


def test_a_subscriber_restarts_from_its_position(path: str, workers: type[Worker]) -> None:
    """Killed again and again while a writer writes; each time it goes on after the last batch that it told us of."""
    topic = trigger.Topic(path, "t").create(SCHEMA)
    writer = workers("publisher", path=path, topic="t")
    writer.hear("ready")
    writer.tell(rows=3, batches=200)
    seen: list[int] = []
    for turn in range(5):
        reader = workers("subscriber", path=path, topic="t", start=len(seen), end=600)
        assert reader.hear("ready") == len(seen)
        if turn == 4:
            assert reader.hear("done") == 600
        else:
            reader.hear("position")
            reader.kill()
        seen += offsets_said(reader)
        assert seen == list(range(len(seen)))
    assert seen == list(range(600))
    assert topic.head() == 600


def test_T23_a_stopped_subscriber_catches_up(path: str, runtime_dir: str, workers: type[Worker]) -> None:
    """While it is stopped its socket fills and wakeups are dropped: Delta fills the gap, nothing stops, nobody waits for it."""
    trigger.Topic(path, "t").create(SCHEMA)
    writer = workers("publisher", path=path, topic="t")
    reader = workers("subscriber", path=path, topic="t", start="earliest", end=600)
    writer.hear("ready")
    reader.hear("ready")
    writer.tell(rows=3, batches=50)
    writer.hear("done")
    reader.signal(signal.SIGSTOP)
    writer.tell(rows=3, batches=100)
    writer.hear("done")
    reader.signal(signal.SIGCONT)
    writer.tell(rows=3, batches=50)
    writer.hear("done")
    assert reader.hear("done") == 600
    assert offsets_said(reader) == list(range(600))
    assert [n for said in reader.said for n in said.get("n", [])] == list(range(600))
    assert reader.said[-2]["cold"] > 0


def test_F4_a_killed_subscribers_socket_is_removed(path: str, runtime_dir: str, workers: type[Worker]) -> None:
    trigger.Topic(path, "t").create(SCHEMA)
    reader = workers("subscriber", path=path, topic="t")
    reader.hear("ready")
    assert len(sockets_in(runtime_dir)) == 1
    reader.kill()
    trigger.publish(path, "t", [{"who": "me", "n": 0}])
    assert os.listdir(runtime_dir) == []


def test_F4_a_terminated_subscriber_leaves_nothing(path: str, runtime_dir: str, workers: type[Worker]) -> None:
    trigger.Topic(path, "t").create(SCHEMA)
    reader = workers("subscriber", path=path, topic="t", timeout=0.1)
    reader.hear("done")
    reader.process.wait(60)
    assert os.listdir(runtime_dir) == []
