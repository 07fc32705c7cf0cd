"""delta-spark reads every kind of commit: SQL, history, time travel, skipping, its own stream source. The guard keeps it from writing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from offsets import OffsetRange
from tests.conftest import Place
from tests.log.orders import append, assert_sound, created, filled, ids, listing, reopened
from tests.log.test_append import EVERY_TYPE
from tests.readback.every_commit import RELEASED, build
from trigger_core.errors import OutboxDamaged
from trigger_outbox import Batch, Outbox, Rows


@pytest.fixture(scope="module")
def outbox(tmp_path_factory: pytest.TempPathFactory) -> Outbox:
    made = build(tmp_path_factory.mktemp("every"))
    made.release()
    return made


def name(outbox: Outbox) -> str:
    """The table in SQL."""
    return f"delta.`{outbox.follower.store.url}`"


def offsets(spark: Any, query: str) -> list[int]:
    return sorted(row[0] for row in spark.sql(query).collect())


@pytest.mark.parametrize("number", range(len(RELEASED)), ids=[version.kind for version in RELEASED])
def test_every_version_reads_as_written(engine_spark: Any, outbox: Outbox, number: int) -> None:
    expected = RELEASED[number]
    at = f"{name(outbox)} VERSION AS OF {number}"
    assert engine_spark.sql(f"SELECT count(*) FROM {at}").first()[0] == len(expected.offsets)
    assert offsets(engine_spark, f"SELECT _offset FROM {at}") == list(expected.offsets)
    assert tuple(engine_spark.sql(f"SELECT * FROM {at}").columns) == expected.columns


def test_history_names_every_operation(engine_spark: Any, outbox: Outbox) -> None:
    history = engine_spark.sql(f"DESCRIBE HISTORY {name(outbox)}").orderBy("version").collect()
    assert [row.version for row in history] == list(range(len(RELEASED)))
    assert [row.operation for row in history] == [version.operation for version in RELEASED]
    assert all(row.engineInfo.startswith("pyspark-trigger/") for row in history)
    assert history[1].operationMetrics["numOutputRows"] == "3"
    assert history[5].operationParameters["predicate"] == '["_offset < 4"]'


def test_the_table_is_described(engine_spark: Any, outbox: Outbox) -> None:
    detail = engine_spark.sql(f"DESCRIBE DETAIL {name(outbox)}").first()
    assert (detail.format, detail.numFiles, detail.id) == ("delta", len(outbox.state.files), outbox.state.table_id)
    columns = {row.col_name: row.data_type for row in engine_spark.sql(f"DESCRIBE {name(outbox)}").collect()}
    assert columns["_offset"] == "bigint" and columns["at"] == "timestamp_ntz"


def test_files_are_skipped_by_offset(engine_spark: Any, tmp_path: Path) -> None:
    """The files that a query need not read are gone: it does not notice."""
    outbox = filled(Place(str(tmp_path)), 4)
    for file in (outbox.state.files[0], outbox.state.files[3]):
        (Path(outbox.follower.store.url) / file.path).unlink()
    assert offsets(engine_spark, f"SELECT _offset FROM {name(outbox)} WHERE _offset >= 1 AND _offset < 3") == [1, 2]


def test_a_time_filter_loses_no_row(engine_spark: Any, tmp_path: Path) -> None:
    outbox = filled(Place(str(tmp_path)), 3)
    rows = pa.Table.from_batches(outbox.read(OffsetRange(0, 3)))
    for offset, moment in enumerate(rows.column("_produced_at").cast(pa.int64()).to_pylist()):
        found = offsets(engine_spark, f"SELECT _offset FROM {name(outbox)} WHERE _produced_at >= timestamp_micros({moment})")
        assert offset in found


def test_A15_every_type_is_sparks_own(engine_spark: Any, tmp_path: Path) -> None:
    outbox = created(Place(str(tmp_path)), schema=EVERY_TYPE.schema)
    outbox.append(Batch(Rows.of(EVERY_TYPE), EVERY_TYPE.schema))
    rows = engine_spark.sql(f"SELECT * FROM {name(outbox)} ORDER BY _offset").toArrow().select(EVERY_TYPE.schema.names)
    assert repr(rows.to_pylist()) == repr(EVERY_TYPE.to_pylist())


# ── Delta's own stream source ────────────────────────────────────────────────────────────────────────────────────────────────


def drain(spark: Any, outbox: Outbox, folder: Path, **options: str) -> list[int]:
    """Streams what is new into a plain folder and returns all that has ever arrived there."""
    stream = spark.readStream.format("delta").options(**options).load(outbox.follower.store.url)
    query = (
        stream.select("_offset")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "rows"))
    )
    query.awaitTermination()
    return sorted(row[0] for row in spark.read.parquet(str(folder / "rows")).collect())


def test_deltas_stream_source_sees_each_row_once_across_merges(engine_spark: Any, tmp_path: Path) -> None:
    outbox = filled(Place(str(tmp_path / "topics")), 3)
    assert drain(engine_spark, outbox, tmp_path) == [0, 1, 2]
    append(outbox, 3)
    outbox.compact(files_min=2)
    append(outbox, 4)
    outbox.checkpoint()
    assert drain(engine_spark, outbox, tmp_path) == [0, 1, 2, 3, 4]
    outbox.trim(2)
    append(outbox, 5)
    assert drain(engine_spark, outbox, tmp_path, ignoreDeletes="true") == [0, 1, 2, 3, 4, 5]


def test_C10_delta_spark_reads_streams_and_travels_beside_maintenance(engine_spark: Any, tmp_path: Path) -> None:
    outbox = filled(Place(str(tmp_path / "topics")), 2)
    for number in range(3):
        running = engine_spark.sql(f"SELECT _offset FROM {name(outbox)}").toLocalIterator()
        held, seen = outbox.state.end, [next(running)[0]]
        append(outbox, outbox.state.end)
        append(outbox, outbox.state.end)
        travelled_to, rows = outbox.state.version, outbox.state.end
        assert outbox.compact(files_min=2) > 1
        outbox.vacuum()
        if number == 1:
            assert outbox.checkpoint()
        seen.extend(row[0] for row in running)
        assert sorted(seen) == list(range(held)), "the version it began with: removed files are kept for the retention"
        assert offsets(engine_spark, f"SELECT _offset FROM {name(outbox)}") == list(range(rows))
        before = f"{name(outbox)} VERSION AS OF {travelled_to}"
        assert engine_spark.sql(f"SELECT count(*), max(_offset) FROM {before}").first()[:] == (rows, rows - 1)
        assert drain(engine_spark, outbox, tmp_path) == list(range(rows))
    assert_sound(outbox, rows=8)


# ── C14: the guard ───────────────────────────────────────────────────────────────────────────────────────────────────────────

WRITES: dict[str, str] = {
    "append": "INSERT INTO {log} VALUES (99, timestamp'2026-01-01', 99, 'x')",
    "overwrite": "INSERT OVERWRITE {log} VALUES (99, timestamp'2026-01-01', 99, 'x')",
    "OPTIMIZE": "OPTIMIZE {log}",
    "DELETE": "DELETE FROM {log} WHERE _offset < 2",
    "UPDATE": "UPDATE {log} SET name = 'x' WHERE _offset = 1",
    "VACUUM": "VACUUM {log} RETAIN 0 HOURS",
    "ALTER": "ALTER TABLE {log} ADD COLUMNS (more STRING)",
    "RESTORE": "RESTORE TABLE {log} TO VERSION AS OF 2",
}


def prepared(place: Place) -> Outbox:
    """Four rows, one file that VACUUM would take, two that OPTIMIZE would merge."""
    outbox = filled(place, 3)
    assert outbox.compact(files_min=2) == 3
    append(outbox, 3)
    return outbox


@pytest.mark.parametrize("what", WRITES)
def test_C14_the_guard_refuses_delta_spark(engine_spark: Any, tmp_path: Path, what: str) -> None:
    place = Place(str(tmp_path))
    outbox = prepared(place)
    before = listing(place)
    with pytest.raises(Exception, match="triggerOutbox"):
        engine_spark.sql(WRITES[what].format(log=name(outbox))).collect()
    left = {key for key in listing(place) if not key.endswith(".crc")}
    assert left >= before.keys(), "nothing is gone"
    assert all(key.endswith(".snappy.parquet") for key in left - before.keys()), "no commit: Spark writes its rows before it asks"
    assert append(reopened(place), 4).range == OffsetRange(4, 5)
    assert_sound(outbox, rows=5)


@pytest.mark.parametrize("what", WRITES)
def test_C14_after_release_delta_spark_may_and_damage_is_noticed(engine_spark: Any, tmp_path: Path, what: str) -> None:
    place = Place(str(tmp_path))
    outbox, follower = prepared(place), reopened(place)
    outbox.release()
    engine_spark.sql(WRITES[what].format(log=name(outbox))).collect()
    readers: list[Callable[[], list[int]]] = [lambda: ids(follower), lambda: ids(reopened(place))]
    for reader in readers:
        if what in ("append", "overwrite", "DELETE", "RESTORE"):
            with pytest.raises(OutboxDamaged):
                reader()
        else:
            assert reader() == [0, 1, 2, 3]
    assert engine_spark.sql(f"SELECT count(*) FROM {name(outbox)}").first()[0] > 0
