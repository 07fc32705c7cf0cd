"""The log on a local folder and on a real S3 server: what a user does first, and what is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from offsets import OffsetRange
from tests.conftest import Place
from trigger_core.errors import (
    CheckpointRewound,
    DataLoss,
    InvalidName,
    InvalidOffset,
    InvalidOption,
    ReservedColumn,
    SchemaConflict,
    SchemaMismatch,
    TopicNotFound,
    TopicRecreated,
    UnsupportedType,
)
from trigger_outbox import Batch, Outbox, Rows
from trigger_outbox.outbox import drop_topic, topic_names

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def table(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": [str(each) for each in ids]}, schema=SCHEMA)


def batch(rows: pa.Table, **settings: object) -> Batch:
    return Batch(Rows.of(rows), rows.schema, **settings)  # type: ignore[arg-type]


def created(place: Place, topic: str = "orders") -> Outbox:
    return Outbox.create(place.path, topic, SCHEMA, place.storage_options)


def ids(outbox: Outbox, start: int, end: int) -> list[int]:
    return [value for rows in outbox.read(OffsetRange(start, end)) for value in rows.column("id").to_pylist()]


def test_A1_batches_are_contiguous_from_0(place: Place) -> None:
    outbox = created(place)
    for number in range(20):
        done = outbox.append(batch(table(2 * number, 2 * number + 1)))
        assert done.range == OffsetRange(2 * number, 2 * number + 2)
    again = Outbox.open(place.path, "orders", place.storage_options)
    assert ids(again, 0, 40) == list(range(40))
    audit = again.verify()
    assert audit.ok, audit.problems
    assert audit.rows == 40


def test_A2_A3_bad_rows_are_refused_whole(place: Place) -> None:
    outbox = created(place)
    outbox.append(batch(table(1)))
    version = outbox.state.version
    for rows, error, word in (
        (pa.table({"id": ["x"], "name": ["y"]}), SchemaMismatch, "id"),
        (pa.table({"id": [1], "other": ["y"]}), SchemaMismatch, "other"),
        (pa.table({"id": [1], "_offset": [3]}), ReservedColumn, "_offset"),
    ):
        with pytest.raises(error, match=word):
            outbox.append(batch(rows))
    with pytest.raises(UnsupportedType, match="wait"):
        Outbox.create(place.path, "odd", pa.schema([("wait", pa.duration("us"))]), place.storage_options)
    fresh = Outbox.open(place.path, "orders", place.storage_options)
    assert fresh.state.version == version
    assert fresh.append(batch(table(2))).range == OffsetRange(1, 2)


def test_A8_T6_an_empty_batch_uses_nothing(place: Place) -> None:
    outbox = created(place)
    assert not outbox.append(batch(table())).range
    assert outbox.state.version == 0


def test_A12_many_chunks_are_one_commit_in_order(place: Place) -> None:
    outbox = created(place)
    chunks = [table(number) for number in range(50)]
    done = outbox.append(Batch(Rows(lambda: iter(chunks), 50), SCHEMA))
    assert (done.version, done.range) == (1, OffsetRange(0, 50))
    assert ids(outbox, 0, 50) == list(range(50))


def test_A14_A17_a_batch_is_written_once(place: Place) -> None:
    outbox = created(place)
    outbox.append(batch(table(1), txn=("query", 4)))
    again = Outbox.open(place.path, "orders", place.storage_options)
    assert again.append(batch(table(1), txn=("query", 4), strict=True)).repeated
    assert again.append(batch(table(1), txn=("query", 3))).repeated
    with pytest.raises(CheckpointRewound, match=r"batch 3 .* batch 4"):
        again.append(batch(table(1), txn=("query", 3), strict=True))
    with pytest.raises(InvalidOption, match=r"trigger\."):
        again.append(batch(table(1), txn=("trigger.offset", 1)))
    assert again.state.end == 1


def test_A21_a_writer_of_a_dropped_topic_is_refused(place: Place) -> None:
    late = created(place)
    late.append(batch(table(1)))
    assert drop_topic(place.path, "orders", place.storage_options)
    created(place)
    with pytest.raises((TopicRecreated, TopicNotFound)):
        late.append(batch(table(2)))
    assert Outbox.open(place.path, "orders", place.storage_options).state.end == 0


def test_C13_trim_and_merge_keep_the_rest(place: Place) -> None:
    outbox = created(place)
    for number in range(12):
        outbox.append(batch(table(number)))
    assert outbox.trim(5) == OffsetRange(0, 5)
    assert outbox.compact(files_min=2) > 1
    assert ids(outbox, 5, 12) == list(range(5, 12))
    with pytest.raises(DataLoss) as lost:
        ids(outbox, 4, 12)
    assert lost.value.facts == {"requested": 4, "earliest": 5, "latest": 12}
    assert outbox.trim(3) == OffsetRange(5, 5)
    audit = outbox.verify()
    assert audit.ok, audit.problems


def test_F1_create_list_describe_drop(place: Place) -> None:
    created(place)
    created(place)
    with pytest.raises(SchemaConflict, match="orders"):
        Outbox.create(place.path, "orders", pa.schema([("id", pa.string())]), place.storage_options)
    assert topic_names(place.path, place.storage_options) == ["orders"]
    assert Outbox.open(place.path, "orders", place.storage_options).describe().end == 0
    assert drop_topic(place.path, "orders", place.storage_options)
    assert not drop_topic(place.path, "orders", place.storage_options)
    with pytest.raises(TopicNotFound, match="orders"):
        Outbox.open(place.path, "orders", place.storage_options)
    for name in ("a/b", ".hidden", "a..b", ""):
        with pytest.raises(InvalidName):
            Outbox.create(place.path, name, SCHEMA, place.storage_options)


def test_T13_reads_beyond_the_log_are_refused(place: Place) -> None:
    outbox = created(place)
    outbox.append(batch(table(1)))
    with pytest.raises(InvalidOffset, match="head 1"):
        ids(outbox, 0, 2)
    with pytest.raises(InvalidOffset):
        OffsetRange(0, 2**63)
