"""One topic with every kind of commit in its log, and what each version of it holds."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa

from tests.conftest import Place
from tests.log.orders import append, batch, created, table
from trigger_outbox import Outbox
from trigger_outbox.commit import Record, key_of, turn_commit
from trigger_outbox.state import turn_of


@dataclass(frozen=True)
class Version:
    """What the log is after one commit."""

    kind: str
    operation: str
    """As DESCRIBE HISTORY has it."""
    offsets: tuple[int, ...]
    """On disk, which a trim leaves by whole files."""
    columns: tuple[str, ...] = ("_offset", "_produced_at", "id", "name")


WIDE = ("_offset", "_produced_at", "id", "name", "at")
VERSIONS = (
    Version("create", "CREATE TABLE", ()),
    Version("append", "WRITE", (0, 1, 2)),
    Version("append with txn", "WRITE", (0, 1, 2, 3, 4)),
    Version("schema change", "WRITE", (0, 1, 2, 3, 4, 5, 6), WIDE),
    Version("turn", "WRITE", (0, 1, 2, 3, 4, 5, 6), WIDE),
    Version("trim", "DELETE", (3, 4, 5, 6), WIDE),
    Version("compaction", "OPTIMIZE", (3, 4, 5, 6), WIDE),
    Version("append after it", "WRITE", (3, 4, 5, 6, 7, 8), WIDE),
)
RELEASED = (*VERSIONS, Version("release", "DROP FEATURE", (3, 4, 5, 6, 7, 8), WIDE))


def build(folder: Path) -> Outbox:
    """The guarded topic; `release()` adds the last version."""
    outbox = created(Place(str(folder)))
    append(outbox, 0, 1, 2)
    append(outbox, 3, 4, txn=("query \u2028 ü", 7))
    wider = table(5, 6).append_column("at", pa.array([datetime(2026, 1, 2), None], pa.timestamp("us")))
    outbox.append(batch(wider, merge_schema=True), upkeep=False)
    ask_for_a_turn(outbox)
    outbox.trim(4)
    assert outbox.compact(files_min=2) == 2
    append(outbox, 7, 8)
    assert outbox.state.version == len(VERSIONS) - 1
    return outbox


def ask_for_a_turn(outbox: Outbox) -> None:
    state = outbox.state
    record = Record(state.table_id, turn_of(uuid.uuid4().hex), "turn", turn_ms=100)
    body = turn_commit(record, read_version=state.version, now_ms=time.time_ns() // 1_000_000)
    outbox.follower.store.create(key_of(state.version + 1), body)
    outbox.refresh()
