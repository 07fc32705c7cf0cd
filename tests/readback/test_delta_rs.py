"""delta-rs reads every kind of commit: rows, schema, history, time travel, skipping."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, QueryBuilder

from offsets import OffsetRange
from tests.conftest import Place
from tests.log.orders import append, created, filled
from tests.log.test_append import EVERY_TYPE
from tests.readback.every_commit import RELEASED, build
from trigger_outbox import Batch, Outbox, Rows


@pytest.fixture(scope="module")
def outbox(tmp_path_factory: pytest.TempPathFactory) -> Outbox:
    made = build(tmp_path_factory.mktemp("every"))
    made.release()
    return made


def delta(outbox: Outbox, version: int | None = None) -> DeltaTable:
    return DeltaTable(outbox.follower.store.url, version=version)


@pytest.mark.parametrize("number", range(len(RELEASED)), ids=[version.kind for version in RELEASED])
def test_every_version_reads_as_written(outbox: Outbox, number: int) -> None:
    expected = RELEASED[number]
    log = delta(outbox, number)
    rows = log.to_pyarrow_table()
    assert sorted(rows.column("_offset").to_pylist()) == list(expected.offsets)
    assert tuple(rows.schema.names) == expected.columns
    assert log.count() == len(expected.offsets)
    assert log.transaction_version("trigger.offset") == (max(expected.offsets) + 1 if expected.offsets else 0)


def test_history_names_every_operation(outbox: Outbox) -> None:
    history = delta(outbox).history()
    assert [entry["operation"] for entry in reversed(history)] == [version.operation for version in RELEASED]
    assert all(entry["engineInfo"].startswith("pyspark-trigger/") for entry in history)


def test_the_users_transaction_is_there(outbox: Outbox) -> None:
    assert delta(outbox).transaction_version("query \u2028 ü") == 7


def test_the_guard_is_a_feature_of_writers_alone(outbox: Outbox) -> None:
    guarded, released = delta(outbox, 2).protocol(), delta(outbox).protocol()
    assert (guarded.min_reader_version, guarded.min_writer_version, guarded.reader_features) == (1, 7, None)
    assert "triggerOutbox" in (guarded.writer_features or [])
    assert "triggerOutbox" not in (released.writer_features or [])
    assert released.reader_features == ["timestampNtz"], "the column that came needs it"


def test_the_order_of_rows_is_that_of_offsets(outbox: Outbox) -> None:
    for file in pa.table(delta(outbox).get_add_actions(flatten=True)).to_pylist():
        rows = ds.dataset(f"{outbox.follower.store.url}/{file['path']}").to_table()
        assert rows.column("_offset").to_pylist() == list(range(file["min._offset"], file["max._offset"] + 1))
        assert file["num_records"] == rows.num_rows


def test_files_are_skipped_by_offset(tmp_path: Path) -> None:
    outbox = filled(Place(str(tmp_path)), 4)
    for file in (outbox.state.files[0], outbox.state.files[3]):
        (Path(outbox.follower.store.url) / file.path).unlink()
    wanted = (ds.field("_offset") >= 1) & (ds.field("_offset") < 3)
    assert sorted(delta(outbox).to_pyarrow_dataset().to_table(filter=wanted).column("id").to_pylist()) == [1, 2]


def test_a_time_filter_loses_no_row(tmp_path: Path) -> None:
    """Statistics have milliseconds, rows have microseconds: a file must not be skipped for that."""
    outbox = filled(Place(str(tmp_path)), 5)
    rows = pa.Table.from_batches(outbox.read(OffsetRange(0, 5)))
    log = delta(outbox)
    for offset, moment in enumerate(rows.column("_produced_at")):
        found = log.to_pyarrow_dataset().to_table(filter=ds.field("_produced_at") >= moment)
        assert offset in found.column("_offset").to_pylist()
        sql = f"SELECT _offset FROM log WHERE _produced_at >= '{moment.as_py().isoformat()}' ORDER BY _offset"
        asked = pa.table(QueryBuilder().register("log", log).execute(sql).read_all())
        assert offset in asked.column("_offset").to_pylist()


def test_A15_every_type_is_delta_rs_own(tmp_path: Path) -> None:
    outbox = created(Place(str(tmp_path)), schema=EVERY_TYPE.schema)
    outbox.append(Batch(Rows.of(EVERY_TYPE), EVERY_TYPE.schema))
    rows = delta(outbox).to_pyarrow_table().select(EVERY_TYPE.schema.names)
    assert repr(rows.to_pylist()) == repr(EVERY_TYPE.to_pylist())


def test_a_checkpoint_by_us_is_read_by_all(tmp_path: Path) -> None:
    outbox = build(tmp_path)
    assert outbox.checkpoint()
    append(outbox, 9)
    log = delta(outbox)
    assert sorted(log.to_pyarrow_table().column("_offset").to_pylist()) == [3, 4, 5, 6, 7, 8, 9]
    assert log.transaction_version("trigger.earliest") == 4
