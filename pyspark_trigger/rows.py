"""What a user may hand to `publish`, as an Arrow table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from trigger_core.errors import SchemaMismatch


def to_table(data: Any) -> pa.Table:
    """A pyarrow Table or RecordBatch, a pandas frame, anything with Arrow's stream interface (polars…), or a list of dicts."""
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    pandas = sys.modules.get("pandas")
    try:
        if pandas is not None and isinstance(data, pandas.DataFrame):
            return pa.Table.from_pandas(data, preserve_index=False).replace_schema_metadata(None)
        if hasattr(data, "__arrow_c_stream__"):
            return pa.table(data)
        if isinstance(data, list | tuple) and all(isinstance(row, dict) for row in data):
            return _from_dicts(data)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        problem = str(error).partition("\n")[0]
        raise SchemaMismatch(f"the rows are not of one type: {problem}", "give each column values of one type") from error
    raise SchemaMismatch(
        f"rows can't be a {type(data).__name__}", "give a pyarrow Table or RecordBatch, a pandas DataFrame or a list of dicts"
    )


def _from_dicts(rows: Sequence[dict[Any, Any]]) -> pa.Table:
    names = list(dict.fromkeys(name for row in rows for name in row))  # a key that is missing in the first row counts too
    strange = [name for name in names if not isinstance(name, str)]
    if strange:
        raise SchemaMismatch(f"column name {strange[0]!r} is a {type(strange[0]).__name__}", "give names as text")
    if rows and not names:
        # An Arrow table without columns has no rows either: these would be gone without a word.
        raise SchemaMismatch(f"{len(rows)} rows have no columns", "give each row at least one value")
    return pa.table({name: pa.array([row.get(name) for row in rows]) for name in names})
