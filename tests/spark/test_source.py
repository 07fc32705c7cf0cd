"""Spark's stream reader: what it admits, when it ends, and what wakes it."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pyarrow as pa
import pytest

from offsets import OFFSET_MAX, OffsetRange, StreamOffset
from pyspark_trigger.source import DefaultSource
from tests.spark.lab import DEADLINE_S, Lab, Seen, consecutive, ids, refused
from trigger_broker import connect
from trigger_broker.rendezvous import base_directory, peers, topic_directory
from trigger_core.wakeup import Wakeup
from trigger_outbox import Outbox
from trigger_outbox.encode import encode_payload
from trigger_source.partition import ColdPartition, HotPartition


def test_B13_two_queries_at_once_each_see_all(lab: Lab) -> None:
    lab.publish(0, 10)
    first, first_seen = lab.watch(lab.stream(startingOffsets="earliest"), "one")
    second, second_seen = lab.watch(lab.stream(startingOffsets="5"), "two")
    first_seen.wait(first, 10)
    second_seen.wait(second, 5)
    for start in range(10, 20):
        lab.publish(start, start + 1)
    first_seen.wait(first, 20)
    second_seen.wait(second, 15)
    assert first_seen.offsets == consecutive(0, 20)
    assert second_seen.offsets == consecutive(5, 20)


def test_B14_AvailableNow_ends_at_the_head_it_saw_at_its_start_though_a_writer_is_fast(lab: Lab) -> None:
    lab.publish(0, 10)
    start = [10]

    def write_more(frame: Any, batch: int) -> None:
        lab.publish(start[0], start[0] + 5)
        start[0] += 5

    seen = lab.drain(lab.stream(startingOffsets="earliest", maxOffsetsPerTrigger=3), seen=Seen(write_more))
    assert seen.sizes == [3, 3, 3, 1]
    assert seen.offsets == consecutive(0, 10)
    assert lab.drain(lab.stream()).offsets == consecutive(10, 30)
    assert lab.drain(lab.stream()).rows == [], "also with nothing new"


def test_B14_AvailableNow_goes_on_after_a_failure_inside_it(lab: Lab) -> None:
    lab.publish(0, 10)
    frame = lab.stream(startingOffsets="earliest", maxOffsetsPerTrigger=4)

    def fail_in_the_second(_: Any, batch: int) -> None:
        if batch == 1:
            raise RuntimeError("in batch 1")

    seen = Seen(fail_in_the_second)
    with pytest.raises(Exception, match="in batch 1"):
        lab.drain(frame, seen=seen)
    lab.publish(10, 12)
    again = lab.drain(frame)
    assert seen.offsets == consecutive(0, 4)
    assert again.offsets == consecutive(4, 12), "the batch that failed, then what is available by now"
    assert again.batches[0][0] == 1


def test_B15_maxOffsetsPerTrigger_holds_across_restarts_and_once_ignores_it(lab: Lab) -> None:
    lab.publish(0, 7)
    limited = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": 3}
    assert lab.drain(lab.stream(**limited)).sizes == [3, 3, 1]
    lab.publish(7, 12)
    assert lab.drain(lab.stream(**limited)).sizes == [3, 2]
    lab.publish(12, 22)
    once = lab.drain(lab.stream(**limited), once=True)
    assert once.sizes == [10]
    assert once.offsets == consecutive(12, 22)


def test_B16_minOffsetsPerTrigger_holds_back_until_there_are_enough_or_maxTriggerDelay_is_over(lab: Lab) -> None:
    lab.publish(0, 1)
    patient, patient_seen = lab.watch(lab.stream(startingOffsets="earliest", minOffsetsPerTrigger=5, wakeupWaitMs=10), "patient")
    hasty, hasty_seen = lab.watch(
        lab.stream(startingOffsets="earliest", minOffsetsPerTrigger=1000, maxTriggerDelay="500ms", wakeupWaitMs=10), "hasty"
    )
    patient_seen.wait(patient, 1)  # a first batch is not held back
    hasty_seen.wait(hasty, 1)
    lab.publish(1, 4)
    hasty_seen.wait(hasty, 4)  # the delay is over
    assert patient_seen.offsets == [0], "held back: the default delay is a quarter of an hour"
    lab.publish(4, 7)
    patient_seen.wait(patient, 7)
    assert patient_seen.sizes == [1, 6]


def test_maxBytesPerTrigger_admits_whole_files_and_always_moves(lab: Lab) -> None:
    for start in range(0, 30, 10):
        lab.publish(start, start + 10)
    assert lab.drain(lab.stream(startingOffsets="earliest", maxBytesPerTrigger=1)).offsets == consecutive(0, 30)
    size = lab.topic().describe().bytes // 3
    seen = lab.drain(lab.stream(startingOffsets="earliest", maxBytesPerTrigger=size + size // 2), "by-file")
    assert seen.sizes == [10, 10, 10]


def test_B17_both_scans_of_a_self_union_and_a_self_join_agree(lab: Lab) -> None:
    lab.publish(0, 9)
    stream = lab.stream(startingOffsets="earliest", maxOffsetsPerTrigger=4)

    def write_more(frame: Any, batch: int) -> None:
        lab.publish(9 + batch, 10 + batch)

    union = lab.drain(stream.union(stream), "union", seen=Seen(write_more))
    assert sorted(union.offsets) == sorted(2 * consecutive(0, 9))
    assert all(sorted(ids(rows))[::2] == sorted(ids(rows))[1::2] for _, rows in union.batches)
    left, right = stream.select("_offset"), stream.selectExpr("_offset AS other", "id")
    joined = lab.drain(left.join(right, left["_offset"] == right["other"]), "join")
    assert sorted(joined.offsets) == consecutive(0, 12)


def test_C1_a_cache_that_is_far_too_small_loses_nothing(lab: Lab) -> None:
    lab.publish(0, 1)
    query, seen = lab.watch(lab.stream(startingOffsets="earliest", cacheBytes=2000, maxOffsetsPerTrigger=7))
    seen.wait(query, 1)
    for start in range(1, 61, 3):
        lab.publish(start, start + 3)
    seen.wait(query, 61)
    assert seen.offsets == ids(seen.rows) == consecutive(0, 61)


def test_C10_compaction_and_vacuum_under_a_running_reader_with_delta_reading_beside_it(lab: Lab) -> None:
    for start in range(0, 40, 2):
        lab.publish(start, start + 2)
    table = f"delta.`{lab.path}/t/outbox`"
    counted: list[int] = []

    def maintain(frame: Any, batch: int) -> None:
        lab.publish(40 + 2 * batch, 42 + 2 * batch)
        lab.topic().compact()
        lab.topic().vacuum(retention_hours=0)
        counted.append(lab.spark.sql(f"SELECT count(*) FROM {table}").head()[0])

    seen = lab.drain(lab.stream(startingOffsets="earliest", maxOffsetsPerTrigger=15), seen=Seen(maintain))
    assert seen.offsets == ids(seen.rows) == consecutive(0, 40)
    assert counted == [42, 44, 46]
    assert lab.topic().verify().ok


def test_C11_wakeups_that_are_forged_doubled_garbled_or_out_of_order_neither_invent_nor_move(lab: Lab) -> None:
    lab.publish(0, 3)
    query, seen = lab.watch(lab.stream(startingOffsets="earliest", pollIntervalMs=200))
    seen.wait(query, 3)
    version = lab.topic().describe().version
    ref = lab.ref()
    other_rows = encode_payload(iter([_table([90, 91])]), _schema(lab), 10_000)
    assert other_rows is not None
    with connect("local:") as liar:
        forged = [
            Wakeup(version + 1, ref.topic_id, 3, 5, ref.schema, payload=other_rows),  # the right range, other rows, too early
            Wakeup(version + 7, ref.topic_id, 100, 200, ref.schema),  # past the head
            Wakeup(version, ref.topic_id, 0, 3, ref.schema, payload=other_rows),  # a commit there is, other rows
            Wakeup(0, ref.topic_id, 0, 1, ref.schema),
            Wakeup(version + 1, "another-table", 3, 5, ref.schema, payload=other_rows),
        ]
        for wakeup in [*forged, *reversed(forged)]:
            liar.publish(wakeup, 100)
        liar.publish_raw(ref.topic_id, b"TRG1 and then nothing that makes sense", 100)
        liar.publish_raw(ref.topic_id, b"\x00" * 1000, 100)
        lab.publish(3, 5)
        for wakeup in forged:
            liar.publish(wakeup, 100)
        lab.publish(5, 6)
    seen.wait(query, 6)
    assert seen.offsets == ids(seen.rows) == consecutive(0, 6)
    assert [position["next"] for position in lab.positions()][-1] == 6


def test_C12_a_payload_evicted_after_latestOffset_or_after_partitions_is_served_whole_by_delta(lab: Lab) -> None:
    lab.publish(0, 3)
    source = DefaultSource(lab.source(startingOffsets="earliest"))
    reader: Any = source.streamReader(source.schema())
    try:
        start = reader.latestOffset(reader.initialOffset())
        lab.publish(3, 6)
        _until(lambda: reader.latestOffset(start) != start)
        end = reader.latestOffset(start)
        _until(lambda: bool(reader.tail.hot(OffsetRange(0, OFFSET_MAX))) or reader.tail.wait(OFFSET_MAX, 100) < 0)
        (hot,) = reader.partitions(start, end)
        assert isinstance(hot, HotPartition)
        rows = _rows(reader, hot)
        reader.tail.forget(OFFSET_MAX)  # between `latestOffset` and `partitions`
        (cold,) = reader.partitions(start, end)
        assert isinstance(cold, ColdPartition)
        assert _rows(reader, cold) == rows
        assert _rows(reader, hot) == rows, "between `partitions` and `read`: the rows travel with the partition"
        lab.publish(6, 7)
        lab.topic().compact()
        lab.topic().vacuum(retention_hours=0)
        assert _rows(reader, cold) == rows, "the file that was planned is gone, the rows are not"
        assert [row["id"] for row in rows] == [3, 4, 5]
    finally:
        reader.stop()


def test_F4_stop_leaves_no_process_that_listens_and_no_socket(lab: Lab) -> None:
    lab.publish(0, 3)
    ref = lab.ref()
    directory = topic_directory(base_directory(), ref.topic_id)
    query, seen = lab.watch(lab.stream(startingOffsets="earliest"))
    seen.wait(query, 3)
    assert len(peers(base_directory(), ref.topic_id, alive=True)) == 1
    query.stop()
    _until(lambda: peers(base_directory(), ref.topic_id, alive=True) == [])
    lab.publish(3, 4)  # whoever comes next takes away what a killed process left
    assert not os.path.exists(directory) or os.listdir(directory) == []


def test_progress_shows_how_far_the_query_is_behind(lab: Lab) -> None:
    lab.publish(0, 10)
    query, seen = lab.watch(lab.stream(startingOffsets="earliest", maxOffsetsPerTrigger=4))
    seen.wait(query, 10)
    progress = [each for each in query.recentProgress if each["numInputRows"]]
    source = progress[0]["sources"][0]
    assert StreamOffset.parse(source["endOffset"]).position("t").next == 4
    assert StreamOffset.parse(source["latestOffset"]).position("t").next == 10


def test_options_that_cannot_be_meant_are_refused_before_the_first_batch(lab: Lab) -> None:
    lab.publish(0, 3)
    refused(lambda: lab.stream("nope"), "TopicNotFound", "'nope'")
    refused(lambda: lab.stream(startingOfsets="earliest"), "InvalidOption", "'startingofsets'", "'startingOffsets'")
    refused(lambda: lab.stream(maxOffsetsPerTrigger="-1"), "InvalidOption", "maxOffsetsPerTrigger", "at least 1")
    refused(lambda: lab.stream(startingOffsets="-1"), "InvalidOffset", "-1")
    refused(lambda: lab.stream(startingOffsets=2**63), "InvalidOffset", str(2**63))
    refused(lambda: lab.stream(startingOffsets="0", startingTimestamp="0"), "InvalidOption", "both say where to start")
    refused(lambda: lab.stream(minOffsetsPerTrigger=5, maxOffsetsPerTrigger=3), "InvalidOption", "minOffsetsPerTrigger 5")
    refused(lambda: lab.stream(columns="id,nope"), "SchemaMismatch", "'nope'")
    refused(lambda: lab.stream(consumer="c"), "InvalidOption", "'consumer'", "not available yet")
    refused(lambda: lab.stream("../t"), "InvalidName", "'../t'")
    refused(lambda: lab.drain(lab.stream(endingOffsets="3")), "InvalidOption", "'endingOffsets'", "batch jobs only")
    refused(lambda: lab.drain(lab.stream(startingOffsets="4")), "InvalidOffset", "startingOffsets 4", "head 3")
    refused(lambda: lab.drain(lab.stream(broker="nats://user:secret@host")), "InvalidOption", "broker.user")
    refused(lambda: lab.read(maxOffsetsPerTrigger="3").count(), "InvalidOption", "'maxOffsetsPerTrigger'", "streams only")


def _table(values: list[int]) -> Any:
    return pa.table({"id": pa.array(values, pa.int64())})


def _schema(lab: Lab) -> Any:
    return Outbox.open(lab.path, "t").state.metadata.schema


def _rows(reader: Any, partition: Any) -> list[dict[str, Any]]:
    return [row for batch in reader.read(partition) for row in batch.to_pylist()]


def _until(condition: Any) -> None:
    deadline = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("the condition did not come true")
        pause.wait(0.02)
