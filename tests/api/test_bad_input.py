"""Every bad input is one line that names the thing and the cure, and nothing is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pyspark_trigger as trigger
from tests.api.rows import numbered, publish_numbered
from trigger_core.errors import (
    BrokerError,
    InvalidName,
    InvalidOffset,
    InvalidOption,
    ReservedColumn,
    SchemaMismatch,
    TopicNotFound,
    UnsupportedType,
)

OFFSET_BEYOND = 2**63


@dataclass(frozen=True)
class Bad:
    """A call that is refused: with which error, and what its text must name."""

    call: Callable[[str], Any]
    error: type[trigger.TriggerError]
    names: tuple[str, ...]


def publish(data: Any = None, topic: str = "t", **options: Any) -> Callable[[str], Any]:
    return lambda path: trigger.publish(path, topic, numbered(6, 1) if data is None else data, **options)


def subscribe(topic: str = "t", **options: Any) -> Callable[[str], Any]:
    return lambda path: trigger.subscribe(path, topic, **options)


def read(*arguments: Any, **options: Any) -> Callable[[str], Any]:
    return lambda path: list(trigger.Topic(path, "t").read(*arguments, **options))


BAD = {
    "missing topic": Bad(subscribe("missing"), TopicNotFound, ("'missing'", "create")),
    "schema mismatch: type": Bad(publish([{"n": "x", "text": "y"}]), SchemaMismatch, ("'n'", "int64", "cast")),
    "schema mismatch: extra": Bad(publish([{"n": 1, "more": 2}]), SchemaMismatch, ("'more'", "mergeSchema")),
    "a value that does not fit": Bad(publish(pa.table({"n": pa.array([2**64 - 1], pa.uint64())})), trigger.TriggerError, ("'n'",)),
    "reserved column": Bad(publish([{"_offset": 1}]), ReservedColumn, ("'_offset'", "rename")),
    "reserved column, other case": Bad(publish([{"_Produced_At": 1}]), ReservedColumn, ("'_Produced_At'", "rename")),
    "reserved column, new topic": Bad(publish([{"_tenant": 1}], "new"), ReservedColumn, ("'_tenant'", "rename")),
    "column twice": Bad(publish([{"n": 1, "N": 2}]), SchemaMismatch, ("'n'", "'N'")),
    "column name with a space": Bad(publish([{"a b": 1}], "new"), SchemaMismatch, ("'a b'", "rename")),
    "column name that is a number": Bad(publish([{1: 1}], "new"), SchemaMismatch, ("1", "text")),
    "type Delta can't hold": Bad(publish(pa.table({"d": pa.array([1], pa.duration("s"))}), "new"), UnsupportedType, ("'d'", "cast")),
    "nested type Delta can't hold": Bad(
        publish(pa.table({"s": pa.array([{"t": 1}], pa.struct([("t", pa.time64("us"))]))}), "new"), UnsupportedType, ("s.t", "cast")
    ),
    "a column of nulls only": Bad(publish([{"x": None}], "new"), UnsupportedType, ("'x'", "cast")),
    "mixed types": Bad(publish([{"n": 1}, {"n": "x"}], "new"), SchemaMismatch, ("one type",)),
    "an integer that is too large": Bad(publish([{"n": 2**70}], "new"), SchemaMismatch, ("one type",)),
    "rows without columns": Bad(publish([{}, {}]), SchemaMismatch, ("2 rows",)),
    "rows of no known kind": Bad(publish(42), SchemaMismatch, ("int", "list of dicts")),
    "a dict of columns": Bad(publish({"n": [1]}), SchemaMismatch, ("dict", "list of dicts")),
    "start beyond end": Bad(subscribe(start=5, end=2), InvalidOffset, ("5", "2")),
    "start beyond the head": Bad(subscribe(start=7), InvalidOffset, ("7", "6")),
    "T13 start of 2^63": Bad(subscribe(start=OFFSET_BEYOND), InvalidOffset, ("start", str(OFFSET_BEYOND))),
    "T13 start of 2^63 as text": Bad(subscribe(start=str(OFFSET_BEYOND)), InvalidOffset, ("start", str(OFFSET_BEYOND))),
    "T13 start of 2^64": Bad(subscribe(start=2**64), InvalidOffset, ("start",)),
    "T13 negative start": Bad(subscribe(start=-1), InvalidOffset, ("start", "-1")),
    "T13 end of 2^63": Bad(subscribe(start=0, end=OFFSET_BEYOND), InvalidOffset, ("end", str(OFFSET_BEYOND))),
    "T13 read to 2^63": Bad(read(0, OFFSET_BEYOND), InvalidOffset, ("end", str(OFFSET_BEYOND))),
    "T13 trim to 2^63": Bad(lambda path: trigger.Topic(path, "t").trim(OFFSET_BEYOND), InvalidOffset, ("before",)),
    "read start beyond end": Bad(read(5, 2), InvalidOffset, ("5", "2")),
    "read beyond the head": Bad(read(0, 7), InvalidOffset, ("7", "6")),
    "read an unknown column": Bad(read(0, 6, columns=["m"]), SchemaMismatch, ("'m'",)),
    "trim beyond the head": Bad(lambda path: trigger.Topic(path, "t").trim(7), InvalidOffset, ("7", "6")),
    "start that is half a row": Bad(subscribe(start=1.5), InvalidOffset, ("start", "1.5")),
    "start that is a flag": Bad(subscribe(start=True), InvalidOffset, ("start", "True")),
    "start that is nothing": Bad(subscribe(start=None), InvalidOffset, ("start", "None")),
    "start that is no word of ours": Bad(subscribe(start="first"), InvalidOption, ("'first'", "earliest")),
    "negative timeout": Bad(subscribe(timeout=-1), InvalidOption, ("timeout", "-1")),
    "predicate, which is to come": Bad(subscribe(predicate="n > 1"), InvalidOption, ("predicate",)),
    "consumer, which is to come": Bad(subscribe(consumer="c"), InvalidOption, ("consumer",)),
    "topic name with a slash": Bad(publish(topic="a/b"), InvalidName, ("'a/b'", "letter")),
    "topic name with a leading dot": Bad(publish(topic=".hidden"), InvalidName, ("'.hidden'",)),
    "topic name with two dots": Bad(publish(topic="a..b"), InvalidName, ("'a..b'",)),
    "empty topic name": Bad(publish(topic=""), InvalidName, ("''",)),
    "topic name to subscribe to": Bad(subscribe("../t"), InvalidName, ("'../t'",)),
    "topic name of Topic": Bad(lambda path: trigger.Topic(path, "a b"), InvalidName, ("'a b'",)),
    "txn app id alone": Bad(publish(app_id="a"), InvalidOption, ("txnAppId", "txnVersion")),
    "txn version alone": Bad(publish(version=1), InvalidOption, ("txnAppId", "txnVersion")),
    "txn app id of ours": Bad(publish(app_id="trigger.offset", version=1), InvalidOption, ("'trigger.offset'", "trigger.")),
    "txn app id of ours, new topic": Bad(
        publish(topic="new", app_id="trigger.offset", version=1), InvalidOption, ("'trigger.offset'", "trigger.")
    ),
    "txn version below 0": Bad(publish(app_id="a", version=-1), InvalidOption, ("txnVersion", "-1")),
    "txn version of 2^63": Bad(publish(app_id="a", version=OFFSET_BEYOND), InvalidOption, ("txnVersion",)),
    "unknown option": Bad(publish(mergeSchemas=True), InvalidOption, ("'mergeSchemas'", "'mergeSchema'")),
    "an option of the source": Bad(publish(startingOffsets="earliest"), InvalidOption, ("startingOffsets",)),
    "an option that is no number": Bad(publish(wakeupPayloadBytes="many"), InvalidOption, ("wakeupPayloadBytes", "'many'")),
    "unknown broker": Bad(publish(broker="locale:"), InvalidOption, ("'locale:'", "local")),
    "unknown broker to subscribe to": Bad(subscribe(broker="amqp://x"), InvalidOption, ("'amqp://x'", "local:")),
    "credentials in a broker's URL": Bad(publish(broker="nats://me:secret@host:4222"), InvalidOption, ("credentials", "broker.password")),
}


def everything_in(path: str) -> dict[str, int]:
    return {str(file): file.stat().st_size for file in Path(path).rglob("*") if file.is_file()}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(path: str, runtime_dir: str, name: str) -> None:
    publish_numbered(path, "t", 2)
    before, bad = everything_in(path), BAD[name]
    with pytest.raises(bad.error) as caught:
        bad.call(path)
    text = str(caught.value)
    assert "\n" not in text, f"more than one line: {text}"
    assert text.startswith(f"[{type(caught.value).__name__}] ")
    assert " — " in text, f"no cure: {text}"
    for named in bad.names:
        assert named in text
    assert "secret" not in text
    assert everything_in(path) == before, "something was written"
    assert os.listdir(runtime_dir) == []
    assert trigger.publish(path, "t", numbered(6, 1)) == trigger.OffsetRange(6, 7)


def test_a_driver_whose_library_is_missing_names_the_extra(path: str) -> None:
    """Before anything is written, and not as a failed wakeup after it."""
    publish_numbered(path, "t", 1)
    with pytest.raises(BrokerError, match=r"pyspark-trigger\[kafka\]"):
        trigger.subscribe(path, "t", broker="kafka://localhost:9092")
