"""C11: wakeups that are out of order, repeated, dropped, forged or a bomb, sent through the real broker by a hostile publisher.

No wakeup, forged or true, can add a row or move a position: the commit it names does.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest

import pyspark_trigger as trigger
from tests.api.rows import DEADLINE_S, numbered, offsets_of, publish_numbered, table_of
from trigger_broker import Broker, TopicRef, connect
from trigger_core.wakeup import PAYLOAD_BYTES_MAX, Wakeup, encode
from trigger_outbox import Appended, Batch, Outbox, Rows

PUBLISH_MS = 5_000
FIRST = 6


@dataclass(frozen=True)
class Attack:
    """A topic with six rows, its broker, and the true wakeups of commits that no reader has been told of."""

    path: str
    broker: Broker
    topic: TopicRef
    outbox: Outbox

    def commit(self, rows: int = 3) -> Wakeup:
        """Commits without telling anybody, and returns the wakeup that an honest publisher would send."""
        table = numbered(self.outbox.state.end, rows)
        done: Appended = self.outbox.append(Batch(Rows.of(table), table.schema))
        assert done.range is not None
        return Wakeup(
            done.version, done.table_id, done.range.start, done.range.end, done.schema.fingerprint, payload=done.payload
        )

    def send(self, *wakeups: Wakeup) -> None:
        for wakeup in wakeups:
            self.broker.publish(wakeup, PUBLISH_MS)

    def send_raw(self, raw: bytes) -> None:
        self.broker.publish_raw(self.topic.topic_id, raw, PUBLISH_MS)


@pytest.fixture
def attack(path: str, runtime_dir: str) -> Iterator[Attack]:
    publish_numbered(path, "t", 2)
    outbox = Outbox.open(path, "t")
    state = outbox.state
    topic = TopicRef(state.table_id, "t", state.metadata.schema.fingerprint)
    with connect("local:") as broker:
        yield Attack(path, broker, topic, outbox)


def payload_of(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue().to_pybytes())


def bomb(rows: int) -> bytes:
    """A few kilobytes that decode to `rows` long rows."""
    sink = pa.BufferOutputStream()
    table = pa.table({"n": pa.array([0] * rows, pa.int64()), "text": pa.array(["x" * 100] * rows)})
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def test_C11_out_of_order_and_repeated(attack: Attack) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    with trigger.subscribe(attack.path, "t", start=FIRST, end=FIRST + 60) as feed:
        wakeups = [attack.commit() for _ in range(20)] * 2
        chance.shuffle(wakeups)
        for wakeup in wakeups:
            attack.send(wakeup)
        assert offsets_of(feed) == list(range(FIRST, FIRST + 60))


def test_C11_dropped(attack: Attack) -> None:
    """Only every third arrives, and not the last."""
    with trigger.subscribe(attack.path, "t", start=FIRST, end=FIRST + 30) as feed:
        for number in range(10):
            wakeup = attack.commit()
            if number % 3 == 1:
                attack.send(wakeup)
        assert offsets_of(feed) == list(range(FIRST, FIRST + 30))


def test_C11_T2_old_wakeups_again(attack: Attack) -> None:
    """All that was ever sent comes again to a reader at the head: it gives none of it."""
    wakeups = [attack.commit() for _ in range(5)]
    head = FIRST + 15
    with trigger.subscribe(attack.path, "t", start=head, end=head + 3) as feed:
        attack.send(*wakeups)
        attack.send(attack.commit())
        attack.send(*wakeups)
        assert offsets_of(feed) == [head, head + 1, head + 2]


def forgeries(true: Wakeup) -> dict[str, Wakeup]:
    """Made from a true wakeup whose commit is in the log."""
    rows = true.end - true.start
    other = payload_of(pa.table({"n": pa.array([-1] * rows, pa.int64()), "text": ["forged"] * rows}))
    return {
        "the right range with other rows": replace(true, payload=other),
        "the right range with no rows in it": replace(true, payload=b""),
        "the right range with garbage": replace(true, payload=b"\xff" * 1000),
        "a bomb": replace(true, payload=bomb(500_000)),
        "the largest payload there is": replace(true, payload=b"\x00" * PAYLOAD_BYTES_MAX),
        "a range past the head": replace(true, start=true.end, end=true.end + 1000),
        "a wider range": replace(true, end=true.end + 1000),
        "a range of the past": replace(true, start=0, end=3),
        "an empty range": replace(true, start=true.end),
        "an unknown version": replace(true, version=true.version + 1),
        "the last version there can be": replace(true, version=2**63 - 1),
        "version 0": replace(true, version=0),
        "another schema": replace(true, schema="0" * 16),
        "another schema and rows": replace(true, schema="0" * 16, payload=payload_of(pa.table({"z": [1, 2, 3]}))),
        "the last offset there can be": replace(true, start=2**63 - 2, end=2**63 - 1),
    }


NAMES = list(forgeries(Wakeup(1, "t", 6, 9, "s", payload=b"")))


@pytest.mark.parametrize("name", NAMES)
def test_C11_forged(attack: Attack, name: str) -> None:
    """Sent instead of the true wakeup, and again beside it: each row comes once, as Delta has it."""
    with trigger.subscribe(attack.path, "t", start=FIRST, end=FIRST + 9) as feed:
        first = attack.commit()
        attack.send(forgeries(first)[name])
        batches = [next(feed)]
        second = attack.commit()
        attack.send(forgeries(second)[name], second, forgeries(second)[name])
        batches.append(next(feed))
        attack.send(replace(forgeries(second)[name], trace={"traceparent": "00-1"}), attack.commit())
        batches += list(feed)
        assert feed.position == FIRST + 9
    assert offsets_of(batches) == list(range(FIRST, FIRST + 9))
    assert table_of(batches).equals(table_of(trigger.Topic(attack.path, "t").read(FIRST, FIRST + 9)))


def test_C11_forged_before_the_commit(attack: Attack) -> None:
    """A wakeup for a version that is not there yet, with rows of its own: it is kept for nothing."""
    state = attack.outbox.state
    early = Wakeup(state.version + 1, state.table_id, FIRST, FIRST + 3, attack.topic.schema, payload=payload_of(numbered(900, 3)))
    with trigger.subscribe(attack.path, "t", start=FIRST, end=FIRST + 3) as feed:
        attack.send(early, early)
        assert feed.tail.wait(FIRST, 100) == FIRST
        attack.send(attack.commit(), early)
        assert offsets_of(feed) == list(range(FIRST, FIRST + 3))


RAW = {
    "nothing of ours": b"hello",
    "an empty message": b"",
    "the magic alone": b"TRG1",
    "a future format": b"TRG1\x09" + bytes(100),
    "a header of four gigabytes": b"TRG1\x01\xff\xff\xff\xff",
    "a pickle": b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00.",
    "another topic's": encode(Wakeup(1, "another", 0, 1, "s")),
}


@pytest.mark.parametrize("name", RAW)
def test_C11_garbled(attack: Attack, name: str) -> None:
    with trigger.subscribe(attack.path, "t", start=FIRST, end=FIRST + 6) as feed:
        attack.send_raw(RAW[name])
        attack.send(attack.commit())
        attack.send_raw(RAW[name])
        attack.send(attack.commit())
        assert offsets_of(feed) == list(range(FIRST, FIRST + 6))


def test_C11_truncated_at_every_length(attack: Attack) -> None:
    with trigger.subscribe(attack.path, "t", start=FIRST, end=FIRST + 3) as feed:
        wakeup = attack.commit()
        raw = encode(wakeup)
        for length in range(0, len(raw), 7):
            attack.send_raw(raw[:length])
        attack.send(wakeup)
        assert offsets_of(feed) == list(range(FIRST, FIRST + 3))


def test_C11_a_flood_of_forgeries_starves_nobody(attack: Attack) -> None:
    """Each would cost a look at the log; the looks are bounded, and true rows arrive among them."""
    state = attack.outbox.state
    with trigger.subscribe(attack.path, "t", start=FIRST, end=FIRST + 3, timeout=DEADLINE_S) as feed:
        for number in range(2_000):
            attack.send(Wakeup(state.version + 100 + number, state.table_id, FIRST, FIRST + 1, attack.topic.schema))
        attack.commit()
        assert offsets_of(feed) == list(range(FIRST, FIRST + 3))
