"""Spark's batch reader: a range by offset or time, fixed when the query is planned, read in parallel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from offsets import OFFSET_MAX, OffsetRange
from trigger_core.options import SourceOptions
from trigger_core.spark_api import arrow_schema
from trigger_outbox import Outbox
from trigger_outbox.schema import OFFSET, PRODUCED_AT
from trigger_source.declared import check_declared
from trigger_source.partition import NoRows, plan_partitions
from trigger_source.start import range_of


class TriggerBatchReader(DataSourceReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.schema: pa.Schema = arrow_schema(schema)
        self._offsets = OffsetRange(0, OFFSET_MAX)
        self._times_us = (0, OFFSET_MAX)

    def partitions(self) -> Sequence[InputPartition]:
        outbox = Outbox.open(self.options.path, self.options.topic, self.options.storage)
        check_declared(self.schema, outbox.state.metadata.schema.arrow)
        wanted = range_of(self.options, outbox).intersect(self._offsets)
        if self._times_us != (0, OFFSET_MAX):
            first, last = (outbox.offset_at(moment) if moment != OFFSET_MAX else outbox.state.end for moment in self._times_us)
            wanted = wanted.intersect(OffsetRange(min(first, last), max(first, last)))
        return plan_partitions(wanted, outbox.state, self.options) or [NoRows()]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return partition.read(self.options, self.schema)


class FilteringBatchReader(TriggerBatchReader):
    """With `pushFilters`: filters on `_offset` and `_produced_at` narrow the range; Spark applies all of them again.

    A class of its own, because a reader that merely has `pushFilters` fails every read while Spark's
    `spark.sql.python.filterPushdown.enabled` is off, which is its default.
    """

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        for each in filters:
            column = getattr(each, "attribute", None)
            if column == (OFFSET,) and isinstance(each.value, int):
                start, end = _bounds(each, each.value)
                self._offsets = self._offsets.intersect(
                    OffsetRange(max(0, min(start, OFFSET_MAX)), max(0, min(end, OFFSET_MAX), start))
                )
            elif column == (PRODUCED_AT,) and isinstance(each.value, datetime):
                moment = each.value if each.value.tzinfo else each.value.replace(tzinfo=timezone.utc)
                start, end = _bounds(each, int(moment.timestamp() * 1_000_000))
                self._times_us = (max(self._times_us[0], start), min(self._times_us[1], end))
        return filters


def _bounds(condition: Any, value: int) -> tuple[int, int]:
    """`[start, end)` of the values that can satisfy a filter; everything where it says nothing of bounds."""
    if isinstance(condition, datasource.EqualTo):
        return value, value + 1
    if isinstance(condition, datasource.GreaterThan):
        return value + 1, OFFSET_MAX
    if isinstance(condition, datasource.GreaterThanOrEqual):
        return value, OFFSET_MAX
    if isinstance(condition, datasource.LessThan):
        return 0, value
    if isinstance(condition, datasource.LessThanOrEqual):
        return 0, value + 1
    return 0, OFFSET_MAX
