"""The task side of the sink: gathers a task's record batches into a message. Never sees an offset."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext

from trigger_outbox.staging import stage
from trigger_outbox.storage import Store
from trigger_sink.message import TaskRows

STAGE_BYTES = 32 * 1024 * 1024
"""A task holds so many Arrow bytes before it stages them."""
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


def write_task(batches: Iterator[pa.RecordBatch], home: Store, operation: str, inline_bytes: int) -> TaskRows:
    """Runs in a task. `operation` names a batch job; a streaming query is named by the task's own context."""
    context = TaskContext.get()
    assert context is not None, "write runs inside a task"
    owner, batch = _owner(context, operation)
    held: list[pa.RecordBatch] = []
    held_bytes = rows = 0
    staged: list[str] = []

    def flush() -> None:
        nonlocal held, held_bytes
        staged.append(stage(home, owner, batch, context.partitionId(), context.attemptNumber(), held, held[0].schema))
        held, held_bytes = [], 0

    for each in batches:
        if each.num_rows == 0:
            continue
        held.append(each)
        held_bytes += each.nbytes
        rows += each.num_rows
        if held_bytes >= STAGE_BYTES:
            flush()
    inline = None
    if held and not staged:
        inline = _encode(held)
        if len(inline) > inline_bytes:
            inline = None
    if held and inline is None:
        flush()
    return TaskRows(context.partitionId(), owner, batch, rows, inline, tuple(staged))


def _owner(context: TaskContext, operation: str) -> tuple[str, int]:
    query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    return (query, int(batch)) if query and batch else (operation, 0)


def _encode(batches: list[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()
