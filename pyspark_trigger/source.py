"""`DefaultSource`: what Spark registers as the format `trigger`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceWriter
from pyspark.sql.types import StructType

from trigger_core.errors import TriggerError
from trigger_core.options import SinkOptions, SourceOptions
from trigger_core.spark_api import spark_schema
from trigger_outbox import Outbox
from trigger_outbox.schema import project


class DefaultSource(DataSource):
    """`spark.readStream.format("trigger")`, `spark.writeStream.format("trigger")`, and both for batches."""

    @classmethod
    def name(cls) -> str:
        return "trigger"

    def schema(self) -> StructType:
        options = _source_options(self.options)
        outbox = Outbox.open(options.path, options.topic, options.storage)
        return spark_schema(project(outbox.state.metadata.schema.arrow, options.columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        from trigger_source.batch import FilteringBatchReader, TriggerBatchReader

        options = SourceOptions.from_spark(self.options, streaming=False)
        return (FilteringBatchReader if options.push_filters else TriggerBatchReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from trigger_source.stream import TriggerStreamReader

        return TriggerStreamReader(SourceOptions.from_spark(self.options, streaming=True), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from trigger_sink.spark import TriggerBatchWriter

        return TriggerBatchWriter(SinkOptions.from_spark(self.options, streaming=False), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        from trigger_sink.spark import TriggerStreamWriter

        return TriggerStreamWriter(SinkOptions.from_spark(self.options, streaming=True), schema, overwrite)


def _source_options(given: Mapping[str, str]) -> SourceOptions:
    """Spark does not say in `schema` whether this is a stream: what neither a stream nor a batch could mean is refused at
    `load()`, the rest by the reader."""
    try:
        return SourceOptions.from_spark(given, streaming=True)
    except TriggerError as refused:
        try:
            return SourceOptions.from_spark(given, streaming=False)
        except TriggerError as refused_too:
            raise (refused_too if refused.facts.get("misplaced") else refused) from None


def register(spark: Any) -> None:
    """Registers the format with one session: needed only where Spark's own discovery does not find it."""
    spark.dataSource.register(DefaultSource)
