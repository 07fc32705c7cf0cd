"""Keeping a log flat: merging files, checkpoints, log cleanup, vacuum. Each is right beside any number of writers.

`compact` is planned on the followed state and put at exactly the next version; if anything else landed, it is folded in and
every input must still be active. Through delta-rs two compactions of the same files both commit, so never through it.
`clean_log` keeps FENCE_S and LOG_VERSIONS_KEPT, removes the oldest first, and measures ages by the store's own clock.
"""

from __future__ import annotations

import logging
import math
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from trigger_core.errors import OutboxDamaged, TriggerError
from trigger_outbox.commit import DataFile, Record, compact_commit
from trigger_outbox.encode import ROW_GROUP_ROWS, new_path, open_writer
from trigger_outbox.follow import FENCE_S, Follower
from trigger_outbox.put import Lost, put_commit, stands
from trigger_outbox.read import BATCH_ROWS, aligned, opened
from trigger_outbox.storage import Entry, Store
from trigger_outbox.storage_local import LocalStore
from trigger_outbox.tiers import merged_level, plan_merge

CHECKPOINT_VERSIONS = 50
CLEANUP_VERSIONS = 100
LOG_VERSIONS_KEPT = 200
COMPACT_TRIES_MAX = 20
VACUUM_VERSIONS = 1_000
TEMPORARY_AGE_MS_MAX = 3_600_000
_logger = logging.getLogger(__name__)
_VERSIONED = re.compile(r"_delta_log/(\d{20})\.(json|checkpoint\.parquet|crc)$")


@dataclass(frozen=True)
class Upkeep:
    """What one round of maintenance did."""

    merged: int = 0
    checkpoint: bool = False
    cleaned: int = 0
    seconds: float = 0.0


def keep_up(follower: Follower, version: int) -> Upkeep:
    """The share of maintenance that falls to the writer of `version`: bounded work, after its commit and its wakeup. Raises
    nothing: the commit is acknowledged, and what keeps this round from being done the next append will meet."""
    began = time.monotonic()
    merged, checkpointed, cleaned = 0, False, 0
    try:
        merged = compact(follower, rounds_max=1)
        # A merge is a commit too, and may be the one that a checkpoint falls on.
        last = follower.state.version
        if any(number % CHECKPOINT_VERSIONS == 0 for number in range(version, last + 1)):
            checkpointed = checkpoint(follower.store)
        if any(number % CLEANUP_VERSIONS == 0 for number in range(version, last + 1)):
            cleaned = clean_log(follower.store)
        if any(number % VACUUM_VERSIONS == 0 for number in range(version, last + 1)):
            vacuum(follower)
    except (TriggerError, DeltaError, OSError) as error:
        _logger.warning("maintenance of %s after commit %d was put off: %s", follower.store.url, version, error)
    return Upkeep(merged, checkpointed, cleaned, time.monotonic() - began)


def compact(follower: Follower, *, rounds_max: int = 1000, files_min: int | None = None) -> int:
    """Merges files, a commit per merge, until nothing is due. Returns how many files were merged away."""
    merged = 0
    for _ in range(rounds_max):
        chosen = plan_merge(follower.state.files) if files_min is None else plan_merge(follower.state.files, files_min=files_min)
        if not chosen:
            break
        if not _merge(follower, chosen):
            break
        merged += len(chosen)
    return merged


def _merge(follower: Follower, chosen: Sequence[DataFile]) -> bool:
    """One compaction. False if another writer changed one of its inputs first: nothing is lost but the work."""
    outbox, state = follower.store, follower.state
    record = Record(state.table_id, uuid.uuid4().hex, "compact")
    try:
        added = _write_merged(outbox, chosen, state.metadata.schema.arrow, merged_level(chosen), state.version)
    except FileNotFoundError:
        follower.refresh()
        return False
    for _ in range(COMPACT_TRIES_MAX):
        state = follower.state
        if not set(chosen) <= set(state.files) or not state.guarded:
            return False
        body = compact_commit(record, [added], chosen, read_version=state.version, now_ms=time.time_ns() // 1_000_000)
        outcome = put_commit(outbox, state.version + 1, body, record.operation)
        if not isinstance(outcome, Lost):
            if not stands(outbox, state, record.operation):
                follower.reopen()
                return False
            follower.fold_own(state.version + 1, outcome.body)
            return True
        follower.refresh()
    return False


def _write_merged(outbox: Store, chosen: Sequence[DataFile], schema: pa.Schema, level: int, version: int) -> DataFile:
    """One file with the rows of `chosen`, in order, checked to be exactly theirs."""
    start, end = chosen[0].start, chosen[-1].end
    sink = pa.BufferOutputStream()
    writer: pq.ParquetWriter | None = None
    at = start
    for table in _tables(outbox, chosen, schema):
        if not table.column("_offset").combine_chunks().equals(pa.arange(at, at + table.num_rows)):
            raise OutboxDamaged(f"rows from {at} on are not in order in the files to be merged", "run verify()")
        at += table.num_rows
        # A new writer per file would need one sample for all; statistics of floats are off as soon as one group has NaN.
        writer = writer or open_writer(sink, table.slice(0, 0), floats=False)
        writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
    if writer is None or at != end:
        raise OutboxDamaged(f"files of {start} to {end} have rows up to {at} only", "run verify()")
    writer.close()
    data = sink.getvalue()
    path = new_path(level, version)
    outbox.put(path, data)
    produced = [file.produced_min_us for file in chosen], [file.produced_max_us for file in chosen]
    return DataFile(path, data.size, end - start, start, end, min(produced[0]), max(produced[1]), time.time_ns() // 1_000_000)


def _tables(outbox: Store, chosen: Sequence[DataFile], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of all files, joined to row groups of a good size."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for file in chosen:
        with opened(outbox, file) as parquet:
            for batch in parquet.iter_batches(batch_size=BATCH_ROWS):
                held.append(aligned(batch, schema))
                rows += batch.num_rows
                if rows >= ROW_GROUP_ROWS:
                    yield pa.Table.from_batches(held, schema)
                    held, rows = [], 0
    if held:
        yield pa.Table.from_batches(held, schema)


def checkpoint(outbox: Store) -> bool:
    """A checkpoint of the head, by delta-rs. False if the log moved under it; the next one will do."""
    try:
        DeltaTable(outbox.url, storage_options=dict(outbox.options) or None).create_checkpoint()
        return True
    except (DeltaError, OSError):
        return False


def clean_log(outbox: Store) -> int:
    """Removes log files below the newest checkpoint that is older than LOG_VERSIONS_KEPT versions and FENCE_S, oldest first."""
    found = [(version, entry) for entry in outbox.list("_delta_log") if (version := _version_of(entry)) is not None]
    entries = sorted(found, key=lambda each: (each[0], each[1].key))
    if not entries:
        return 0
    head = max((version for version, entry in entries if entry.key.endswith(".json")), default=0)
    store_now_ms = max(entry.modified_ms for _, entry in entries)  # no host's clock: the store's, as of its newest file
    checkpoints = [
        version
        for version, entry in entries
        if entry.key.endswith(".checkpoint.parquet") and version <= head - LOG_VERSIONS_KEPT and _is_old(entry, store_now_ms)
    ]
    if not checkpoints:
        return 0
    keep_from = max(checkpoints)
    doomed = []
    for version, entry in entries:
        if version >= keep_from:
            break
        if not _is_old(entry, store_now_ms):
            break  # the names that stand must have no hole among them
        doomed.append(entry.key)
    removed = outbox.delete(doomed)
    if isinstance(outbox, LocalStore):
        outbox.sweep_temporaries("_delta_log", store_now_ms - TEMPORARY_AGE_MS_MAX)
    return removed


def _is_old(entry: Entry, store_now_ms: int) -> bool:
    return store_now_ms - entry.modified_ms > FENCE_S * 1000


def _version_of(entry: Entry) -> int | None:
    match = _VERSIONED.search(entry.key)
    return int(match[1]) if match else None


def vacuum(follower: Follower, *, retention_hours: float | None = None, dry_run: bool = False) -> list[str]:
    """Deletes data files that no version within the retention needs, and returns their paths. delta-rs says which; the guard
    refuses its own deletion."""
    outbox = follower.store
    table = DeltaTable(outbox.url, storage_options=dict(outbox.options) or None)
    hours = None if retention_hours is None else math.ceil(retention_hours)  # delta-rs counts whole hours; never keep less
    doomed = table.vacuum(retention_hours=hours, dry_run=True, enforce_retention_duration=False, full=True)
    active = {file.path for file in follower.reopen().files}
    doomed = sorted(path for path in doomed if path not in active and path.endswith(".parquet"))
    if not dry_run:
        outbox.delete(doomed)
        if isinstance(outbox, LocalStore):
            outbox.sweep_temporaries("", time.time_ns() // 1_000_000 - TEMPORARY_AGE_MS_MAX)
            for folder in outbox.folders():
                if folder != "_delta_log":
                    outbox.prune_folders(folder)
    return doomed
