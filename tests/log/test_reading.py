"""Reading ranges: complete, in order, each row once, also while files are merged and vacuumed under the reader."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from offsets import OffsetRange, split
from tests.conftest import Place
from tests.log.orders import append, assert_sound, created, filled, ids, reopened, table
from trigger_core.errors import DataLoss, InvalidOffset, OutboxDamaged, SchemaMismatch
from trigger_outbox import Batch, Outbox, Rows, encode, maintain, read


def delta(outbox: Outbox) -> DeltaTable:
    return DeltaTable(outbox.follower.store.url, storage_options=dict(outbox.follower.store.options) or None)


def test_B1_earliest_reads_all(place: Place) -> None:
    outbox = filled(place, 5, rows=2)
    assert ids(reopened(place)) == list(range(10))
    rows = pa.Table.from_batches(outbox.read(OffsetRange(0, 10)))
    assert rows.column("_offset").to_pylist() == list(range(10))
    assert rows.schema.names == ["_offset", "_produced_at", "id", "name"]


def test_B3_resuming_anywhere_misses_none_and_repeats_none(place: Place) -> None:
    outbox = filled(place, 4, rows=3)
    for at in range(13):
        assert ids(outbox, OffsetRange(0, at)) + ids(outbox, OffsetRange(at, 12)) == list(range(12))
    pieces = split(OffsetRange(0, 12), 5)
    assert [number for piece in pieces for number in ids(outbox, piece)] == list(range(12))


def test_B3_the_same_range_is_the_same_rows_after_a_merge(place: Place) -> None:
    outbox = filled(place, 6, rows=2)
    before = pa.Table.from_batches(outbox.read(OffsetRange(3, 9)))
    assert outbox.compact(files_min=2) == 6
    append(outbox, 12)
    assert pa.Table.from_batches(outbox.read(OffsetRange(3, 9))).equals(before)


def test_B8_an_empty_range_is_no_rows_also_at_the_head(place: Place) -> None:
    outbox = filled(place, 2)
    for at in (0, 1, 2):
        assert list(outbox.read(OffsetRange(at, at))) == []


def test_B13_two_readers_each_see_all(place: Place) -> None:
    outbox = filled(place, 6)
    one, other = reopened(place), reopened(place)
    pairs = zip(one.read(OffsetRange(0, 6)), other.read(OffsetRange(0, 6)), strict=True)
    seen = [(left.column("id").to_pylist(), right.column("id").to_pylist()) for left, right in pairs]
    assert [number for left, right in seen for number in left if left == right] == list(range(6))
    append(outbox, 6)
    assert ids(one)[-1] == ids(other)[-1] == 6


def test_a_reader_follows_writers_commit_by_commit(place: Place) -> None:
    outbox = filled(place, 1)
    reader = reopened(place)
    assert reader.refresh() == []
    append(outbox, 1)
    outbox.compact(files_min=2)
    append(outbox, 2)
    news = reader.refresh()
    assert [(commit.version, commit.record.kind) for commit in news if commit.record] == [
        (2, "append"),
        (3, "compact"),
        (4, "append"),
    ]
    assert reader.state == outbox.state
    assert reader.follower.reopens == 1, "followed, not opened again"


def test_a_range_beyond_the_head_is_refused_until_it_is_written(place: Place) -> None:
    outbox, reader = filled(place, 2), reopened(place)
    with pytest.raises(InvalidOffset, match=r"beyond the head 2") as caught:
        list(reader.read(OffsetRange(0, 3)))
    assert caught.value.facts == {"requested": 3, "latest": 2}
    append(outbox, 2)
    assert ids(reader, OffsetRange(0, 3)) == [0, 1, 2]


def test_C5_T16_a_trimmed_range_is_data_loss_with_exact_numbers(place: Place) -> None:
    outbox, reader = filled(place, 4, rows=3), reopened(place)
    assert outbox.trim(5) == OffsetRange(0, 5)
    reader.refresh()
    with pytest.raises(DataLoss, match="offset 4 was trimmed: earliest is 5, latest is 12") as caught:
        list(reader.read(OffsetRange(4, 12)))
    assert caught.value.facts == {"requested": 4, "earliest": 5, "latest": 12}
    assert ids(reader) == list(range(5, 12)), "exact by the number, though row 4 is still in a file"
    assert list(reader.read(OffsetRange(0, 0))) == []


def test_columns_are_projected_and_the_offset_comes_along(place: Place) -> None:
    outbox = filled(place, 2)
    assert pa.Table.from_batches(outbox.read(OffsetRange(0, 2), ["name"])).schema.names == ["_offset", "name"]
    with pytest.raises(SchemaMismatch, match="'nmae' is not in the topic"):
        list(outbox.read(OffsetRange(0, 2), ["nmae"]))


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_B20_a_time_finds_the_first_row_at_or_after_it(place: Place) -> None:
    outbox = filled(place, 5, rows=2)
    rows = pa.Table.from_batches(outbox.read(OffsetRange(0, 10)))
    times = rows.column("_produced_at").cast(pa.int64()).to_pylist()
    moments = [0, times[0] - 1, *[time + shift for time in times for shift in (-1, 0, 1)], times[-1] + 1, times[-1] + 10**12]
    expected = [next((at for at, time in enumerate(times) if time >= moment), 10) for moment in moments]
    for _ in range(2):
        assert [outbox.offset_at(moment) for moment in moments] == expected
        assert [reopened(place).offset_at(moment) for moment in moments[::7]] == expected[::7]
        outbox.compact(files_min=2)
    outbox.trim(3)
    assert outbox.offset_at(0) == 3
    assert created(place, "empty").offset_at(0) == 0


# ── C10: files that vanish under a reader ────────────────────────────────────────────────────────────────────────────────────


def merge_and_vacuum(outbox: Outbox) -> None:
    """Two more rows, everything merged that can be, and every file gone that no longer counts."""
    for _ in range(2):
        append(outbox, outbox.state.end)
    assert outbox.compact(files_min=2) > 1
    outbox.vacuum(retention_hours=0)
    left = {entry.key for entry in outbox.follower.store.list() if entry.key.endswith(".parquet")}
    assert left == {file.path for file in outbox.state.files}


def test_C10_compaction_and_vacuum_under_a_running_reader(place: Place) -> None:
    outbox, reader = filled(place, 6), reopened(place)
    seen: list[int] = []
    for rows in reader.read(OffsetRange(0, 6)):
        seen.extend(rows.column("id").to_pylist())
        merge_and_vacuum(outbox)
    assert seen == list(range(6)), "each once, in order, over generations of files"
    outbox.refresh()
    assert ids(reader) == list(range(outbox.state.end))
    assert_sound(outbox)


def test_C10_a_trim_and_a_vacuum_under_a_running_reader(place: Place) -> None:
    outbox, reader = filled(place, 6), reopened(place)
    rows = reader.read(OffsetRange(0, 6))
    assert next(rows).column("id").to_pylist() == [0]
    outbox.trim(4)
    outbox.vacuum(retention_hours=0)
    with pytest.raises(DataLoss, match="earliest is 4"):
        list(rows)


def test_a_file_that_is_gone_for_good_is_damage(place: Place) -> None:
    outbox = filled(place, 3)
    outbox.follower.store.delete([outbox.state.files[1].path])
    rows = outbox.read(OffsetRange(0, 3))
    assert next(rows).column("id").to_pylist() == [0]
    with pytest.raises(OutboxDamaged, match="is gone though the log has it"):
        list(rows)
    assert not outbox.verify().ok


def test_a_file_that_is_cut_short_is_damage(place: Place) -> None:
    outbox = filled(place, 2)
    store, file = outbox.follower.store, outbox.state.files[1]
    whole = store.get(file.path)
    assert whole is not None
    store.put(file.path, whole[:-100])
    with pytest.raises(OutboxDamaged, match="can't be read"):
        list(outbox.read(OffsetRange(0, 2)))
    audit = outbox.verify()
    assert any("bytes, the log says" in problem or "can't be read" in problem for problem in audit.problems)


# ── disorder: what other engines leave after a release ───────────────────────────────────────────────────────────────────────


def rewritten(outbox: Outbox, order: list[int], files: int) -> None:
    """The same rows, put by delta-rs into `files` files that overlap, each in an order of its own."""
    rows = pa.Table.from_batches(outbox.read(outbox.state.range))
    outbox.release()
    parts = [rows.take(order[part::files]) for part in range(files)]
    write_deltalake(delta(outbox), parts[0], mode="overwrite")
    for part in parts[1:]:
        write_deltalake(delta(outbox), part, mode="append")


@pytest.mark.parametrize("files", [1, 3])
def test_overlapping_and_disordered_files_are_read_in_order(place: Place, files: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "SLICE_ROWS", 5)
    outbox, reader = filled(place, 4, rows=5), reopened(place)
    times = [outbox.offset_at(outbox.state.produced_at_us), outbox.offset_at(0)]
    rewritten(outbox, [number * 7 % 20 for number in range(20)], files)
    for each in (outbox, reader, reopened(place)):
        assert ids(each) == list(range(20))
        assert ids(each, OffsetRange(3, 17)) == list(range(3, 17))
        assert [each.offset_at(outbox.state.produced_at_us), each.offset_at(0)] == times
        assert len(each.state.files) == files
        assert not each.state.guarded


def test_rows_that_are_there_twice_are_damage_for_the_reader(place: Place) -> None:
    """The sums add up, a row is there twice and another is missing: only reading can tell, and it does."""
    outbox = filled(place, 1, rows=6)
    rows = pa.Table.from_batches(outbox.read(OffsetRange(0, 6)))
    outbox.release()
    write_deltalake(delta(outbox), rows.take([0, 1, 2, 2, 4, 5]), mode="overwrite")
    fresh = reopened(place)
    assert not fresh.verify().ok
    with pytest.raises(OutboxDamaged):
        list(fresh.read(OffsetRange(0, 6)))
    assert ids(fresh, OffsetRange(0, 2)) == [0, 1]


# ── skipping ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_T8_row_groups_outside_of_the_range_are_not_read(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "ROW_GROUP_ROWS", 10)
    monkeypatch.setattr(maintain, "ROW_GROUP_ROWS", 10)
    outbox = created(place)
    outbox.append(Batch(Rows.of(table(*range(95))), table().schema), upkeep=False)
    opened: list[list[int]] = []
    iterate = pq.ParquetFile.iter_batches

    def noted(self: pq.ParquetFile, *positional: object, **named: object) -> object:
        groups = named["row_groups"]
        assert isinstance(groups, list)
        opened.append(groups)
        return iterate(self, *positional, **named)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    assert ids(outbox, OffsetRange(25, 41)) == list(range(25, 41))
    assert opened == [[2, 3, 4]]


def test_T8_files_outside_of_the_range_are_not_opened(place: Place) -> None:
    outbox = filled(place, 6)
    for file in [*outbox.state.files[:2], *outbox.state.files[4:]]:
        outbox.follower.store.delete([file.path])
    assert ids(outbox, OffsetRange(2, 4)) == [2, 3]


def test_batches_are_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "BATCH_ROWS", 7)
    outbox = filled(place, 2, rows=20)
    sizes = [rows.num_rows for rows in outbox.read(OffsetRange(0, 40))]
    assert max(sizes) <= 7 and sum(sizes) == 40
