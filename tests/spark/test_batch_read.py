"""Spark's batch reader: a range by offset or by time, and only the columns, files and tasks it needs."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from tests.spark.lab import Lab, Seen, consecutive, ids, refused


def test_B18_a_start_beyond_the_end_is_refused_with_both_numbers_and_a_new_plan_sees_new_rows(lab: Lab) -> None:
    lab.publish(0, 10)
    refused(lambda: lab.read(startingOffsets=7, endingOffsets=3).collect(), "InvalidOffset", "7", "3")
    refused(lambda: lab.read(endingOffsets=11).collect(), "InvalidOffset", "11", "10")
    refused(lambda: lab.read(startingOffsets=11).collect(), "InvalidOffset", "11", "10")
    refused(lambda: lab.read(endingOffsets="earliest"), "InvalidOption", "endingOffsets")
    assert ids(lab.read(startingOffsets=3, endingOffsets=7).collect()) == consecutive(3, 7)
    assert lab.read(startingOffsets="latest").collect() == lab.read(startingOffsets=4, endingOffsets=4).collect() == []
    frame = lab.read()
    assert ids(frame.collect()) == consecutive(0, 10)
    lab.publish(10, 12)
    # Spark keeps the plan of a frame that has run, with its range; a read of its own sees what is there by now.
    assert ids(lab.read().collect()) == consecutive(0, 12)
    lab.topic().trim(5)
    assert ids(lab.read().collect()) == consecutive(5, 12)
    refused(lambda: lab.read(startingOffsets=4).collect(), "DataLoss", "4", "earliest is 5", "latest is 12")


def test_B19_option_keys_in_any_case_and_values_of_topic_keep_theirs(lab: Lab) -> None:
    lab.publish(0, 3, "Orders")
    lab.publish(0, 5, "orders")
    options = {"PATH": lab.path, "tOpIc": "Orders", "STARTINGOFFSETS": "Earliest", "endingoffsets": "LATEST"}
    assert lab.spark.read.format("trigger").options(**options).load().count() == 3
    assert lab.spark.read.format("trigger").options(**options | {"tOpIc": "orders"}).load().count() == 5


def test_B20_startingTimestamp_between_before_and_after_all_rows(lab: Lab) -> None:
    lab.publish(0, 4)
    lab.publish(4, 10)
    times: list[datetime] = [row["_produced_at"].astimezone(timezone.utc) for row in lab.read().orderBy("_offset").collect()]
    assert times == sorted(times)
    between = times[4].isoformat()

    def both(**options: Any) -> list[int]:
        """The same by a batch read and by a stream."""
        found: list[int] = lab.drain(lab.stream(**options), f"at-{len(list(lab.folder.rglob('offsets')))}").offsets
        assert ids(lab.read(**options).collect()) == found
        return found

    assert both(startingTimestamp=between) == consecutive(4, 10)
    assert both(startingTimestamp="1970-01-01T00:00:00Z") == consecutive(0, 10)
    assert both(startingTimestamp="9999-01-01T00:00:00Z") == []
    assert ids(lab.read(endingTimestamp=between).collect()) == consecutive(0, 4)
    assert ids(lab.read(startingTimestamp="0", endingTimestamp=between).collect()) == consecutive(0, 4)
    refused(lambda: lab.read(startingTimestamp=between, endingTimestamp="0").collect(), "InvalidOffset", "4", "0")
    refused(lambda: lab.read(startingTimestamp="noon"), "InvalidOption", "startingTimestamp", "'noon'")


def test_columns_gives_only_these_and_the_offset(lab: Lab) -> None:
    lab.topic().append([{"id": n, "a": f"a{n}", "b": n * 1.5} for n in range(6)])
    frame = lab.read(columns="b, id")
    assert frame.columns == ["_offset", "id", "b"], "in the topic's order"
    assert [tuple(row) for row in frame.collect()][:2] == [(0, 0, 0.0), (1, 1, 1.5)]
    assert [tuple(row) for row in lab.drain(lab.stream(columns="a", startingOffsets="4")).rows] == [(4, "a4"), (5, "a5")]
    assert [tuple(row) for row in lab.read(columns="_produced_at,a", startingOffsets=5).select("a").collect()] == [("a5",)]
    refused(lambda: lab.read(columns="id,id"), "InvalidOption", "columns")


def test_a_declared_schema_may_have_fewer_columns_but_never_others(lab: Lab) -> None:
    lab.topic().append([{"id": n, "a": f"a{n}"} for n in range(3)])

    def declared(schema: str) -> Any:
        return lab.spark.read.format("trigger").options(**lab.source()).schema(schema).load()

    assert [row["a"] for row in declared("a string").collect()] == ["a0", "a1", "a2"]
    refused(lambda: declared("id bigint, nope string").collect(), "SchemaMismatch", "'nope'")
    refused(lambda: declared("id string").collect(), "SchemaMismatch", "'id'", "string", "int64")
    stream = lab.spark.readStream.format("trigger").options(**lab.source(startingOffsets="earliest")).schema("_offset int").load()
    refused(lambda: lab.drain(stream), "SchemaMismatch", "'_offset'")


def test_pushFilters_narrows_the_range_and_gives_the_same_rows(lab: Lab) -> None:
    for start in range(0, 30, 10):
        lab.publish(start, start + 10)
    middle = lab.read().where("_offset = 10").head()["_produced_at"]
    conditions = [
        "_offset >= 5 AND _offset < 12",
        "_offset = 17",
        "_offset > 28 OR id = 3",
        "_offset <= 3 AND id <> 2",
        "_offset > 100",
        "_offset < -5",
        "_offset BETWEEN 9 AND 10",
        f"_produced_at >= TIMESTAMP'{middle}'",
        f"_produced_at < TIMESTAMP'{middle}' AND _offset > 7",
        f"_produced_at = TIMESTAMP'{middle}'",
        "_produced_at > TIMESTAMP'9999-01-01'",
        "_produced_at < TIMESTAMP'1960-01-01'",
    ]
    wanted = {condition: ids(lab.read().where(condition).collect()) for condition in conditions}
    with lab.setting("spark.sql.python.filterPushdown.enabled", "true"):
        for condition in conditions:
            frame = lab.read(pushFilters="true").where(condition)
            assert ids(frame.collect()) == wanted[condition], condition
        narrow = lab.read(pushFilters="true", maxRecordsPerPartition=1).where("_offset >= 27 AND _offset < 29")
        assert narrow.rdd.getNumPartitions() == 2, "only the rows in question are planned"


def test_minPartitions_and_maxRecordsPerPartition_split_a_replay(lab: Lab) -> None:
    lab.publish(0, 100)
    for options, tasks in (({}, 1), ({"minPartitions": 7}, 7), ({"maxRecordsPerPartition": 9}, 12), ({"minPartitions": 3, "maxRecordsPerPartition": 50}, 3)):
        frame = lab.read(**options)
        assert frame.rdd.getNumPartitions() == tasks
        assert ids(frame.collect()) == consecutive(0, 100), "in order, task after task"
    partitions: list[int] = []

    def count(batch: Any, _: int) -> None:
        partitions.append(batch.rdd.getNumPartitions())

    seen = lab.drain(lab.stream(startingOffsets="earliest", minPartitions=5), seen=Seen(count))
    assert seen.offsets == consecutive(0, 100)
    assert partitions == [5]


def test_sql_over_the_same_table_by_delta(lab: Lab) -> None:
    lab.publish(0, 10)
    lab.publish(10, 30)
    table = f"delta.`{lab.path}/t/outbox`"
    assert lab.spark.sql(f"SELECT sum(id) AS total FROM {table} WHERE _offset >= 5").head()["total"] == sum(range(5, 30))
    joined = lab.read().join(lab.spark.table(table).select("_offset", "id"), ["_offset", "id"])
    assert joined.count() == 30
