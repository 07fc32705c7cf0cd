"""`publish`: rows into a topic in one call, from any Python program."""

from __future__ import annotations

import os
from typing import Any

from offsets import OffsetRange
from pyspark_trigger.rows import to_table
from trigger_core.errors import SchemaMismatch, TopicNotFound, TopicRecreated
from trigger_core.options import SinkOptions
from trigger_outbox import Appended, Batch, Rows
from trigger_sink.producer import Target, forget_producer, shared_producer


def publish(
    path: str | os.PathLike[str],
    topic: str,
    data: Any,
    *,
    broker: str = "local:",
    app_id: str | None = None,
    version: int | None = None,
    **options: Any,
) -> OffsetRange:
    """Appends `data` durably, wakes readers, and returns the offsets of its rows; unpacks as `start, end`.

    Creates the topic from the data's columns if it is missing. With `app_id` and `version` it is idempotent: a version that
    was written before writes nothing and returns an empty range at the head. `options` are the sink's (`mergeSchema`,
    `wakeupPayloadBytes`, `storage.*` …). Raises a `TriggerError` with nothing written, or `CommitStateUnknown`. Thread-safe.
    """
    given: dict[str, Any] = {"path": os.fspath(path), "topic": topic, "broker": broker, **options}
    if app_id is not None:
        given["txnAppId"] = app_id
    if version is not None:
        given["txnVersion"] = version
    settings = SinkOptions.from_spark({name: _text(value) for name, value in given.items()}, streaming=False)
    table = to_table(data)
    batch = Batch(
        Rows.of(table),
        table.schema,
        txn=None if app_id is None or version is None else (app_id, version),
        merge_schema=settings.merge_schema,
        payload_bytes_max=settings.wakeup_payload_bytes,
    )
    target = Target(settings.path, topic, settings.broker, settings.storage, settings.broker_options, settings.publish_timeout_ms)
    done = append(target, batch)
    return done.range if done.range is not None else _at_head(target)


def append(target: Target, batch: Batch) -> Appended:
    """Through the process's producer for this target."""
    try:
        return shared_producer(target).append(batch)
    except (TopicNotFound, TopicRecreated, SchemaMismatch):
        # The kept producer may know an earlier topic of this name, which was dropped; a call of its own means the one there is
        # now, or a new one.
        forget_producer(target)
        return shared_producer(target).append(batch)


def _at_head(target: Target) -> OffsetRange:
    end = shared_producer(target).outbox().state.end
    return OffsetRange(end, end)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
