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
hole in an old log. Where it is gone, `append` looks for its rows in a fresh snapshot.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from trigger_core.errors import CommitStateUnknown, OutboxDamaged, StoreUnavailable
from trigger_outbox.commit import key_of, parse_commit
from trigger_outbox.state import LogState
from trigger_outbox.storage import KeyExists, Store

PUT_TRIES_MAX = 5
PUT_BACKOFF_S = 0.05
_RUN_AGAIN = "run the batch again with the same txnAppId and txnVersion (a streaming query does so by itself): it is then written once"


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
    for attempt in range(PUT_TRIES_MAX):
        if attempt:
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


def stands(outbox: Store, state: LogState) -> bool:
    """Whether the commit that `state` ends with is still in the log, asked after a put on top of it."""
    for attempt in range(PUT_TRIES_MAX):
        try:
            found = outbox.get(key_of(state.version))
            break
        except StoreUnavailable as error:
            if attempt == PUT_TRIES_MAX - 1:
                raise CommitStateUnknown(f"commit {state.version + 1} landed but can't be proven: {error}", _RUN_AGAIN) from error
            _back_off(attempt + 1)
    if found is None or state.record is None:
        return False
    return operation_of(state.version, found) == state.record.operation


def _back_off(attempt: int) -> None:
    time.sleep(PUT_BACKOFF_S * 2**attempt * (0.5 + random.random()))


def operation_of(version: int, body: bytes) -> str | None:
    try:
        record = parse_commit(version, body).record
    except OutboxDamaged:
        return None
    return None if record is None else record.operation
