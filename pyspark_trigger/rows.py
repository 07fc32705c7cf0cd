"""What a user may hand to `publish`, as an Arrow table."""

from __future__ import annotations

import sys
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
            names = list(dict.fromkeys(name for row in data for name in row))  # a key that is missing in the first row counts too
            return pa.table({name: pa.array([row.get(name) for row in data]) for name in names})
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise SchemaMismatch(f"the rows are not of one type: {error}", "give each column values of one type") from error
    raise SchemaMismatch(
        f"rows can't be a {type(data).__name__}", "give a pyarrow Table or RecordBatch, a pandas DataFrame or a list of dicts"
    )
