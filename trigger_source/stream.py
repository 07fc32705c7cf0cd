"""Spark's stream reader: each method is decode → one pure call → encode.

The reader is one process for the life of a query, but its constructor also runs in a planning process that outlives it, and it
is pickled to tasks: so nothing is opened before it is asked for, and what is open does not travel.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from offsets import (
    OFFSET_MAX,
    UNLIMITED,
    Limits,
    OffsetRange,
    StreamOffset,
    admit,
    available_now,
    check_topic,
    range_between,
)
from offsets.admission import TRIGGER_DELAY_MS_DEFAULT
from trigger_core.errors import DataLoss, InvalidOffset
from trigger_core.options import SourceOptions
from trigger_core.spark_api import SupportsTriggerAvailableNow, arrow_schema, ignores_limits, read_limit
from trigger_outbox import Outbox
from trigger_source.declared import check_declared
from trigger_source.partition import plan_partitions
from trigger_source.start import start_of
from trigger_source.tail import Tail


class TriggerStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.schema: pa.Schema = arrow_schema(schema)
        self._tail: Tail | None = None
        self._cap: int | None = None
        self._admitted_ms: int | None = None
        self._last: StreamOffset | None = None
        """Where the query stands, for versions of Spark that don't say."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_tail": None}

    @property
    def tail(self) -> Tail:
        if self._tail is None:
            options = self.options
            outbox = Outbox.open(options.path, options.topic, options.storage)
            check_declared(self.schema, outbox.state.metadata.schema.arrow)
            self._tail = Tail(
                outbox,
                options.broker,
                options.broker_options,
                cache_bytes=options.cache_bytes,
                poll_interval_ms=options.poll_interval_ms,
            )
            self._tail.attach()
            self._tail.refresh()
        return self._tail

    def initialOffset(self) -> dict[str, Any]:
        self.tail.refresh()
        position, kind = start_of(self.options, self.tail.outbox)
        self._last = StreamOffset.initial(self.options.topic, self._table_id(), position, kind)
        return self._last.to_dict()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        offset = StreamOffset.parse(start) if start is not None else self._last
        if offset is None:
            return StreamOffset.at(self.options.topic, self._table_id(), self._head(0)).to_dict()
        position = check_topic(offset, self.options.topic, self._table_id())
        if position.init == "latest":
            return self._remember(offset.pin(self.options.topic))
        head = self._head(position.next)
        if head < position.next:
            self._require_reached(position.next)
        if self._cap is not None:
            head = available_now(position.next, self._cap, head)
        limits = UNLIMITED if ignores_limits(limit) else self._limits()
        now_ms = time.monotonic_ns() // 1_000_000
        sizes = [(OffsetRange(file.start, file.end), file.size) for file in self._files(limits, position.next, head)]
        end = admit(position.next, head, limits, now_ms=now_ms, last_trigger_ms=self._admitted_ms, sizes=sizes)
        if self._cap is not None and end == position.next < head:
            end = admit(position.next, head, UNLIMITED, now_ms=now_ms, last_trigger_ms=None)  # nothing more will come to wait for
        if end > position.next:
            self._admitted_ms = now_ms
        return self._remember(offset.advance(self.options.topic, end))

    def getDefaultReadLimit(self) -> Any:
        limits = self._limits()
        return read_limit(None if limits == UNLIMITED else limits.max_offsets or OFFSET_MAX)

    def reportLatestOffset(self) -> dict[str, Any]:
        return StreamOffset.at(self.options.topic, self._table_id(), self.tail.head).to_dict()

    def prepareForTriggerAvailableNow(self) -> None:
        self._cap = self.tail.refresh()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = StreamOffset.parse(start), StreamOffset.parse(end)
        check_topic(last, self.options.topic, self._table_id())
        wanted = range_between(first, last, self.options.topic)
        self._last = last
        if wanted.end > self.tail.head:
            self.tail.refresh()
        self._require_held(wanted)
        return plan_partitions(wanted, self.tail.outbox.state, self.options, self.tail)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return partition.read(self.options, self.schema)

    def commit(self, end: dict[str, Any]) -> None:
        self.tail.forget(StreamOffset.parse(end).position(self.options.topic).next)

    def stop(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None

    def _head(self, beyond: int) -> int:
        return self.tail.wait(beyond, 0 if self._cap is not None else self.options.wakeup_wait_ms)

    def _files(self, limits: Limits, position: int, head: int) -> Sequence[Any]:
        if limits.max_bytes is None or head <= position:
            return ()
        return self.tail.outbox.state.overlapping(OffsetRange(position, head))

    def _limits(self) -> Limits:
        options = self.options
        delay_ms = TRIGGER_DELAY_MS_DEFAULT if options.max_trigger_delay_ms is None else options.max_trigger_delay_ms
        return Limits(options.max_offsets, options.min_offsets, delay_ms, options.max_bytes)

    def _remember(self, offset: StreamOffset) -> dict[str, Any]:
        self._last = offset
        return offset.to_dict()

    def _table_id(self) -> str:
        return self.tail.outbox.state.table_id

    def _require_reached(self, position: int) -> None:
        """A position past the head would pass over, in silence, the rows that come until the head is there."""
        head = self.tail.refresh()
        if head < position:
            raise InvalidOffset(
                f"the checkpoint is at {position}, topic {self.options.topic!r} ends at {head}",
                "the topic lost rows or the checkpoint is of another topic; check both, or start with a new checkpointLocation",
                start=position,
                end=head,
            )

    def _require_held(self, wanted: OffsetRange) -> None:
        state = self.tail.outbox.state
        if wanted and (wanted.start < state.earliest or wanted.end > state.end):
            raise DataLoss(
                f"topic {self.options.topic!r} no longer holds what this query has not read: requested {wanted.start} to"
                f" {wanted.end}, earliest {state.earliest}, latest {state.end}",
                "start with a new checkpointLocation, and keep more rows than the slowest query is behind",
                requested=wanted.start,
                earliest=state.earliest,
                latest=state.end,
            )
