"""`DefaultSource`: what Spark registers as the format `trigger`."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceWriter
from pyspark.sql.types import StructType

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
        # Spark does not say here whether this is a stream: options that belong to one of the two are checked by the reader.
        given = {key: value for key, value in self.options.items() if key.lower() in ("path", "topic", "columns") or "." in key}
        options = SourceOptions.from_spark(given, streaming=True)
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


def register(spark: Any) -> None:
    """Registers the format with one session: needed only where Spark's own discovery does not find it."""
    spark.dataSource.register(DefaultSource)
