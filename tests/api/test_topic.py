"""`Topic` and `topics` through the public API (F1), and what a second process sees of them."""

from __future__ import annotations

import os

import pyarrow as pa
import pytest

import pyspark_trigger as trigger
from tests.api.rows import numbered, offsets_of, publish_numbered, table_of
from trigger_core.errors import SchemaConflict, TopicNotFound

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])


def test_F1_create_list_describe_drop(path: str) -> None:
    assert trigger.topics(path) == []
    topic = trigger.Topic(path, "orders")
    assert not os.path.exists(path), "making a Topic touches nothing"
    assert topic.create(SCHEMA) is topic
    first = topic.describe()
    assert topic.create(SCHEMA).describe() == first, "create is idempotent"
    assert (first.name, first.earliest, first.end, first.rows, first.files, first.guarded) == ("orders", 0, 0, 0, 0, True)
    assert first.schema.names == ["_offset", "_produced_at", "n", "text"]
    trigger.Topic(path, "bills").create(SCHEMA)
    assert topic.append(numbered(0, 5)) == trigger.OffsetRange(0, 5)
    assert [(each.name, each.rows) for each in trigger.topics(path)] == [("bills", 0), ("orders", 5)]
    assert topic.drop() is True
    assert topic.drop() is False
    assert [each.name for each in trigger.topics(path)] == ["bills"]
    assert not os.path.exists(f"{path}/orders")


def test_F1_a_schema_conflict_changes_nothing(path: str) -> None:
    topic = trigger.Topic(path, "t").create(SCHEMA)
    before = topic.describe()
    for other in (pa.schema([("n", pa.string()), ("text", pa.string())]), pa.schema([("n", pa.int64())])):
        with pytest.raises(SchemaConflict, match="'t'.*n int64, text string"):
            topic.create(other)
    assert topic.describe() == before


@pytest.mark.parametrize(
    "method", ["read", "head", "earliest", "describe", "compact", "vacuum", "verify", "release", "trim", "subscribe"]
)
def test_F1_missing_is_topic_not_found(path: str, method: str) -> None:
    topic = trigger.Topic(path, "nowhere")

    def ask() -> object:
        if method == "subscribe":
            return trigger.subscribe(path, "nowhere")
        return topic.trim(0) if method == "trim" else list(getattr(topic, method)() or [])

    with pytest.raises(TopicNotFound, match="'nowhere'"):
        ask()
    assert not os.path.exists(path), "asking made a folder"


def test_F1_not_null_columns_stay_so(path: str) -> None:
    topic = trigger.Topic(path, "t").create(pa.schema([pa.field("n", pa.int64(), nullable=False)]))
    with pytest.raises(trigger.TriggerError, match="'n' is NOT NULL"):
        topic.append([{"n": 1}, {"n": None}])
    assert topic.head() == 0


def test_read_is_a_range(path: str) -> None:
    publish_numbered(path, "t", 5, rows=2)
    topic = trigger.Topic(path, "t")
    assert offsets_of(topic.read()) == list(range(10))
    assert offsets_of(topic.read(3, 7)) == [3, 4, 5, 6]
    assert offsets_of(topic.read(9)) == [9]
    assert offsets_of(topic.read(10)) == []
    assert table_of(topic.read(0, 2, columns=["text"])).column_names == ["_offset", "text"]


def test_maintenance_changes_no_row(path: str) -> None:
    topic = trigger.Topic(path, "t")
    publish_numbered(path, "t", 10)
    before = table_of(topic.read())
    assert topic.compact() == 10
    assert topic.describe().files == 1
    assert topic.vacuum(dry_run=True) == []
    assert len(topic.vacuum(retention_hours=0)) == 10
    assert table_of(topic.read()).equals(before)
    assert topic.trim(12) == trigger.OffsetRange(0, 12)
    assert (topic.earliest(), topic.head()) == (12, 30)
    assert table_of(topic.read()).equals(before.slice(12))
    audit = topic.verify()
    assert audit.ok, audit.problems
    assert trigger.publish(path, "t", numbered(30, 1)) == trigger.OffsetRange(30, 31)


def test_a_topic_of_the_same_name_is_another_topic(path: str) -> None:
    """Dropped and made again, in this process, whose producer knew the old one: it starts at 0."""
    publish_numbered(path, "t", 3)
    first = trigger.Topic(path, "t").describe().id
    trigger.Topic(path, "t").drop()
    assert trigger.publish(path, "t", [{"other": "columns"}]) == trigger.OffsetRange(0, 1)
    again = trigger.Topic(path, "t").describe()
    assert again.id != first
    assert again.schema.names == ["_offset", "_produced_at", "other"]
    assert trigger.Topic(path, "t").verify().ok


def test_a_released_topic_is_read_and_no_longer_written(path: str) -> None:
    publish_numbered(path, "t", 2)
    topic = trigger.Topic(path, "t")
    topic.release()
    assert topic.describe().guarded is False
    assert offsets_of(topic.read()) == list(range(6))
    with pytest.raises(trigger.TriggerError, match="released"):
        trigger.publish(path, "t", numbered(6, 1))
    assert topic.head() == 6
