"""What differs between Spark 4.0, 4.1 and 4.2, in one place. The only module that asks which version this is.

since   what
4.1     Arrow writers for streams; before, rows, which are converted here
4.2     `latestOffset(start, limit)`, read limits, `SupportsTriggerAvailableNow`, `reportLatestOffset`
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from trigger_core.errors import UnsupportedType

ROWS_PER_BATCH = 10_000
_UNSTORABLE = ("CalendarIntervalType", "GeographyType", "GeometryType", "VariantType", "YearMonthIntervalType")
"""By name, because not every version of Spark has them all."""

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as SupportsTriggerAvailableNow

    HAS_READ_LIMITS = True
except ImportError:
    HAS_READ_LIMITS = False
    ReadAllAvailable = None  # type: ignore[misc,assignment]
    ReadMaxRows = None  # type: ignore[misc,assignment]

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Older versions don't ask."""


StreamWriterBase: type[Any] = getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter)
STREAM_WRITES_ARROW = hasattr(datasource, "DataSourceStreamArrowWriter")


def ignores_limits(limit: Any) -> bool:
    """Whether Spark asked for everything, as `Trigger.Once` does."""
    return HAS_READ_LIMITS and isinstance(limit, ReadAllAvailable)


def read_limit(max_rows: int | None) -> Any:
    """What `getDefaultReadLimit` returns: anything but "all" says that the source's own limits hold."""
    return ReadAllAvailable() if max_rows is None else ReadMaxRows(max_rows)


def spark_schema(schema: pa.Schema) -> StructType:
    """A topic's columns as Spark declares them."""
    return from_arrow_schema(schema)


def arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark expects record batches of `schema` to be, to the letter. `UnsupportedType` names a column without one."""
    for field in schema:
        _refuse_unstorable(field.dataType, field.name)
    return to_arrow_schema(schema, timezone="UTC")


def _refuse_unstorable(kind: DataType, column: str) -> None:
    """Types that Spark can't give as Arrow, or gives as a struct of bytes that would come back as such."""
    if isinstance(kind, StructType):
        for field in kind:
            _refuse_unstorable(field.dataType, f"{column}.{field.name}")
    elif isinstance(kind, ArrayType):
        _refuse_unstorable(kind.elementType, f"{column}.element")
    elif isinstance(kind, MapType):
        _refuse_unstorable(kind.keyType, f"{column}.key")
        _refuse_unstorable(kind.valueType, f"{column}.value")
    elif type(kind).__name__ in _UNSTORABLE:
        raise UnsupportedType(
            f"column {column!r} is {kind.simpleString()}, which a topic can't hold",
            "cast it first (to string, bigint, decimal…)",
            column=column,
        )


def as_batches(rows: Iterator[Any], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Rows of a writer that is not given Arrow, as Arrow."""
    wanted = arrow_schema(schema)
    while chunk := list(islice(rows, ROWS_PER_BATCH)):
        columns = [pa.array([_plain(row[index]) for row in chunk], field.type) for index, field in enumerate(wanted)]
        yield pa.RecordBatch.from_arrays(columns, schema=wanted)


def _plain(value: Any) -> Any:
    if hasattr(value, "asDict"):
        return {name: _plain(item) for name, item in value.asDict().items()}
    if isinstance(value, dict):
        return [(_plain(key), _plain(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
