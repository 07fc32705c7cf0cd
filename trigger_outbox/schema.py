"""Between Arrow and Delta: which columns a topic may have, and making rows exactly of the topic's schema before they are encoded.

Rows are cast here, once, so that what a broker carries and what Delta stores agree value for value. A hand-made commit is
checked by nobody after us: types and NOT NULL are checked here, before anything is written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
from deltalake import Schema as DeltaSchema

from trigger_core.errors import ReservedColumn, SchemaConflict, SchemaMismatch, UnsupportedType

OFFSET = "_offset"
PRODUCED_AT = "_produced_at"
RESERVED = ("_offset", "_produced_at", "_tenant", "_partition", "_erased_at")
ENGINE_FIELDS = (pa.field(OFFSET, pa.int64(), nullable=False), pa.field(PRODUCED_AT, pa.timestamp("us", "UTC"), nullable=False))
_UNSIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
_EXACT = (pa.types.is_boolean, pa.types.is_signed_integer, pa.types.is_float32, pa.types.is_float64, pa.types.is_date32)


@dataclass(frozen=True)
class TopicSchema:
    """A topic's schema: the engine's columns, then the user's, in Delta's JSON and in Arrow."""

    delta_json: str

    @cached_property
    def arrow(self) -> pa.Schema:
        """Every column, as files and readers have it."""
        return pa.schema([_plain(field) for field in pa.schema(DeltaSchema.from_json(self.delta_json).to_arrow())])

    @cached_property
    def user(self) -> pa.Schema:
        """The user's columns, as wakeups carry them."""
        return pa.schema([field for field in self.arrow if field.name not in RESERVED])

    @cached_property
    def fingerprint(self) -> str:
        return hashlib.sha256(self.delta_json.encode()).hexdigest()[:16]

    @cached_property
    def has_timestamp_ntz(self) -> bool:
        return '"timestamp_ntz"' in self.delta_json

    def conform(self, rows: pa.Table) -> pa.Table:
        """`rows` with exactly the user's columns of this topic: reordered, widened, missing nullable ones null. Raises
        `SchemaMismatch` that names the column; never changes a value."""
        check_columns(rows.schema)
        extra = [name for name in rows.schema.names if name not in self.user.names]
        if extra:
            raise SchemaMismatch(
                f"column {extra[0]!r} is not in the topic, which has {self.user.names}",
                "drop it, or set mergeSchema to true to add it",
                column=extra[0],
            )
        columns = [self._conform_column(rows, field) for field in self.user]
        return pa.Table.from_arrays(columns, schema=self.user)

    def _conform_column(self, rows: pa.Table, field: pa.Field) -> pa.ChunkedArray:
        name = field.name
        if name not in rows.schema.names:
            if not field.nullable:
                raise SchemaMismatch(f"column {name!r} is NOT NULL and is missing", "add it to the rows", column=name)
            return pa.chunked_array([pa.nulls(rows.num_rows, field.type)])
        column = rows.column(name)
        if not field.nullable and column.null_count:
            raise SchemaMismatch(
                f"column {name!r} is NOT NULL and has {column.null_count} nulls in {rows.num_rows} rows",
                "fill or drop them",
                column=name,
            )
        if column.type == field.type:
            return column
        if not _fits(canonical_type(column.type, name, nulls=True), field.type):
            raise SchemaMismatch(
                f"column {name!r} is {column.type}, the topic has {field.type}",
                "cast it, or publish to another topic",
                column=name,
            )
        return _cast(column, field.type, name)

    def merged(self, incoming: pa.Schema) -> TopicSchema:
        """This schema with the new columns of `incoming` at the end, nullable. Existing columns keep their type."""
        check_columns(incoming)
        known = json.loads(self.delta_json)
        new = [field.with_nullable(True) for field in incoming if field.name not in self.user.names]
        if not new:
            return self
        check_columns(pa.schema([*self.user, *new]))
        addition = json.loads(topic_schema(pa.schema(new)).delta_json)["fields"][len(ENGINE_FIELDS) :]
        known["fields"].extend(addition)
        return TopicSchema(json.dumps(known, separators=(",", ":")))

    def require_same(self, other: TopicSchema, topic: str) -> None:
        if self.arrow != other.arrow:
            raise SchemaConflict(
                f"topic {topic!r} exists with other columns: {_spelled(self.user)}, not {_spelled(other.user)}",
                "use another topic name, or the schema it has",
            )


def topic_schema(user: pa.Schema) -> TopicSchema:
    """The schema of a new topic with these columns."""
    check_columns(user)
    fields = [pa.field(field.name, canonical_type(field.type, field.name), field.nullable) for field in user]
    if not fields:
        raise SchemaMismatch("a topic needs at least one column", "add a column")
    return TopicSchema(DeltaSchema.from_arrow(pa.schema([*ENGINE_FIELDS, *fields])).to_json())


def check_columns(schema: pa.Schema) -> None:
    """No engine's names, no name twice (Delta compares them without case), none empty or with a character Parquet can't carry."""
    for name in schema.names:
        if name.lower() in RESERVED:
            raise ReservedColumn(
                f"column {name!r} is the engine's own", f"rename it; reserved are {', '.join(RESERVED)}", column=name
            )
    _check_names(schema.names)


def _check_names(names: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        lowered = name.lower()
        if lowered in seen:
            raise SchemaMismatch(
                f"columns {seen[lowered]!r} and {name!r} are the same to Delta", "rename or drop one", column=name
            )
        bad = [character for character in name if character in " ,;{}()\n\t="]
        if bad or not name:
            raise SchemaMismatch(
                f"column name {name!r} can't be stored" + (f": it has {bad[0]!r}" if bad else ""), "rename it", column=name
            )
        seen[lowered] = name


def canonical_type(kind: pa.DataType, column: str, *, nulls: bool = False) -> pa.DataType:
    """The Arrow type that Delta gives back for `kind`, or `UnsupportedType` naming the column. With `nulls`, a column that
    is nothing but nulls, as a list of dicts may give, stays so."""
    if nulls and pa.types.is_null(kind):
        return kind
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        return canonical_type(kind.value_type, column, nulls=nulls)
    if any(test(kind) for test in _EXACT):
        return kind
    if kind in _UNSIGNED:
        return _UNSIGNED[kind]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view():
        return pa.string()
    if (
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or kind == pa.binary_view()
    ):
        return pa.binary()
    if pa.types.is_date64(kind):
        return pa.date32()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC" if kind.tz else None)
    if pa.types.is_decimal(kind) and kind.precision <= 38 and 0 <= kind.scale <= kind.precision:
        return pa.decimal128(kind.precision, kind.scale)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(pa.field("element", canonical_type(kind.value_type, f"{column}.element", nulls=nulls)))
    if pa.types.is_map(kind):
        key, item = (
            canonical_type(kind.key_type, f"{column}.key", nulls=nulls),
            canonical_type(kind.item_type, f"{column}.value", nulls=nulls),
        )
        return pa.map_(key, item)
    if pa.types.is_struct(kind) and kind.num_fields:
        _check_names([child.name for child in kind])
        return pa.struct(
            [pa.field(child.name, canonical_type(child.type, f"{column}.{child.name}", nulls=nulls)) for child in kind]
        )
    raise UnsupportedType(
        f"column {column!r} is {kind}, which Delta can't hold", "cast it first (to string, bigint, decimal…)", column=column
    )


def _fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value of `given` that casts safely keeps its meaning."""
    if given == wanted or pa.types.is_null(given):
        return True
    if pa.types.is_integer(given) and pa.types.is_integer(wanted):
        return True
    if pa.types.is_floating(given) and pa.types.is_floating(wanted):
        return bool(given.bit_width <= wanted.bit_width)
    if pa.types.is_decimal(given) and pa.types.is_decimal(wanted):
        return bool(given.scale <= wanted.scale and given.precision - given.scale <= wanted.precision - wanted.scale)
    if pa.types.is_list(given) and pa.types.is_list(wanted):
        return _fits(given.value_type, wanted.value_type)
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        return _fits(given.key_type, wanted.key_type) and _fits(given.item_type, wanted.item_type)
    if pa.types.is_struct(given) and pa.types.is_struct(wanted):
        return [child.name for child in given] == [child.name for child in wanted] and all(
            _fits(left.type, right.type) for left, right in zip(given, wanted, strict=True)
        )
    return False


def _cast(column: pa.ChunkedArray, wanted: pa.DataType, name: str) -> pa.ChunkedArray:
    try:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        return column.cast(wanted, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise SchemaMismatch(f"column {name!r} does not fit {wanted}: {error}", "cast it first", column=name) from error


def _plain(field: pa.Field) -> pa.Field:
    """Delta's Arrow form, in the spelling that `canonical_type` gives."""
    return pa.field(field.name, canonical_type(field.type, field.name), field.nullable)


def _spelled(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def project(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """The part of a topic's schema that a reader asked for, in the topic's order; the offset always comes along."""
    if columns is None:
        return schema
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise SchemaMismatch(
            f"column {missing[0]!r} is not in the topic, which has {schema.names}", "check `columns`", column=missing[0]
        )
    return pa.schema([field for field in schema if field.name in columns or field.name == OFFSET])
