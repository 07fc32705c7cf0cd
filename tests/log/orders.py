"""The topic that these tests write to, and what they ask of a store: everything in it, before and after."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from offsets import OffsetRange
from tests.conftest import Place
from trigger_outbox import Appended, Batch, Outbox, Rows
from trigger_outbox.storage import Store, open_store

TOPIC = "orders"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


def table(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": [f"order {number}" for number in ids]}, schema=SCHEMA)


def batch(rows: pa.Table, **settings: Any) -> Batch:
    return Batch(Rows.of(rows), rows.schema, **settings)


def created(place: Place, topic: str = TOPIC, schema: pa.Schema = SCHEMA) -> Outbox:
    return Outbox.create(place.path, topic, schema, place.storage_options)


def reopened(place: Place, topic: str = TOPIC) -> Outbox:
    """As another process sees it."""
    return Outbox.open(place.path, topic, place.storage_options)


def append(outbox: Outbox, *ids: int, **settings: Any) -> Appended:
    return outbox.append(batch(table(*ids), **settings), upkeep=False)


def filled(place: Place, appends: int, rows: int = 1) -> Outbox:
    """A topic whose ids are its offsets, a file per append."""
    outbox = created(place)
    for start in range(0, appends * rows, rows):
        append(outbox, *range(start, start + rows))
    return outbox


def whole(outbox: Outbox) -> OffsetRange:
    return outbox.state.range


def ids(outbox: Outbox, wanted: OffsetRange | None = None) -> list[int]:
    outbox.refresh()
    return [value for rows in outbox.read(whole(outbox) if wanted is None else wanted) for value in rows.column("id").to_pylist()]


def root(place: Place) -> Store:
    return open_store(place.path, place.storage_options)


def listing(place: Place) -> dict[str, int]:
    """Every object at the place with its size; the writers' lock file is no content."""
    return {entry.key: entry.size for entry in root(place).list() if not entry.key.endswith("writers.lock")}


def assert_sound(outbox: Outbox, rows: int | None = None) -> None:
    audit = outbox.verify()
    assert audit.ok, audit.problems
    if rows is not None:
        assert audit.rows == rows
