"""Between Arrow and Delta: which columns a topic takes, and rows made to fit without changing a value."""

from __future__ import annotations

import json
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from trigger_core.errors import ReservedColumn, SchemaConflict, SchemaMismatch, UnsupportedType
from trigger_outbox.schema import RESERVED, TopicSchema, canonical_type, check_columns, project, topic_schema

UTC = pa.timestamp("us", "UTC")
NTZ = pa.timestamp("us")


def schema_of(**columns: pa.DataType) -> TopicSchema:
    return topic_schema(pa.schema(list(columns.items())))


def one(kind: pa.DataType, *values: Any) -> pa.Table:
    return pa.table({"x": pa.array(values, kind)})


# ── types ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────

HELD = [
    (pa.bool_(), pa.bool_()),
    (pa.int8(), pa.int8()),
    (pa.int16(), pa.int16()),
    (pa.int32(), pa.int32()),
    (pa.int64(), pa.int64()),
    (pa.uint8(), pa.int16()),
    (pa.uint16(), pa.int32()),
    (pa.uint32(), pa.int64()),
    (pa.float32(), pa.float32()),
    (pa.float64(), pa.float64()),
    (pa.string(), pa.string()),
    (pa.large_string(), pa.string()),
    (pa.string_view(), pa.string()),
    (pa.binary(), pa.binary()),
    (pa.large_binary(), pa.binary()),
    (pa.binary_view(), pa.binary()),
    (pa.binary(16), pa.binary()),
    (pa.uuid(), pa.binary()),
    (pa.date32(), pa.date32()),
    (pa.date64(), pa.date32()),
    (pa.timestamp("s", "UTC"), UTC),
    (pa.timestamp("ns", "Europe/Berlin"), UTC),
    (pa.timestamp("ns"), NTZ),
    (pa.timestamp("ms"), NTZ),
    (pa.decimal32(5, 2), pa.decimal128(5, 2)),
    (pa.decimal128(38, 18), pa.decimal128(38, 18)),
    (pa.decimal256(38, 0), pa.decimal128(38, 0)),
    (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
    (pa.list_(pa.uint8()), pa.list_(pa.field("element", pa.int16()))),
    (pa.large_list(pa.string()), pa.list_(pa.field("element", pa.string()))),
    (pa.list_(pa.int32(), 3), pa.list_(pa.field("element", pa.int32()))),
    (pa.map_(pa.large_string(), pa.uint8()), pa.map_(pa.string(), pa.int16())),
    (pa.struct([pa.field("a", pa.uint8(), nullable=False)]), pa.struct([pa.field("a", pa.int16())])),
    (
        pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.timestamp("ns", "UTC"))))])),
        pa.list_(pa.field("element", pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.field("element", UTC))))]))),
    ),
]
REFUSED = [
    pa.null(),
    pa.float16(),
    pa.uint64(),
    pa.time32("s"),
    pa.time64("us"),
    pa.duration("us"),
    pa.month_day_nano_interval(),
    pa.decimal256(39, 2),
    pa.decimal128(5, -2),
    pa.struct([]),
    pa.sparse_union([pa.field("a", pa.int8())]),
    pa.run_end_encoded(pa.int32(), pa.int8()),
]


@pytest.mark.parametrize(("given", "held"), HELD, ids=lambda kind: str(kind)[:40])
def test_A15_a_type_becomes_what_delta_gives_back(given: pa.DataType, held: pa.DataType) -> None:
    assert canonical_type(given, "x") == held
    assert canonical_type(held, "x") == held, "what is canonical stays so"
    assert schema_of(x=given).user.field("x").type == held, "also through Delta's own spelling"


@pytest.mark.parametrize("kind", REFUSED, ids=str)
@pytest.mark.parametrize("nested", ["", ".element", ".key", ".value", ".inner"])
def test_A3_a_type_that_delta_cannot_hold_names_the_column(kind: pa.DataType, nested: str) -> None:
    within = {
        "": lambda: kind,
        ".element": lambda: pa.list_(kind),
        ".key": lambda: pa.map_(kind if kind != pa.null() else pa.float16(), pa.int32()),  # Arrow itself knows no null keys
        ".value": lambda: pa.map_(pa.int32(), kind),
        ".inner": lambda: pa.struct([("inner", kind)]),
    }[nested]()
    with pytest.raises(UnsupportedType, match="can't hold") as caught:
        schema_of(fine=pa.int32(), odd=within)
    assert caught.value.facts["column"] == f"odd{nested}"
    assert f"'odd{nested}'" in str(caught.value) and "cast" in caught.value.cure


# ── making rows fit ──────────────────────────────────────────────────────────────────────────────────────────────────────────

MOMENT = datetime(2026, 11, 18, 11, 6, 15, 123456, tzinfo=timezone.utc)
FITTING: list[tuple[pa.DataType, pa.DataType, Any, Any]] = [
    (pa.int64(), pa.int8(), 5, 5),
    (pa.int8(), pa.int64(), -5, -5),
    (pa.int16(), pa.uint8(), 255, 255),
    (pa.float64(), pa.float32(), 0.5, 0.5),
    (pa.string(), pa.dictionary(pa.int8(), pa.string()), "a", "a"),
    (pa.list_(pa.string()), pa.list_(pa.dictionary(pa.int8(), pa.string())), ["a"], ["a"]),
    (pa.string(), pa.large_string(), "ü", "ü"),
    (pa.binary(), pa.binary(2), b"ab", b"ab"),
    (pa.decimal128(10, 2), pa.decimal128(5, 1), Decimal("1.5"), Decimal("1.50")),
    (pa.decimal128(10, 2), pa.decimal256(8, 2), Decimal("1.50"), Decimal("1.50")),
    (UTC, pa.timestamp("ns", "UTC"), MOMENT, MOMENT),
    (UTC, pa.timestamp("us", "Asia/Tokyo"), MOMENT, MOMENT),
    (NTZ, pa.timestamp("ms"), datetime(2026, 1, 1, 1), datetime(2026, 1, 1, 1)),
    (pa.date32(), pa.date64(), date(2026, 1, 1), date(2026, 1, 1)),
    (pa.int32(), pa.null(), None, None),
    (pa.list_(pa.int64()), pa.list_(pa.null()), [None, None], [None, None]),
    (pa.list_(pa.int64()), pa.large_list(pa.int8()), [1, None], [1, None]),
    (pa.map_(pa.string(), pa.int64()), pa.map_(pa.large_string(), pa.int32()), [("a", 1)], [("a", 1)]),
    (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        pa.struct([("a", pa.int8()), ("b", pa.null())]),
        {"a": 1, "b": None},
        {"a": 1, "b": None},
    ),
]
UNFIT: list[tuple[pa.DataType, pa.DataType, Any]] = [
    (pa.int8(), pa.int64(), 200),
    (pa.int64(), pa.float64(), 1.0),
    (pa.float64(), pa.int64(), 1),
    (pa.float32(), pa.float64(), 0.5),
    (pa.int64(), pa.string(), "1"),
    (pa.string(), pa.int64(), 1),
    (pa.string(), pa.binary(), b"x"),
    (pa.bool_(), pa.int8(), 1),
    (UTC, NTZ, datetime(2026, 1, 1)),
    (NTZ, UTC, MOMENT),
    (UTC, pa.date32(), date(2026, 1, 1)),
    (UTC, pa.timestamp("ns", "UTC"), 1_001),
    (pa.decimal128(5, 2), pa.decimal128(6, 2), Decimal("1.00")),
    (pa.decimal128(5, 2), pa.decimal128(5, 3), Decimal("1.000")),
    (pa.list_(pa.int64()), pa.list_(pa.string()), ["1"]),
    (pa.list_(pa.int64()), pa.int64(), 1),
    (pa.struct([("a", pa.int64())]), pa.struct([("b", pa.int64())]), {"b": 1}),
    (pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64()), ("b", pa.int64())]), {"a": 1, "b": 1}),
    (pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.string()), [("a", "b")]),
    (pa.int64(), pa.uint64(), 1),
]


@pytest.mark.parametrize(("topic", "given", "value", "kept"), FITTING, ids=lambda part: str(part)[:30])
def test_rows_are_widened_and_keep_their_values(topic: pa.DataType, given: pa.DataType, value: Any, kept: Any) -> None:
    schema = schema_of(x=topic)
    fitted = schema.conform(one(given, value, None))
    assert fitted.schema == schema.user
    assert fitted.column("x").to_pylist() == [kept, None]


@pytest.mark.parametrize(("topic", "given", "value"), UNFIT, ids=lambda part: str(part)[:30])
def test_A2_rows_that_would_change_are_refused_and_name_the_column(topic: pa.DataType, given: pa.DataType, value: Any) -> None:
    with pytest.raises((SchemaMismatch, UnsupportedType)) as caught:
        schema_of(x=topic).conform(one(given, value))
    assert caught.value.facts["column"] == "x"
    assert "\n" not in str(caught.value)


def test_A15_extreme_values_come_through() -> None:
    rows = pa.table(
        {
            "long": [2**63 - 1, -(2**63), None],
            "double": [float("inf"), float("-inf"), -0.0],
            "decimal": pa.array([Decimal("9" * 38), Decimal("-" + "9" * 38), None], pa.decimal128(38, 0)),
            "day": pa.array([date(1, 1, 1), date(9999, 12, 31), None], pa.date32()),
            "at": pa.array([datetime(1900, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=1), MOMENT, None], UTC),
            "text": ["", "\u2028\x00", None],
        }
    )
    assert topic_schema(rows.schema).conform(rows).equals(rows)


def test_columns_are_reordered_and_missing_nullable_ones_are_null() -> None:
    schema = topic_schema(
        pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string()), pa.field("c", pa.int32())])
    )
    fitted = schema.conform(pa.table({"c": pa.array([1], pa.int32()), "a": [7]}))
    assert fitted.to_pylist() == [{"a": 7, "b": None, "c": 1}]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (pa.table({"b": ["x"]}), "'a' is NOT NULL and is missing"),
        (pa.table({"a": pa.array([1, None, None]), "b": ["x"] * 3}), "'a' is NOT NULL and has 2 nulls in 3 rows"),
        (pa.table({"a": pa.nulls(1), "b": ["x"]}), "'a' is NOT NULL and has 1 nulls"),
        (pa.table({"a": [1], "z": [1]}), "'z' is not in the topic"),
        (pa.table({"A": [1], "b": ["x"]}), "'A' is not in the topic"),
    ],
)
def test_A2_rows_that_do_not_fit_are_refused(rows: pa.Table, problem: str) -> None:
    schema = topic_schema(pa.schema([pa.field("a", pa.int64(), nullable=False), pa.field("b", pa.string())]))
    with pytest.raises(SchemaMismatch, match=problem):
        schema.conform(rows)


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", [*RESERVED, "_OFFSET", "_Produced_At"])
def test_a_reserved_column_is_refused(name: str) -> None:
    with pytest.raises(ReservedColumn, match="rename it") as caught:
        schema_of(**{name: pa.int64()})
    assert caught.value.facts["column"] == name


@pytest.mark.parametrize("name", ["_id", "_offset_", "Ünïcode", "a.b", "a\u2028b", "`quoted`", "_metadata"])
def test_other_names_are_the_users(name: str) -> None:
    schema = schema_of(**{name: pa.int64()})
    assert schema.user.names == [name]


@pytest.mark.parametrize("name", ["", "a b", "a,b", "a;b", "{", "}", "(", ")", "a\nb", "a\tb", "a=b"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_name_that_cannot_be_stored_is_refused(name: str, nested: bool) -> None:
    with pytest.raises(SchemaMismatch, match="can't be stored"):
        schema_of(**({"x": pa.struct([(name, pa.int8())])} if nested else {name: pa.int8()}))


def test_names_that_are_one_to_delta_are_refused() -> None:
    with pytest.raises(SchemaMismatch, match="'a' and 'A' are the same"):
        schema_of(a=pa.int64(), A=pa.int64())
    with pytest.raises(SchemaMismatch, match="'a' and 'A' are the same"):
        schema_of(x=pa.list_(pa.struct([("a", pa.int64()), ("A", pa.int64())])))
    with pytest.raises(SchemaMismatch, match="at least one column"):
        schema_of()
    check_columns(pa.schema([("a", pa.int64()), ("aa", pa.int64())]))


# ── merging, comparing, projecting ───────────────────────────────────────────────────────────────────────────────────────────


def test_merging_adds_nullable_columns_at_the_end_and_keeps_the_rest() -> None:
    known = json.loads(schema_of(a=pa.int64()).delta_json)
    known["fields"][2]["metadata"] = {"comment": "kept"}
    schema = TopicSchema(json.dumps(known))
    merged = schema.merged(pa.schema([pa.field("c", pa.uint8(), nullable=False), pa.field("a", pa.string())]))
    assert merged.arrow.names == ["_offset", "_produced_at", "a", "c"]
    assert merged.user.field("a").type == pa.int64(), "existing columns keep their type; rows of another are refused"
    assert merged.user.field("c") == pa.field("c", pa.int16())
    assert json.loads(merged.delta_json)["fields"][2] == known["fields"][2]
    assert schema.merged(pa.schema([("a", pa.int64())])) is schema
    assert merged.fingerprint != schema.fingerprint


def test_merging_refuses_what_creating_would() -> None:
    schema = schema_of(a=pa.int64())
    with pytest.raises(SchemaMismatch, match="the same to Delta"):
        schema.merged(pa.schema([("A", pa.int64())]))
    with pytest.raises(ReservedColumn):
        schema.merged(pa.schema([("_tenant", pa.string())]))
    with pytest.raises(UnsupportedType, match="'b'"):
        schema.merged(pa.schema([("b", pa.null())]))


def test_a_timestamp_without_zone_is_noticed_wherever_it_is() -> None:
    assert not schema_of(x=UTC).has_timestamp_ntz
    assert schema_of(x=NTZ).has_timestamp_ntz
    assert schema_of(x=pa.list_(pa.struct([("at", NTZ)]))).has_timestamp_ntz
    assert schema_of(x=UTC).merged(pa.schema([("y", NTZ)])).has_timestamp_ntz


def test_F1_another_schema_is_a_conflict_that_names_both() -> None:
    schema = schema_of(a=pa.int64())
    schema.require_same(schema_of(a=pa.int64()), "t")
    for other in (schema_of(a=pa.int32()), schema_of(b=pa.int64()), schema_of(a=pa.int64(), b=pa.int64())):
        with pytest.raises(SchemaConflict, match="topic 't' exists with other columns: a int64"):
            schema.require_same(other, "t")


def test_a_projection_keeps_the_topics_order_and_the_offset() -> None:
    arrow = schema_of(a=pa.int64(), b=pa.int64()).arrow
    assert project(arrow, None) is arrow
    assert project(arrow, ["b", "_produced_at"]).names == ["_offset", "_produced_at", "b"]
    assert project(arrow, []).names == ["_offset"]
    with pytest.raises(SchemaMismatch, match="'z' is not in the topic"):
        project(arrow, ["a", "z"])
