"""Rows to files and payloads: cut without loss, stamped, statistics that hide no row, and the same values hot and cold."""

from __future__ import annotations

import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.outbox.commits import NOW_US, SCHEMA
from trigger_outbox import encode
from trigger_outbox.commit import DataFile
from trigger_outbox.encode import Rows, cut, decode_payload, digest, encode_all, encode_file, encode_payload, level_of, new_path
from trigger_outbox.schema import topic_schema

DETERMINISTIC = settings(
    deadline=None, derandomize=True, database=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow]
)
CHUNKS = st.lists(st.lists(st.text(max_size=40), max_size=30), max_size=8)


def tables(chunks: list[list[str]]) -> list[pa.Table]:
    return [pa.table({"name": pa.array(chunk, pa.string())}) for chunk in chunks]


@DETERMINISTIC
@given(CHUNKS, st.integers(1, 2_000))
def test_A12_cutting_keeps_every_row_in_order(chunks: list[list[str]], bytes_max: int) -> None:
    pieces = list(cut(iter(tables(chunks)), bytes_max))
    assert all(piece.num_rows for piece in pieces)
    assert [row for piece in pieces for row in piece.column("name").to_pylist()] == [row for chunk in chunks for row in chunk]
    if len(pieces) > 1:
        assert max(piece.nbytes for piece in pieces) <= bytes_max + 4 * 41 + 16, "over by a row at most"


def test_cutting_joins_small_chunks() -> None:
    chunks = [pa.table({"name": ["x"]}) for _ in range(1_000)]
    assert len(list(cut(iter(chunks), 1_000_000))) == 1


def test_T6_nothing_is_cut_from_nothing() -> None:
    assert list(cut(iter([]), 10)) == []
    assert list(cut(iter([pa.table({"name": pa.array([], pa.string())})]), 10)) == []


@pytest.mark.parametrize("bytes_max", [1, 100, 64 * 1024 * 1024])
def test_A12_files_of_one_append_are_contiguous_and_true(bytes_max: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "CHUNK_BYTES_MAX", bytes_max)
    stored: dict[str, pa.Buffer] = {}
    rows = pa.table({"id": range(25), "name": [str(number) for number in range(25)]}, schema=SCHEMA.user)
    files = encode_all(Rows.of(rows), 100, NOW_US, SCHEMA, 7, stored.__setitem__)
    at = 100
    for file in files:
        table = pq.read_table(pa.BufferReader(stored[file.path]))
        assert table.schema == SCHEMA.arrow
        assert table.column("_offset").to_pylist() == list(range(file.start, file.end))
        assert table.column("id").to_pylist() == [offset - 100 for offset in range(file.start, file.end)]
        assert (file.start, file.rows, file.size) == (at, file.end - file.start, stored[file.path].size)
        at = file.end
    assert at == 125
    assert (len(files) == 1) == (bytes_max > 1_000)


def test_files_that_are_written_once_more_keep_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "CHUNK_BYTES_MAX", 100)
    rows = Rows.of(pa.table({"id": range(25), "name": ["x"] * 25}, schema=SCHEMA.user))
    first: dict[str, pa.Buffer] = {}
    again: dict[str, pa.Buffer] = {}
    files: list[DataFile] = encode_all(rows, 0, NOW_US, SCHEMA, 0, first.__setitem__)
    encode_all(rows, 0, NOW_US, SCHEMA, 0, again.__setitem__, [file.path for file in files])
    assert first == again, "the same rows are the same bytes"


def test_a_float_column_with_nan_has_no_statistics() -> None:
    schema = topic_schema(
        pa.schema([("whole", pa.float64()), ("holed", pa.float64()), ("deep", pa.struct([("x", pa.float32())]))])
    )
    rows = pa.table({"whole": [1.0, 2.0], "holed": [1.0, math.nan], "deep": [{"x": math.nan}, None]}, schema=schema.user)
    group = pq.ParquetFile(pa.BufferReader(encode_file(rows, 0, NOW_US, schema))).metadata.row_group(0)
    kept = {group.column(index).path_in_schema: group.column(index).is_stats_set for index in range(group.num_columns)}
    assert kept == {"_offset": True, "_produced_at": True, "whole": True, "holed": False, "deep.x": False}


def test_a_new_file_has_a_name_that_every_engine_reads() -> None:
    names = {new_path(level, version) for level in range(4) for version in (0, 499, 500) for _ in range(50)}
    assert len(names) == 600
    assert all(set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789./") for name in names)
    assert [level_of(size) for size in (1, 64 * 1024, 4 * 1024 * 1024, 32 * 1024 * 1024)] == [0, 1, 2, 3]


# ── the payload of a wakeup ──────────────────────────────────────────────────────────────────────────────────────────────────


@DETERMINISTIC
@given(
    st.lists(
        st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.one_of(st.none(), st.text(max_size=9))), max_size=9), max_size=4
    )
)
def test_a_payload_gives_the_rows_that_the_files_have(chunks: list[list[tuple[int, str | None]]]) -> None:
    made = [
        pa.table({"id": [row[0] for row in chunk], "name": [row[1] for row in chunk]}, schema=SCHEMA.user) for chunk in chunks
    ]
    count = sum(table.num_rows for table in made)
    payload = encode_payload(iter(made), SCHEMA, 1 << 20)
    assert payload is not None
    hot = decode_payload(payload, 40, 40 + count, NOW_US, SCHEMA)
    assert hot.schema == SCHEMA.arrow
    if count:
        whole = pa.concat_tables(made)
        cold = pq.read_table(pa.BufferReader(encode_file(whole, 40, NOW_US, SCHEMA)))
        assert hot.equals(cold), "value for value"
    assert digest(payload) == digest(bytes(payload))


def test_A11_a_payload_over_its_bound_is_none() -> None:
    rows = pa.table({"id": range(1_000), "name": ["x" * 20] * 1_000}, schema=SCHEMA.user)
    whole = encode_payload([rows], SCHEMA, 1 << 20)
    assert whole is not None
    assert encode_payload([rows], SCHEMA, len(whole) - 1) is None
    assert encode_payload([rows], SCHEMA, len(whole)) is not None
    assert encode_payload([rows] * 100, SCHEMA, len(whole) * 2) is None
    assert encode_payload([rows], SCHEMA, 0) is None


def test_a_payload_of_other_rows_than_its_commit_says_is_refused() -> None:
    rows = pa.table({"id": range(3), "name": ["x"] * 3}, schema=SCHEMA.user)
    payload = encode_payload([rows], SCHEMA, 1 << 20)
    assert payload is not None
    with pytest.raises(ValueError, match="3 rows"):
        decode_payload(payload, 0, 4, NOW_US, SCHEMA)
    with pytest.raises(ValueError, match="3 rows"):
        decode_payload(payload, 0, 3, NOW_US, topic_schema(pa.schema([("id", pa.int64())])))
