"""Putting one commit file, and knowing afterwards whether it is ours: the only place where a version is won or lost.

              create(version)
    ┌───────────────┼──────────────────────┬────────────────────┐
    created       exists                 error, not landed     error
    │               └── read the version ◄──┼────────────────────┘
    ▼                   ours │ other's │ absent: put again, bounded
   Won                  Won  │  Lost   │ CommitStateUnknown
    │
    └── proof: the commit it stands on is still there, and is the one we folded

The proof is the fence. Cleanup and drop remove the oldest names first, so while the one before ours stands, ours was never a
hole in an old log. Where it is gone, `append` looks for its rows in a fresh snapshot. Where it is another table's, the topic was
dropped and made anew while we were stopped, and our commit would damage the new one: it is taken back.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from trigger_core.errors import CommitStateUnknown, OutboxDamaged, StoreUnavailable, TopicNotFound, TopicRecreated
from trigger_outbox.commit import Record, key_of, parse_commit
from trigger_outbox.state import LogState
from trigger_outbox.storage import KeyExists, Store

PUT_TRIES_MAX = 5
PUT_BACKOFF_S = 0.05
PUT_WAIT_S_MAX = 30.0
"""No new try after that: a silent store costs its whole timeout each time."""
_RUN_AGAIN = (
    "run the batch again with the same txnAppId and txnVersion (a streaming query does so by itself): it is then written once"
)


@dataclass(frozen=True, slots=True)
class Won:
    body: bytes


@dataclass(frozen=True, slots=True)
class Lost:
    body: bytes
    """The commit that took the version."""


def put_commit(outbox: Store, version: int, body: bytes, operation: str) -> Won | Lost:
    """Puts `body` at `version` if that is free. Raises `CommitStateUnknown` if the store never says who has it."""
    problem: Exception | None = None
    deadline_s = time.monotonic() + PUT_WAIT_S_MAX
    for attempt in range(PUT_TRIES_MAX):
        if attempt:
            if time.monotonic() > deadline_s:
                break
            _back_off(attempt)
        try:
            outbox.create(key_of(version), body)
            return Won(body)
        except KeyExists as error:
            problem = error  # taken, perhaps by this very put, resent by the store's client after a lost reply
        except StoreUnavailable as error:
            if error.facts.get("landed") is False:
                raise
            problem = error
        try:
            found = outbox.get(key_of(version))
        except StoreUnavailable as error:
            problem = error
            continue
        if found is not None:
            return Won(found) if operation_of(version, found) == operation else Lost(found)
    raise CommitStateUnknown(
        f"the store did not say whether commit {version} landed: {problem}",
        _RUN_AGAIN,
        version=version,
        operation=operation,
    ) from problem


def stands(outbox: Store, state: LogState, operation: str) -> bool:
    """Whether the commit that `state` ends with is still in the log, asked after `operation` was put on top of it. Raises
    `TopicRecreated` or `TopicNotFound`, and takes that commit back, if it went into the log of another table, or of none."""
    below = _get(outbox, state.version)
    if below is not None and state.record is not None and operation_of(state.version, below) == state.record.operation:
        return True
    bottom = below if below is not None else _get(outbox, 0)
    table = None if bottom is None else _table_of(state.version if below is not None else 0, bottom)
    if table not in (None, state.table_id):
        withdraw(outbox, state.version + 1, operation)
        raise TopicRecreated(
            f"the topic is now table {table}, it was {state.table_id}",
            "it was dropped and created anew: start with a new checkpoint",
        )
    if below is None and all(entry.key == key_of(state.version + 1) for entry in outbox.list("_delta_log")):
        withdraw(outbox, state.version + 1, operation)
        raise TopicNotFound("the topic was dropped before this commit landed: nothing was written", "create it anew")
    return False


def withdraw(outbox: Store, version: int, operation: str) -> None:
    """Takes back a commit that its writer has found to be in no log, or in another table's. Nobody builds on such a commit,
    because no state accepts it; only its own writer may, so a name is never taken from under another's commit."""
    found = _get(outbox, version)
    if found is not None and operation_of(version, found) == operation:
        outbox.delete([key_of(version)])


def _get(outbox: Store, version: int) -> bytes | None:
    for attempt in range(1, PUT_TRIES_MAX + 1):
        try:
            return outbox.get(key_of(version))
        except StoreUnavailable as error:
            if attempt == PUT_TRIES_MAX:
                raise CommitStateUnknown(f"a commit landed but can't be proven: {error}", _RUN_AGAIN) from error
            _back_off(attempt)
    raise AssertionError("not reached")


def _back_off(attempt: int) -> None:
    time.sleep(PUT_BACKOFF_S * 2**attempt * (0.5 + random.random()))


def operation_of(version: int, body: bytes) -> str | None:
    record = _record_of(version, body)
    return None if record is None else record.operation


def _table_of(version: int, body: bytes) -> str | None:
    record = _record_of(version, body)
    return None if record is None else record.table


def _record_of(version: int, body: bytes) -> Record | None:
    try:
        return parse_commit(version, body).record
    except OutboxDamaged:
        return None
