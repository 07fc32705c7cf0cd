"""A topic's beginning and end: create, list, describe, release, drop.

A topic is a folder: `outbox` is the Delta table, `staging` rows on their way. It exists when commit 0 does, which is one put, so
there is no half-made topic. It ends with a commit that says so, which every writer and reader runs into; then the files go, the
oldest first.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from trigger_core.errors import CommitContended, OutboxDamaged, StoreError, TopicNotFound, TriggerError, UnsafeStore
from trigger_core.names import check_name
from trigger_outbox.commit import Record, create_commit, drop_commit, release_commit
from trigger_outbox.follow import Follower, open_snapshot
from trigger_outbox.lock import LOCK_FILE
from trigger_outbox.put import Lost, put_commit, stands
from trigger_outbox.schema import topic_schema
from trigger_outbox.staging import STAGING
from trigger_outbox.storage import KeyExists, Store
from trigger_outbox.storage_local import LocalStore

OUTBOX = "outbox"
TRIES_MAX = 50
CONFIGURATION = {"delta.dataSkippingNumIndexedCols": "2", "delta.deletedFileRetentionDuration": "interval 1 hours"}


@dataclass(frozen=True)
class Description:
    """A topic, as `describe` and `topics` give it."""

    name: str
    path: str
    id: str
    version: int
    earliest: int
    end: int
    rows: int
    files: int
    bytes: int
    produced_at_us: int
    schema: pa.Schema
    guarded: bool


def create(root: Store, topic: str, schema: pa.Schema, configuration: Mapping[str, str] | None = None) -> Follower:
    """The topic, made now or earlier with the same columns. Raises `SchemaConflict` on others, `UnsafeStore` where two
    creates of one key would both succeed."""
    wanted = topic_schema(schema)
    home = root.child(check_name(topic))
    outbox = home.child(OUTBOX)
    for _ in range(TRIES_MAX):
        try:
            state, _ = open_snapshot(outbox, topic)
            state.metadata.schema.require_same(wanted, topic)
            return Follower(outbox, topic, table_id=state.table_id)
        except TopicNotFound as error:
            if error.facts.get("dropped"):
                raise
        if any(True for _ in outbox.list("_delta_log")):
            raise OutboxDamaged(
                f"topic {topic!r} has a log without its beginning: a drop() was interrupted", "call drop() again, then create it"
            )
        prove_create_if_absent(home)
        record = Record(str(uuid.uuid4()), uuid.uuid4().hex, "create")
        body = create_commit(record, wanted, {**CONFIGURATION, **(configuration or {})}, time.time_ns() // 1_000_000)
        if not isinstance(put_commit(outbox, 0, body, record.operation), Lost):
            return Follower(outbox, topic, table_id=record.table)
    raise CommitContended(f"topic {topic!r} was created and dropped {TRIES_MAX} times meanwhile", "try again")


def prove_create_if_absent(home: Store) -> None:
    """Two creates of one key: the second must fail. Everything rests on that."""
    probe = f"{STAGING}/probe-{uuid.uuid4().hex}"
    home.create(probe, b"1")
    try:
        home.create(probe, b"2")
    except KeyExists:
        return
    finally:
        home.delete([probe])
    raise UnsafeStore(
        f"{home.url} lets two writers both create one key",
        "use a store with put-if-absent (S3, GCS, Azure, a local disk) or another path",
    )


def describe(follower: Follower, path: str) -> Description:
    follower.refresh()
    state = follower.state
    return Description(
        name=follower.topic,
        path=path,
        id=state.table_id,
        version=state.version,
        earliest=state.earliest,
        end=state.end,
        rows=state.end - state.earliest,
        files=len(state.files),
        bytes=sum(file.size for file in state.files),
        produced_at_us=state.produced_at_us,
        schema=state.metadata.schema.arrow,
        guarded=state.guarded,
    )


def topic_names(root: Store) -> list[str]:
    """Every folder that is a topic, or is damaged as one."""
    return [name for name in root.folders() if any(True for _ in root.child(name).child(OUTBOX).list("_delta_log"))]


def release(follower: Follower) -> None:
    """Takes the guard off: an ordinary Delta table is left, for any engine to write. This product then only reads it."""
    record: Record | None = None
    for _ in range(TRIES_MAX):
        follower.refresh()
        state = follower.state
        if not state.guarded:
            return
        record = record or Record(state.table_id, uuid.uuid4().hex, "release")
        body = release_commit(record, state.metadata.schema, read_version=state.version, now_ms=time.time_ns() // 1_000_000)
        if isinstance(put_commit(follower.store, state.version + 1, body, record.operation), Lost):
            continue
        if stands(follower.store, state, record.operation):
            follower.refresh()
            return
        follower.reopen()
    raise CommitContended(f"lost {TRIES_MAX} races for the release of {follower.store.url}", "try again with fewer writers")


def drop(root: Store, topic: str) -> bool:
    """Ends the topic and removes all it has. Idempotent: finishes a drop that was interrupted. False if there was none."""
    home = root.child(check_name(topic))
    outbox = home.child(OUTBOX)
    if not any(True for _ in home.list()):
        return False
    _end(outbox, topic)
    log = sorted(entry.key for entry in outbox.list("_delta_log"))
    named = [key for key in log if not key.rpartition("/")[2].startswith("_")]
    outbox.delete([key for key in log if key not in named])  # `_last_checkpoint`, a hint
    outbox.delete(named)  # the oldest first: what is left can't be taken for a log
    home.delete(sorted(entry.key for entry in home.list()))
    if isinstance(home, LocalStore):
        home.delete([LOCK_FILE])
        home.sweep_temporaries("", 2**62)
        home.prune_folders()
    return True


def _end(outbox: Store, topic: str) -> None:
    """Puts the commit that ends the topic. A log that can't be opened is past that: its files go as they are."""
    for _ in range(TRIES_MAX):
        try:
            state, _ = open_snapshot(outbox, topic)
        except StoreError:
            raise
        except TriggerError:
            return
        record = Record(state.table_id, uuid.uuid4().hex, "drop")
        body = drop_commit(record, read_version=state.version, now_ms=time.time_ns() // 1_000_000)
        if not isinstance(put_commit(outbox, state.version + 1, body, record.operation), Lost):
            return
    raise CommitContended(f"lost {TRIES_MAX} races for the drop of {outbox.url}", "stop its writers and try again")
