"""Spark's writers: batches become commits, once each, and readers are told after each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructField, StructType

import pyspark_trigger as trigger
from tests.spark.lab import DEADLINE_S, NEVER_MS, Lab, consecutive, ids, refused, wakeups

ROWS_PER_BATCH = 3


def batches_in(lab: Lab, count: int, **options: Any) -> Any:
    """A stream of so many micro-batches of `ROWS_PER_BATCH` rows, `id` counted from 0."""
    lab.publish(0, count * ROWS_PER_BATCH, "in", broker="none:")
    return lab.stream("in", startingOffsets="earliest", maxOffsetsPerTrigger=ROWS_PER_BATCH, broker="none:", **options).select("id")


def test_A1_a_hundred_batches_are_contiguous_from_0(lab: Lab) -> None:
    files = lab.folder / "files"
    files.mkdir()
    for n in range(100):
        path = files / f"{n:03}.json"
        path.write_text(f'{{"id": {2 * n}}}\n{{"id": {2 * n + 1}}}\n')
        os.utime(path, (n, n))  # Spark's file source goes by age
    frame = lab.spark.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).json(str(files))
    lab.pour(frame)
    rows = lab.read().orderBy("_offset").collect()
    assert [row["_offset"] for row in rows] == ids(rows) == consecutive(0, 200)
    commits = list((Path(lab.path) / "t/outbox/_delta_log").glob("*.json"))
    assert len(commits) >= 101, "the topic's beginning, then a commit a batch, then merges"
    audit = lab.topic().verify()
    assert audit.end == 200


def test_A2_A8_mergeSchema_other_columns_are_refused_and_an_empty_batch_writes_nothing(lab: Lab) -> None:
    spark = lab.spark
    lab.write(spark.range(3))
    version = lab.topic().describe().version
    refused(lambda: lab.write(spark.range(3).selectExpr("id", "'x' AS note")), "SchemaMismatch", "'note'", "mergeSchema")
    refused(lambda: lab.write(spark.range(3).selectExpr("cast(id AS string) AS id")), "SchemaMismatch", "'id'", "cast it")
    stream = batches_in(lab, 1).selectExpr("id", "'x' AS note")
    refused(lambda: lab.pour(stream), "SchemaMismatch", "'note'", "mergeSchema")
    lab.write(spark.range(3).where("id > 10"))  # A8
    assert lab.topic().describe().version == version, "the log is untouched"
    lab.write(spark.range(3, 5).selectExpr("'x' AS note", "id"), mergeSchema="true")
    rows = lab.read().orderBy("_offset").collect()
    assert [(row["id"], row["note"]) for row in rows] == [(0, None), (1, None), (2, None), (3, "x"), (4, "x")]


def test_A8_a_stream_of_empty_batches_creates_the_topic_and_uses_no_offset(lab: Lab) -> None:
    lab.pour(batches_in(lab, 2).where("id >= 3"))
    rows = lab.read().collect()
    assert [(row["_offset"], row["id"]) for row in rows] == [(0, 3), (1, 4), (2, 5)]
    lab.pour(batches_in(lab, 1).where("id < 0"), "empty", "empty")
    assert lab.topic("empty").head() == 0
    assert lab.read("empty").collect() == []


def test_A3_a_type_that_delta_cannot_hold_names_the_column(lab: Lab) -> None:
    one = lab.spark.range(1)
    for expression in ("interval '1' month", "interval '1' day", "parse_json('1')", "array(parse_json('1'))", "null"):
        refused(lambda expression=expression: lab.write(one.selectExpr(f"{expression} AS strange")), "UnsupportedType", "'strange", "cast it")
    assert trigger.topics(lab.path) == []


def test_reserved_repeated_and_unstorable_column_names_are_refused(lab: Lab) -> None:
    one = lab.spark.range(1)
    refused(lambda: lab.write(one.selectExpr("id AS _offset")), "ReservedColumn", "'_offset'")
    refused(lambda: lab.write(one.selectExpr("id", "id AS _Tenant")), "ReservedColumn", "'_Tenant'")
    refused(lambda: lab.write(one.selectExpr("id", "id AS ID")), "SchemaMismatch", "'id' and 'ID'")
    refused(lambda: lab.write(one.selectExpr("id", "id AS id")), "SchemaMismatch", "'id' and 'id'")
    refused(lambda: lab.write(one.selectExpr("id AS `a b`")), "SchemaMismatch", "'a b'")
    assert trigger.topics(lab.path) == []


def test_overwrite_and_output_modes_other_than_append_are_refused(lab: Lab) -> None:
    lab.write(lab.spark.range(3))
    refused(lambda: lab.write(lab.spark.range(3), mode="overwrite"), "InvalidOption", "append-only", 'mode("append")')
    counts = batches_in(lab, 1).groupBy("id").count()
    refused(lambda: lab.pour(counts, "counts", output="complete"), "InvalidOption", "append-only", 'outputMode("append")')
    with pytest.raises(Exception, match="does not support Update mode"):  # Spark's own words
        lab.pour(counts, "counts", "update", output="update")
    with pytest.raises(Exception, match="Append"):  # Spark's default mode is to fail if the table exists
        lab.write(lab.spark.range(3), mode="errorifexists")
    assert lab.topic().head() == 3


def test_A5_everything_torn_down_and_rebuilt_from_storage(lab: Lab) -> None:
    script = f"import pyspark_trigger as trigger\nfor n in range(64): trigger.publish({lab.path!r}, 't', [{{'id': n}}])"
    repository = str(Path(trigger.__file__).parent.parent)
    path = os.pathsep.join(part for part in (repository, os.environ.get("PYTHONPATH", "")) if part)
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "PYTHONPATH": path}, timeout=DEADLINE_S)
    assert ids(lab.drain(lab.stream(startingOffsets="earliest")).rows) == consecutive(0, 64)
    lab.write(lab.spark.range(64, 65))
    assert lab.topic().head() == 65
    assert [(row["_offset"], row["id"]) for row in lab.read(startingOffsets=63).collect()] == [(63, 63), (64, 64)]


def test_A6_A7_a_batch_that_spark_runs_again_adds_no_rows_and_sends_its_wakeup_again(lab: Lab) -> None:
    stream = batches_in(lab, 3)
    lab.pour(stream)
    before = lab.topic().describe()
    assert before.end == 9
    lab.forget("commits", lab.last("commits", "writer"), "writer")
    listener = lab.listen()
    lab.publish(9, 12, "in", broker="none:")
    lab.pour(stream)
    found = wakeups(listener, lambda found: any(wakeup.end == 12 for wakeup in found))
    assert any(wakeup.end == 9 and wakeup.payload is None for wakeup in found), "the wakeup of the batch that was there"
    assert ids(lab.read().orderBy("_offset").collect()) == consecutive(0, 12)
    assert lab.topic().verify().end == 12


def test_A17_an_older_batch_of_a_checkpoint_that_was_rolled_back_is_refused(lab: Lab) -> None:
    stream = batches_in(lab, 3)
    lab.pour(stream)
    for batch in (2, 1):
        lab.forget("offsets", batch, "writer")
        lab.forget("commits", batch, "writer")
    refused(lambda: lab.pour(stream), "CheckpointRewound", "batch 1", "batch 2", "newer checkpoint")
    assert lab.topic().head() == 9


def test_A10_a_task_that_fails_leaves_no_rows_no_wakeup_and_nothing_staged(lab: Lab) -> None:
    lab.write(lab.spark.range(2))
    listener = lab.listen()
    staging = Path(lab.path) / "t" / "staging"

    def fail_once_another_has_staged(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            if batch.column(0)[0].as_py() == 2:
                deadline = time.monotonic() + DEADLINE_S
                while not any(path.suffix == ".arrow" for path in staging.rglob("*")) and time.monotonic() < deadline:
                    time.sleep(0.01)
                raise RuntimeError("the second task fails")
            yield batch

    frame = lab.spark.range(0, 4, numPartitions=2).mapInArrow(fail_once_another_has_staged, "id bigint")
    with pytest.raises(Exception, match="the second task fails"):
        lab.write(frame, inlineBytes=0)
    assert lab.staged() == []
    lab.publish(2, 4, "in")
    stream = lab.stream("in", startingOffsets="earliest").select("id").repartition(2).mapInArrow(_fail, "id bigint")
    with pytest.raises(Exception, match="every task fails"):
        lab.pour(stream, inlineBytes=0)
    assert lab.staged() == []
    assert lab.topic().head() == 2
    lab.write(lab.spark.range(2, 3))
    first = wakeups(listener, lambda found: len(found) > 0)[0]
    assert (first.start, first.end) == (2, 3), "the first wakeup is of the first batch that was committed"


def _fail(batches: Iterator[Any]) -> Iterator[Any]:
    for _ in batches:
        raise RuntimeError("every task fails")
    yield from ()


def test_A11_A12_E6_many_tasks_and_chunks_are_one_commit_and_one_wakeup_in_partition_order(lab: Lab) -> None:
    lab.write(lab.spark.range(1).selectExpr("id", "'x' AS filler"), wakeupPayloadBytes="1k")
    listener = lab.listen()
    query, seen = lab.watch(lab.stream(startingOffsets="earliest", pollIntervalMs=NEVER_MS))
    seen.wait(query, 1)
    frame = lab.spark.range(1, 4001, numPartitions=8).selectExpr("id", "repeat('x', 100) AS filler")
    with lab.setting("spark.sql.execution.arrow.maxRecordsPerBatch", "100"):
        lab.write(frame, inlineBytes="16k", wakeupPayloadBytes="1k")
    (wakeup,) = wakeups(listener, lambda found: len(found) > 0)
    assert (wakeup.start, wakeup.end, wakeup.payload) == (1, 4001, None), "too large to carry: a pointer"  # A11
    seen.wait(query, 4001)  # by the pointer alone, for this reader does not poll
    assert seen.offsets == ids(seen.rows) == consecutive(0, 4001)  # A12, E6
    assert lab.staged() == []


def test_A14_half_of_a_transaction_is_an_error_and_the_same_one_again_writes_nothing(lab: Lab) -> None:
    frame = lab.spark.range(3)
    for half in ({"txnAppId": "job"}, {"txnVersion": 1}):
        with pytest.raises(Exception, match="txnVersion and txnAppId must be specified|txnAppId and txnVersion go together"):
            lab.write(frame, **half)  # delta-spark, where it is installed, looks at these options of every format first
    refused(lambda: lab.write(frame, txnAppId="trigger.offset", txnVersion=1), "InvalidOption", "'trigger.'")
    refused(lambda: lab.pour(batches_in(lab, 1), txnAppId="job", txnVersion=1), "InvalidOption", "batch jobs only")
    lab.write(frame, txnAppId="job", txnVersion=5)
    lab.write(frame, txnAppId="job", txnVersion=5)
    lab.write(frame, txnAppId="job", txnVersion=4)
    assert lab.topic().head() == 3
    lab.write(frame, txnAppId="job", txnVersion=6)
    lab.write(frame, txnAppId="another job", txnVersion=5)
    assert lab.topic().head() == 9


TYPES = """
SELECT true AS flag, 1Y AS tiny, 2S AS small, 3 AS whole, 4L AS big, CAST(1.5 AS float) AS single, CAST('NaN' AS double) AS twice,
  CAST(12345678901234567890.123456789012345678 AS decimal(38,18)) AS exact, CAST(-0.01 AS decimal(4,2)) AS cents, 'text \\u00e9' AS text,
  X'00FF' AS raw, DATE'0001-01-01' AS day, TIMESTAMP'2026-11-18 12:00:00.123456+02:00' AS moment,
  TIMESTAMP_NTZ'1969-12-31 23:59:59.999999' AS wall, array(1, null, 3) AS list, map('a', 1L, 'b', null) AS pairs,
  named_struct('x', 1, 'y', named_struct('z', array(map('k', CAST(1.10 AS decimal(5,2)))))) AS nested
UNION ALL SELECT false, -128Y, -32768S, -2147483648, -9223372036854775807L, CAST('-Infinity' AS float), -0.0D,
  CAST(-99999999999999999999.999999999999999999 AS decimal(38,18)), 99.99, '', X'', DATE'9999-12-31', TIMESTAMP'1900-01-01 00:00:00Z',
  TIMESTAMP_NTZ'9999-12-31 23:59:59.999999', array(), map(), named_struct('x', null, 'y', null)
UNION ALL SELECT null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null
"""


def test_A15_every_type_that_delta_holds_round_trips_hot_and_cold(lab: Lab) -> None:
    frame = lab.spark.sql(TYPES).coalesce(1)
    wanted = [repr(row) for row in frame.collect()]
    lab.write(frame.where("1 = 0"))
    query, seen = lab.watch(lab.stream(startingOffsets="earliest", pollIntervalMs=NEVER_MS))
    seen.wait_until(query, lambda: bool(seen.batches), "batches")
    lab.write(frame)  # the reader is attached: this comes hot, in the wakeup
    seen.wait(query, 3)
    cold = lab.read()
    assert cold.drop("_offset", "_produced_at").schema == StructType([_nullable(field) for field in frame.schema])
    assert [repr(row) for row in cold.orderBy("_offset").drop("_offset", "_produced_at").collect()] == wanted
    assert [repr(row) for row in seen.rows] == [repr(row) for row in cold.orderBy("_offset").collect()]
    delta = lab.spark.read.format("delta").load(f"{lab.path}/t/outbox").orderBy("_offset")
    assert [repr(row) for row in delta.drop("_offset", "_produced_at").collect()] == wanted
    lab.pour(lab.stream(startingOffsets="earliest").drop("_offset", "_produced_at"), "copy")
    assert [repr(row) for row in lab.read("copy").orderBy("_offset").drop("_offset", "_produced_at").collect()] == wanted


def _nullable(field: Any) -> Any:
    """The same field as a topic has it: nullable at every level."""
    text = json.dumps(field.jsonValue())
    for name in ("nullable", "containsNull", "valueContainsNull"):
        text = text.replace(f'"{name}": false', f'"{name}": true')
    return StructField.fromJson(json.loads(text))


def test_A20_what_killed_tasks_and_queries_staged_is_swept_by_age(lab: Lab) -> None:
    lab.write(lab.spark.range(1))
    folder = Path(lab.path) / "t" / "staging"
    old, young = folder / "dead-query/3/0-0-a.arrow", folder / "live-query/7/0-0-b.arrow"
    for path in (old, young):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"rows")
    eight_days_ago = time.time() - 8 * 24 * 3600
    os.utime(old, (eight_days_ago, eight_days_ago))
    lab.pour(batches_in(lab, 1), inlineBytes=0)
    assert lab.staged() == [young], "the query's own staging and the abandoned one are gone, another query's is not"


def test_C3_the_broker_is_away_for_the_whole_run(lab: Lab) -> None:
    lab.pour(batches_in(lab, 2), broker="none:")
    query, seen = lab.watch(lab.stream(startingOffsets="earliest", broker="none:", pollIntervalMs=50))
    seen.wait(query, 6)
    lab.write(lab.spark.range(6, 9), broker="none:")
    seen.wait(query, 9)
    assert seen.offsets == ids(seen.rows) == consecutive(0, 9)


def test_a_wakeup_carries_the_rows_and_comes_after_the_commit(lab: Lab) -> None:
    lab.write(lab.spark.range(1))
    listener = lab.listen()
    lab.write(lab.spark.range(1, 4))
    (wakeup,) = wakeups(listener, lambda found: len(found) > 0)
    assert (wakeup.start, wakeup.end) == (1, 4)
    assert wakeup.payload is not None
    assert lab.topic().head() >= wakeup.end
