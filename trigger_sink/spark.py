"""Spark's writers: what Spark calls, each a few lines on top of `write` and `commit`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from trigger_core.errors import InvalidOption
from trigger_core.options import SinkOptions
from trigger_core.spark_api import STREAM_WRITES_ARROW, StreamWriterBase, arrow_schema, as_batches
from trigger_sink.commit import abort_rows, check_schema, commit_rows, home_of
from trigger_sink.message import TaskRows
from trigger_sink.write import write_task


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise InvalidOption("a topic is append-only", 'use mode("append") or outputMode("append")')


class TriggerBatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        _refuse_overwrite(overwrite)
        self.options = options
        self.schema = arrow_schema(schema)
        self.operation = uuid.uuid4().hex
        check_schema(options, self.schema)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_task(iterator, home_of(self.options), self.operation, self.options.inline_bytes)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit_rows(self.options, self.schema, _tasks(messages), self.options.txn, strict=False)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort_rows(self.options, _tasks(messages), self.operation)


class TriggerStreamWriter(StreamWriterBase):  # type: ignore[misc]
    """Built anew for every batch; the query and its batch travel in the messages."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        _refuse_overwrite(overwrite)
        self.options = options
        self.spark_schema = schema
        self.schema = arrow_schema(schema)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        batches = iterator if STREAM_WRITES_ARROW else as_batches(iterator, self.spark_schema)
        return write_task(batches, home_of(self.options), "", self.options.inline_bytes)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        tasks = _tasks(messages)
        if tasks:
            commit_rows(self.options, self.schema, tasks, (tasks[0].owner, batchId), strict=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        abort_rows(self.options, _tasks(messages), None)


def _tasks(messages: list[WriterCommitMessage | None]) -> list[TaskRows]:
    return [message for message in messages if isinstance(message, TaskRows)]
