"""Rows to Parquet: stamping `_offset` and `_produced_at`, cutting into files, the statistics that go into the log.

Also the payload of a wakeup: the user's columns alone, as Arrow IPC, because offset and time are in the commit it points to,
so that a lost race does not change a byte of it.
"""

from __future__ import annotations

import hashlib
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trigger_outbox.commit import DataFile
from trigger_outbox.schema import OFFSET, TopicSchema

CHUNK_BYTES_MAX = 64 * 1024 * 1024
"""Arrow bytes that go into one file of an append; the commit holds `ENCODERS` + 1 of these at most."""
FILE_BYTES_MAX = 128 * 1024 * 1024
ROW_GROUP_ROWS = 128 * 1024
COMPRESSION = "snappy"
ENCODERS = max(1, min(8, os.cpu_count() or 1))
FOLDER_VERSIONS = 500
"""Data files of so many versions share a folder: thousands of files in one cost every create."""


@dataclass(frozen=True)
class Rows:
    """What an append is made of: `chunks()` gives the same rows each time, because a lost race stamps them anew."""

    chunks: Callable[[], Iterator[pa.Table]]
    count: int

    @staticmethod
    def of(table: pa.Table) -> Rows:
        return Rows(lambda: iter((table,)), table.num_rows)


def level_of(size: int) -> int:
    """Where a new file enters the tiers: one that is large already need not be merged as often."""
    if size >= FILE_BYTES_MAX // 4:
        return 3
    return 2 if size >= 4 * 1024 * 1024 else 1 if size >= 64 * 1024 else 0


def new_path(level: int, version: int) -> str:
    return f"d{level}/{version // FOLDER_VERSIONS}/{uuid.uuid4().hex}.parquet"


def encode_file(rows: pa.Table, start: int, produced_at_us: int, schema: TopicSchema) -> pa.Buffer:
    """One Parquet file of rows that conform to `schema`."""
    return encode_stamped(stamp(rows, start, produced_at_us, schema))


def stamp(rows: pa.Table, start: int, produced_at_us: int, schema: TopicSchema) -> pa.Table:
    count = rows.num_rows
    offset = pa.chunked_array([pa.arange(start, start + count)])
    moment = pa.chunked_array([pa.repeat(pa.scalar(produced_at_us, pa.timestamp("us", "UTC")), count)])
    return pa.Table.from_arrays([offset, moment, *rows.columns], schema=schema.arrow)


def encode_stamped(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with open_writer(sink, table) as writer:
        writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
    return sink.getvalue()


def open_writer(sink: pa.NativeFile, sample: pa.Table, *, floats: bool = True) -> pq.ParquetWriter:
    """`_offset` and `_produced_at` always have row-group statistics; a float column that holds NaN has none, because a
    minimum that skips NaN makes readers skip rows. `floats=False`: none has, when `sample` is not all that will be written."""
    statistics = [
        field.name for field in sample.schema if not _has_nan(sample, field) and (floats or not pa.types.is_floating(field.type))
    ]
    plain = [field.name for field in sample.schema if field.name != OFFSET and not pa.types.is_nested(field.type)]
    return pq.ParquetWriter(
        sink, sample.schema, compression=COMPRESSION, write_statistics=statistics, use_dictionary=plain, store_schema=False
    )


def _has_nan(sample: pa.Table, field: pa.Field) -> bool:
    if pa.types.is_nested(field.type):
        return True
    return bool(pa.types.is_floating(field.type) and pc.any(pc.is_nan(sample.column(field.name))).as_py())


def encode_all(
    rows: Rows,
    start: int,
    produced_at_us: int,
    schema: TopicSchema,
    version: int,
    put: Callable[[str, pa.Buffer], None],
    paths: Sequence[str] | None = None,
) -> list[DataFile]:
    """Stamps, encodes and puts every file of an append, one encoder per core, in bounded memory. The files are in offset order.
    `paths` gives the names of files that are to be written once more."""
    modified_ms = int(time.time() * 1000)

    def one(index: int, table: pa.Table, first: int) -> DataFile:
        data = encode_file(table, first, produced_at_us, schema)
        size = data.size
        path = paths[index] if paths is not None else new_path(level_of(size), version)
        put(path, data)
        return DataFile(path, size, table.num_rows, first, first + table.num_rows, produced_at_us, produced_at_us, modified_ms)

    pieces = cut(rows.chunks(), CHUNK_BYTES_MAX)
    first_piece = next(pieces)
    second_piece = next(pieces, None)
    if second_piece is None:
        return [one(0, first_piece, start)]
    files: list[Future[DataFile]] = []
    with ThreadPoolExecutor(ENCODERS) as pool:
        at = start
        for piece in chain((first_piece, second_piece), pieces):
            if len(files) >= ENCODERS:
                files[-ENCODERS].result()  # bounded: wait for the one before it starts another
            files.append(pool.submit(one, len(files), piece, at))
            at += piece.num_rows
        return [file.result() for file in files]


def cut(chunks: Iterable[pa.Table], bytes_max: int) -> Iterator[pa.Table]:
    """The same rows in tables of at most about `bytes_max`, small ones joined, none empty."""
    held: list[pa.Table] = []
    held_bytes = 0
    for chunk in chunks:
        for piece in _pieces(chunk, bytes_max):
            size = max(1, piece.nbytes)
            if held and held_bytes + size > bytes_max:
                yield pa.concat_tables(held)
                held, held_bytes = [], 0
            held.append(piece)
            held_bytes += size
    if held:
        yield pa.concat_tables(held)


def _pieces(chunk: pa.Table, bytes_max: int) -> Iterator[pa.Table]:
    if chunk.num_rows == 0:
        return
    parts = max(1, -(-chunk.nbytes // bytes_max))
    step = max(1, -(-chunk.num_rows // parts))
    for first in range(0, chunk.num_rows, step):
        yield chunk.slice(first, step)


def encode_payload(rows: Iterable[pa.Table], schema: TopicSchema, bytes_max: int) -> bytes | None:
    """What a wakeup carries, or None if it would be larger than `bytes_max`."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema.user) as writer:
        for table in rows:
            if table.nbytes + sink.tell() > bytes_max:
                return None
            writer.write_table(table.combine_chunks())
    payload = sink.getvalue()
    return payload.to_pybytes() if payload.size <= bytes_max else None


def digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


def decode_payload(payload: bytes, start: int, end: int, produced_at_us: int, schema: TopicSchema) -> pa.Table:
    """The rows of a verified payload, as the files have them."""
    rows = pa.ipc.open_stream(payload).read_all()
    if rows.num_rows != end - start or rows.schema != schema.user:
        raise ValueError(f"payload has {rows.num_rows} rows of {rows.schema}, its commit has {end - start}")
    return stamp(rows, start, produced_at_us, schema)
