"""`Topic` and `topics`: one topic with all that can be done to it, and every topic of a path."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from offsets import OffsetRange
from pyspark_trigger import publishing
from trigger_core.names import check_name
from trigger_outbox import Audit, Description, Outbox
from trigger_outbox.outbox import drop_topic, topic_names
from trigger_sink.producer import Target


class Topic:
    """A topic by name. Making one touches nothing; every method looks at the log as it is then. Thread-safe."""

    def __init__(
        self, path: str | os.PathLike[str], name: str, *, broker: str = "local:", storage: Mapping[str, str] | None = None
    ) -> None:
        self.path = os.fspath(path)
        self.name = check_name(name)
        self._target = Target(self.path, name, broker, dict(storage or {}))

    def __repr__(self) -> str:
        return f"Topic({self.path!r}, {self.name!r}, broker={self._target.broker!r})"

    def create(self, schema: pa.Schema) -> Topic:
        """Idempotent; `SchemaConflict` if it exists with other columns. NOT NULL columns stay so."""
        Outbox.create(self.path, self.name, schema, self._target.storage)
        return self

    def append(self, data: Any, *, app_id: str | None = None, version: int | None = None, **options: Any) -> OffsetRange:
        """As `publish`."""
        storage = {f"storage.{name}": value for name, value in self._target.storage.items()}
        broker = self._target.broker
        return publishing.publish(self.path, self.name, data, broker=broker, app_id=app_id, version=version, **storage, **options)

    def read(
        self, start: int | None = None, end: int | None = None, *, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows of `[start, end)`, by default all there are now, in order, in bounded memory."""
        outbox = self._open()
        state = outbox.state
        wanted = OffsetRange(state.earliest if start is None else start, state.end if end is None else end)
        return outbox.read(wanted, columns)

    def head(self) -> int:
        """The offset that the next row will get."""
        return self._open().state.end

    def earliest(self) -> int:
        """The first offset that can still be read; the head if there is none."""
        return self._open().state.earliest

    def describe(self) -> Description:
        return self._open().describe()

    def trim(self, before: int) -> OffsetRange:
        """Forgets the rows below `before` in one commit and returns which those were."""
        return self._open().trim(before)

    def compact(self) -> int:
        """Merges small files now, instead of as the writers go. Returns how many were merged away."""
        return self._open().compact(files_min=2)

    def vacuum(self, *, retention_hours: float | None = None, dry_run: bool = False) -> list[str]:
        """Deletes files that no version within the retention (an hour) needs; returns their paths."""
        return self._open().vacuum(retention_hours=retention_hours, dry_run=dry_run)

    def verify(self) -> Audit:
        """Reads everything and holds it against the log: dense, unique, ordered, statistics true, sums right."""
        return self._open().verify()

    def release(self) -> None:
        """Leaves an ordinary Delta table that any engine may write; this product then only reads it."""
        self._open().release()

    def drop(self) -> bool:
        """Removes the topic and all its files; finishes a drop that was interrupted. False if there was none."""
        return drop_topic(self.path, self.name, self._target.storage)

    def _open(self) -> Outbox:
        return Outbox.open(self.path, self.name, self._target.storage)


def topics(path: str | os.PathLike[str], *, storage: Mapping[str, str] | None = None) -> list[Description]:
    """Every topic at `path`, described, by name."""
    return [Outbox.open(path, name, storage).describe() for name in topic_names(path, storage)]
