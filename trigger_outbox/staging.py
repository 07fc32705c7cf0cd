"""Rows on their way to a commit that are too large for a message: Arrow IPC files under `<topic>/staging`.

    staging/<query or operation>/<batch>/<task>-<attempt>-<uuid>.arrow

Every name is new, so tasks that run twice never touch each other's files. Swept after the commit, up to its batch, and by age.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterable, Iterator

import pyarrow as pa

from trigger_core.errors import OutboxDamaged
from trigger_outbox.storage import Store
from trigger_outbox.storage_local import LocalStore

STAGING = "staging"
SWEEP_AGE_MS = 7 * 24 * 3600 * 1000
_SAFE = re.compile(r"[^A-Za-z0-9._-]")


def stage(
    topic: Store, owner: str, batch: int, task: int, attempt: int, batches: Iterable[pa.RecordBatch], schema: pa.Schema
) -> str:
    """Writes one task's rows and returns their key within the topic."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        for rows in batches:
            writer.write_batch(rows)
    key = f"{owner_prefix(owner)}/{batch}/{task}-{attempt}-{uuid.uuid4().hex}.arrow"
    topic.put(key, sink.getvalue())
    return key


def read_staged(topic: Store, key: str) -> Iterator[pa.RecordBatch]:
    """The rows of one staged file, batch by batch."""
    try:
        source = topic.open(key)
    except FileNotFoundError as error:
        raise OutboxDamaged(f"staged rows {key} are gone before their commit", "run the batch again") from error
    with source, pa.ipc.open_file(source) as reader:
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)


def sweep_owner(topic: Store, owner: str, up_to_batch: int) -> int:
    """Removes what a query staged for this batch and the ones before it: they are committed, or will be staged anew."""
    doomed = []
    for entry in topic.list(owner_prefix(owner)):
        batch = entry.key.removeprefix(f"{owner_prefix(owner)}/").partition("/")[0]
        if batch.isdigit() and int(batch) <= up_to_batch:
            doomed.append(entry.key)
    removed = topic.delete(doomed)
    if isinstance(topic, LocalStore):
        topic.prune_folders(STAGING)
    return removed


def sweep_old(topic: Store, *, age_ms: int = SWEEP_AGE_MS, now_ms: int | None = None) -> int:
    """Removes what killed tasks and abandoned queries left, by age."""
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    removed = topic.delete([entry.key for entry in topic.list(STAGING) if now_ms - entry.modified_ms > age_ms])
    if isinstance(topic, LocalStore):
        topic.sweep_temporaries(STAGING, now_ms - age_ms)
        topic.prune_folders(STAGING)
    return removed


def owner_prefix(owner: str) -> str:
    return f"{STAGING}/{_SAFE.sub('_', owner)}"
