"""Commits for tests of the fold: built with the product's own writers, from fixed ids and times, so that they never differ."""

from __future__ import annotations

import pyarrow as pa

from trigger_outbox.commit import (
    Commit,
    DataFile,
    Record,
    append_commit,
    compact_commit,
    create_commit,
    parse_commit,
    trim_commit,
)
from trigger_outbox.lifecycle import CONFIGURATION
from trigger_outbox.schema import TopicSchema, topic_schema
from trigger_outbox.state import LogState, first_state

TABLE = "11111111-2222-4333-8444-555555555555"
OPERATION = "0123456789abcdef0123456789abcdef"
NOW_MS = 1_795_000_000_000
NOW_US = NOW_MS * 1000 + 456
SCHEMA: TopicSchema = topic_schema(pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())]))


def data_file(
    start: int, end: int, *, name: str | None = None, level: int = 0, size: int = 1402, time_us: int = NOW_US
) -> DataFile:
    path = f"d{level}/0/{name or f'{start}-{end}'}.parquet"
    return DataFile(path, size, end - start, start, end, time_us, time_us, NOW_MS)


def create(configuration: dict[str, str] | None = None) -> bytes:
    return create_commit(Record(TABLE, OPERATION, "create"), SCHEMA, configuration or CONFIGURATION, NOW_MS)


def first() -> LogState:
    return first_state(parse_commit(0, create()))


def append(
    start: int,
    *rows: int,
    read_version: int = 0,
    operation: str = OPERATION,
    time_us: int = NOW_US,
    txn: tuple[str, int] | None = None,
) -> bytes:
    """An append of one file per number of rows."""
    files, at = [], start
    for count in rows:
        files.append(data_file(at, at + count, time_us=time_us))
        at += count
    record = Record(TABLE, operation, "append", start, at, time_us)
    return append_commit(record, files, read_version=read_version, now_ms=NOW_MS, txn=txn)


def compact(added: list[DataFile], removed: list[DataFile], *, read_version: int = 0) -> bytes:
    return compact_commit(Record(TABLE, OPERATION, "compact"), added, removed, read_version=read_version, now_ms=NOW_MS)


def trim(earliest: int, removed: list[DataFile], *, read_version: int = 0) -> bytes:
    return trim_commit(Record(TABLE, OPERATION, "trim"), earliest, removed, read_version=read_version, now_ms=NOW_MS)


def after(state: LogState, body: bytes) -> Commit:
    """`body` as the commit that follows `state`."""
    return parse_commit(state.version + 1, body)
