"""The columns that a reader was declared with, held against the topic's: they may be fewer, never others."""

from __future__ import annotations

import pyarrow as pa

from trigger_core.errors import SchemaMismatch
from trigger_core.spark_api import arrow_schema, spark_schema

_CURE = "leave out schema(…) to read the columns as they are, or correct it"


def check_declared(declared: pa.Schema, topic: pa.Schema) -> None:
    """Raises `SchemaMismatch`: a column that the topic lacks would be nothing but nulls, another type a guess."""
    known = arrow_schema(spark_schema(topic))
    for field in declared:
        if field.name not in known.names:
            raise SchemaMismatch(f"column {field.name!r} is not in the topic, which has {known.names}", _CURE, column=field.name)
        if field.type != known.field(field.name).type:
            raise SchemaMismatch(
                f"column {field.name!r} is declared {field.type}, the topic has {known.field(field.name).type}",
                _CURE,
                column=field.name,
            )
