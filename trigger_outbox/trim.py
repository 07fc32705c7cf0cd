"""Forgetting the oldest rows: one commit, exact by the number it carries, file-granular on disk."""

from __future__ import annotations

import time
import uuid

from offsets import OffsetRange, check_offset
from trigger_core.errors import CommitContended, InvalidOffset
from trigger_outbox.commit import Record, trim_commit
from trigger_outbox.follow import Follower
from trigger_outbox.put import Lost, put_commit, stands

TRIM_TRIES_MAX = 50


def trim(follower: Follower, before: int) -> OffsetRange:
    """Rows below `before` can no longer be read. Returns what was removed; a no-op, without a commit, when nothing is."""
    check_offset(before, "before")
    record: Record | None = None
    for _ in range(TRIM_TRIES_MAX):
        follower.refresh()
        state = follower.state
        record = record or Record(state.table_id, uuid.uuid4().hex, "trim")
        if before > state.end:
            raise InvalidOffset(
                f"can't trim to {before}, the head is {state.end}", "trim to the head at most", requested=before, latest=state.end
            )
        removed = OffsetRange(min(state.earliest, before), before)
        if before <= state.earliest:
            return OffsetRange(state.earliest, state.earliest)
        gone = [file for file in state.files if file.end <= before]
        body = trim_commit(record, before, gone, read_version=state.version, now_ms=time.time_ns() // 1_000_000)
        if isinstance(put_commit(follower.store, state.version + 1, body, record.operation), Lost):
            continue
        if stands(follower.store, state, record.operation):
            follower.refresh()
            return removed
        follower.reopen()
    raise CommitContended(f"lost {TRIM_TRIES_MAX} races for a trim of {follower.store.url}", "try again; nothing was trimmed")
