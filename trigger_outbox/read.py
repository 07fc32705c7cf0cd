"""Reading a range: its files as a stream of Arrow batches in bounded memory, each checked against the offsets asked for.

A file that vanished under the reader (compacted and vacuumed) is looked up once more in a fresh snapshot; the stream goes on at
the offset it had reached. No order and no disjointness is assumed: files that overlap, or rows that are out of order within
one, are sorted in bounded slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from offsets import CompletenessProof, OffsetRange, split
from trigger_core.errors import DataLoss, InvalidOffset, OutboxDamaged, StoreUnavailable
from trigger_outbox.commit import DataFile
from trigger_outbox.follow import Follower
from trigger_outbox.schema import OFFSET, PRODUCED_AT, project
from trigger_outbox.state import LogState
from trigger_outbox.storage import Store

BATCH_ROWS = 64 * 1024
SLICE_ROWS = 256 * 1024
LOOKUPS_MAX = 5
"""Fresh snapshots that one read may take in a row without reading a row in between."""
STATISTICS_SLACK_US = 1000
"""Delta's statistics are cut to milliseconds."""


def read_range(follower: Follower, wanted: OffsetRange, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of `wanted`, in order, each once. Raises `DataLoss` if they are trimmed, `InvalidOffset` if not yet written."""
    check_readable(follower, wanted)
    yield from read_files(
        follower, follower.state.overlapping(wanted), wanted, project(follower.state.metadata.schema.arrow, columns)
    )


def read_files(follower: Follower, files: Sequence[DataFile], wanted: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """`wanted` from `files`, which some state said cover it; `follower` is asked for fresh ones only when a file is gone."""
    proof = CompletenessProof(wanted)
    at, lookups = wanted.start, 0
    while at < wanted.end:
        before = at
        try:
            for batch in _in_order(follower.store, files, OffsetRange(at, wanted.end), schema):
                first, last = batch.column(OFFSET)[0].as_py(), batch.column(OFFSET)[-1].as_py()
                proof.observe(first, last, batch.num_rows, strictly_consecutive=True)
                at = last + 1
                yield batch
            break
        except FileNotFoundError as error:
            lookups = lookups + 1 if at == before else 1
            if lookups > LOOKUPS_MAX:
                raise OutboxDamaged(
                    f"a file of rows {at} to {wanted.end} is gone though the log has it: {error}", "restore it"
                ) from error
            follower.reopen()
            check_readable(follower, OffsetRange(at, wanted.end))
            files = follower.state.overlapping(OffsetRange(at, wanted.end))
    proof.finish()


def check_readable(follower: Follower, wanted: OffsetRange) -> None:
    state = follower.state
    if wanted.end > state.end:
        follower.refresh()
        state = follower.state
    if wanted.end > state.end:
        raise InvalidOffset(
            f"offsets {wanted} end beyond the head {state.end}", "read up to the head", requested=wanted.end, latest=state.end
        )
    if wanted and wanted.start < state.earliest:
        raise DataLoss(
            f"offset {wanted.start} was trimmed: earliest is {state.earliest}, latest is {state.end}",
            "start at 'earliest', or keep more with a longer retention",
            requested=wanted.start,
            earliest=state.earliest,
            latest=state.end,
        )


class _Disorder(Exception):
    """Rows of a file are not in offset order: they must be sorted."""


def _in_order(store: Store, files: Sequence[DataFile], wanted: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    files = sorted(files, key=lambda file: (file.start, file.end))
    at = wanted.start
    if all(left.end <= right.start for left, right in pairwise(files)) and all(file.rows >= 0 for file in files):
        try:
            for file in files:
                for batch in _filtered(store, file, OffsetRange(at, wanted.end), schema):
                    _require_consecutive(batch, at)
                    at += batch.num_rows
                    yield batch
            return
        except _Disorder:
            pass
    yield from _sorted(store, files, OffsetRange(at, wanted.end), schema)


def _require_consecutive(batch: pa.RecordBatch, first: int) -> None:
    offsets = batch.column(OFFSET)
    if not offsets.equals(pa.arange(first, first + batch.num_rows)):
        raise _Disorder


def _sorted(store: Store, files: Sequence[DataFile], wanted: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for part in split(wanted, rows_max=SLICE_ROWS):
        found = [batch for file in files for batch in _filtered(store, file, part, schema)]
        table = pa.Table.from_batches(found, schema).sort_by(OFFSET).combine_chunks()
        if table.num_rows != len(part) or not table.column(OFFSET).combine_chunks().equals(pa.arange(part.start, part.end)):
            raise OutboxDamaged(
                f"offsets {part} should be {len(part)} rows, their files have {table.num_rows}", "run verify(); restore a backup"
            )
        yield from table.to_batches(max_chunksize=BATCH_ROWS)


def _filtered(store: Store, file: DataFile, wanted: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of one file that are in `wanted`: whole row groups are skipped by their statistics."""
    if file.rows >= 0 and (file.start >= wanted.end or file.end <= wanted.start):
        return
    with opened(store, file) as parquet:
        names = [name for name in schema.names if name in parquet.schema_arrow.names]
        groups = _row_groups(parquet, wanted)
        if not groups:
            return
        for batch in parquet.iter_batches(batch_size=BATCH_ROWS, row_groups=groups, columns=names):
            batch = _within(batch, wanted)
            if batch.num_rows:
                yield aligned(batch, schema)


@contextmanager
def opened(store: Store, file: DataFile) -> Iterator[pq.ParquetFile]:
    source = store.open(file.path)
    try:
        with pq.ParquetFile(source, pre_buffer=not store.is_local) as parquet:
            yield parquet
    except FileNotFoundError:
        raise
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's; Arrow says OSError of bad bytes too
            raise StoreUnavailable(f"could not read {file.path}: {error}", "check the disk and try again") from error
        text = str(error).partition("\n")[0]
        raise OutboxDamaged(f"data file {file.path} can't be read: {text}", "restore it from a backup") from error
    finally:
        source.close()


def _row_groups(parquet: pq.ParquetFile, wanted: OffsetRange) -> list[int]:
    metadata = parquet.metadata
    if metadata.num_row_groups == 1:
        return [0]
    column = parquet.schema_arrow.get_field_index(OFFSET)
    chosen = []
    for index in range(metadata.num_row_groups):
        statistics: Any = metadata.row_group(index).column(column).statistics
        if statistics is None or not statistics.has_min_max or (statistics.min < wanted.end and statistics.max >= wanted.start):
            chosen.append(index)
    return chosen


def _within(batch: pa.RecordBatch, wanted: OffsetRange) -> pa.RecordBatch:
    offsets = batch.column(OFFSET)
    bounds = pc.min_max(offsets).as_py()
    if bounds["min"] is None or (bounds["min"] >= wanted.start and bounds["max"] < wanted.end):
        return batch
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    if bounds == {"min": first, "max": last} and last - first + 1 == batch.num_rows:  # dense and ascending: a slice, not a copy
        start = max(wanted.start, first)
        return batch.slice(start - first, max(0, min(wanted.end, last + 1) - start))
    return batch.filter(pc.and_(pc.greater_equal(offsets, wanted.start), pc.less(offsets, wanted.end)))


def aligned(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """In the reader's schema: a column that the file is older than is null."""
    if batch.schema == schema:
        return batch
    columns = []
    for field in schema:
        if field.name not in batch.schema.names:
            columns.append(pa.nulls(batch.num_rows, field.type))
        else:
            column = batch.column(field.name)
            columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def offset_at(follower: Follower, time_us: int) -> int:
    """The first offset whose `_produced_at` is at or after `time_us`; the head if there is none."""
    for _ in range(LOOKUPS_MAX):
        state = follower.state
        try:
            return _offset_at(follower.store, state, time_us)
        except FileNotFoundError:
            follower.reopen()
    raise OutboxDamaged("files of the log keep vanishing while a time is looked up", "run verify()")


def _offset_at(store: Store, state: LogState, time_us: int) -> int:
    found = state.end
    for file in state.files:
        if file.produced_max_us + STATISTICS_SLACK_US < time_us or file.start >= found:
            continue
        wanted = OffsetRange(file.start, min(file.end, found))
        for batch in _filtered(store, file, wanted, pa.schema([_FIELDS[OFFSET], _FIELDS[PRODUCED_AT]])):
            late = batch.filter(pc.greater_equal(batch.column(PRODUCED_AT).cast(pa.int64()), time_us))
            if late.num_rows:
                found = min(found, pc.min(late.column(OFFSET)).as_py())
    return max(state.earliest, found)


_FIELDS = {
    OFFSET: pa.field(OFFSET, pa.int64(), nullable=False),
    PRODUCED_AT: pa.field(PRODUCED_AT, pa.timestamp("us", "UTC"), nullable=False),
}
