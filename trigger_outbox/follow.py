"""Following a log: a `LogState` seeded once from a delta-rs snapshot, then kept up by reading the next commit file.

    ┌────────┐ next commit there: fold  ┌──────────┐
    │  open  │ ───────────────────────► │ followed │ ⟲ next commit absent: at the head
    └────────┘ ◄─────────────────────── └──────────┘
         head not seen for REOPEN_AFTER_S, idle for as long, or the fold says that commits are missing

Log cleanup removes old names, so a follower that slept can't tell "not yet written" from "written and removed", and could
believe a commit that a stalled writer put into the hole. Cleanup keeps everything younger than FENCE_S: whoever saw the head
(the next commit absent) within half of that is safe, whoever did not opens anew. A commit that is there proves nothing: far
behind, the one after it may be old enough to be removed.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from offsets import OffsetRange
from trigger_core.errors import OutboxDamaged, StoreUnavailable, TopicNotFound, TopicRecreated
from trigger_outbox.commit import (
    TXN_DROPPED,
    TXN_EARLIEST,
    TXN_OFFSET,
    TXN_PRODUCED_AT,
    Commit,
    DataFile,
    Metadata,
    Protocol,
    key_of,
    parse_commit,
)
from trigger_outbox.schema import OFFSET, PRODUCED_AT, TopicSchema
from trigger_outbox.state import LogState, apply
from trigger_outbox.storage import Store

FENCE_S = 60.0
REOPEN_AFTER_S = FENCE_S / 2
OPEN_TRIES = 8
OPEN_BACKOFF_S = 0.05
OPEN_WAIT_S_MAX = 30.0
"""No new try after that: a silent store costs its whole timeout each time."""
FOLD_AT_ONCE_MAX = 10_000
"""Commits folded in one refresh; further behind than that, a snapshot is cheaper."""
_BOOT_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_time_s() -> float:
    """A clock that runs on while the process is stopped and the machine suspended."""
    return time.clock_gettime(_BOOT_CLOCK)


class Follower:
    """The state of one log, as fresh as the last `refresh`. Safe to share between threads."""

    def __init__(self, outbox: Store, topic: str, *, table_id: str | None = None) -> None:
        self.store = outbox
        self.topic = topic
        self.reopens = 0
        self._lock = threading.RLock()
        self._expected_id = table_id
        self._state: LogState | None = None
        self._snapshot: Any = None
        self._txns_asked: dict[str, int | None] = {}
        self._head_seen_s = 0.0
        self._news_s = 0.0

    @property
    def state(self) -> LogState:
        with self._lock:
            return self._state if self._state is not None else self.reopen()

    def reopen(self) -> LogState:
        """A fresh state from a snapshot. Raises `TopicNotFound`, or `TopicRecreated` if the table is another than before."""
        with self._lock:
            asked_s = boot_time_s()
            state, snapshot = open_snapshot(self.store, self.topic)
            if self._expected_id not in (None, state.table_id):
                raise TopicRecreated(
                    f"topic {self.topic!r} is now table {state.table_id}, it was {self._expected_id}",
                    "it was dropped and created anew: start with a new checkpoint",
                )
            if self._state is not None and state.version < self._state.version:
                raise OutboxDamaged(
                    f"topic {self.topic!r} went back from version {self._state.version} to {state.version}",
                    "its newest commits were removed: restore them from a backup",
                )
            self.reopens += 1
            self._expected_id = state.table_id
            self._state, self._snapshot, self._txns_asked = state, snapshot, {}
            self._head_seen_s = self._news_s = asked_s
            return state

    def refresh(self) -> list[Commit]:
        """Folds every commit that has landed and returns them; empty at the head, and after a re-open (ask `state` then)."""
        with self._lock:
            if self._state is None:
                self.reopen()
                return []
            news: list[Commit] = []
            while len(news) < FOLD_AT_ONCE_MAX:
                asked_s = boot_time_s()
                body = self.store.get(key_of(self._state.version + 1))
                if boot_time_s() - self._head_seen_s > REOPEN_AFTER_S:
                    self.reopen()
                    return []
                if body is None:
                    self._head_seen_s = asked_s
                    break
                if not self._state.guarded:  # released: anyone may have written it, only a snapshot can tell what it did
                    self.reopen()
                    return news
                news.append(self.fold(body))
                self._news_s = asked_s
            if asked_s - self._news_s > REOPEN_AFTER_S:  # idle: has the topic been dropped, or has the log gone on without us?
                self.reopen()
            return news

    def fold(self, body: bytes) -> Commit:
        """Takes in the commit file that follows the state."""
        with self._lock:
            assert self._state is not None
            commit = parse_commit(self._state.version + 1, body)
            self._state = apply(self._state, commit)
            return commit

    def fold_own(self, version: int, body: bytes) -> None:
        """Takes in our own commit, just proven, without reading it back; another thread's `refresh` may have been faster."""
        with self._lock:
            if self.state.version == version - 1:
                self.fold(body)

    def txn(self, app_id: str) -> int | None:
        """The last version that an application committed, over the whole life of the log."""
        with self._lock:
            for tries in range(1, OPEN_TRIES + 1):
                state = self.state
                if app_id in state.txns:
                    return state.txns[app_id]
                if app_id not in self._txns_asked:
                    try:
                        found = self._snapshot.transaction_version(app_id)
                    except (DeltaError, OSError):
                        # A snapshot reads its log when asked, and what it would read has been cleaned away since.
                        if tries == OPEN_TRIES:
                            raise
                        self.reopen()
                        continue
                    self._txns_asked[app_id] = None if found is None else int(found)
                return self._txns_asked[app_id]
        raise AssertionError("not reached")


def open_snapshot(outbox: Store, topic: str) -> tuple[LogState, Any]:
    """A checked `LogState` at the head, and the snapshot it came from."""
    problem: Exception | None = None
    deadline_s = time.monotonic() + OPEN_WAIT_S_MAX
    for attempt in range(OPEN_TRIES):
        if attempt:
            if time.monotonic() > deadline_s:
                break
            time.sleep(OPEN_BACKOFF_S * attempt)
        try:
            table = DeltaTable(outbox.url, storage_options=dict(outbox.options) or None)
            return _seed(outbox, table), table
        except TableNotFoundError as error:
            if next(iter(outbox.list("_delta_log")), None) is None:
                raise not_found(topic, outbox.url) from error
            problem = error
        except _Retry as error:
            problem = error
        except (DeltaError, OSError) as error:
            # a cleanup or a drop ran while the log was being listed; a damaged log fails every time
            problem = error
    text = str(problem).partition("\n")[0]
    if not any(entry.key.endswith(".json") for entry in outbox.list("_delta_log")):
        raise not_found(topic, outbox.url) from problem
    if isinstance(problem, OSError) and not isinstance(problem, FileNotFoundError):
        raise StoreUnavailable(
            f"could not open topic {topic!r} at {outbox.url}: {text}", "check that the store is up"
        ) from problem
    raise OutboxDamaged(
        f"the log of topic {topic!r} at {outbox.url} can't be opened: {text}",
        "if a drop() was interrupted, call drop() again; else restore the log from a backup",
    ) from problem


def not_found(topic: str, url: str) -> TopicNotFound:
    return TopicNotFound(
        f"there is no topic {topic!r} at {url}", "create it with Topic.create or by writing to it; check path and name"
    )


class _Retry(Exception):
    """The log moved on between two reads."""


def _seed(outbox: Store, table: Any) -> LogState:
    version = int(table.version())
    head = outbox.get(key_of(version))
    if head is None:
        raise _Retry(f"commit {version} was removed while the log was being opened")
    commit = parse_commit(version, head)  # what delta-rs takes for an empty version is torn, and raises here
    txns = {app: table.transaction_version(app) for app in (TXN_OFFSET, TXN_EARLIEST, TXN_PRODUCED_AT, TXN_DROPPED)}
    if txns[TXN_DROPPED] is not None:
        raise TopicNotFound(
            "the topic was dropped and its files are being removed",
            "call drop() again to finish, then create it anew",
            dropped=True,
        )
    if txns[TXN_OFFSET] is None:
        raise OutboxDamaged(
            f"version {version} has no {TXN_OFFSET}", "it is not a topic's outbox, or it was overwritten; restore a backup"
        )
    metadata, protocol = table.metadata(), table.protocol()
    files = _active_files(table)
    state = LogState(
        version=version,
        metadata=Metadata(
            str(metadata.id), TopicSchema(table.schema().to_json()), dict(metadata.configuration), _raw_metadata(table)
        ),
        protocol=Protocol(
            protocol.min_reader_version,
            protocol.min_writer_version,
            frozenset(protocol.reader_features or ()),
            frozenset(protocol.writer_features or ()),
        ),
        end=int(txns[TXN_OFFSET]),
        earliest=int(txns[TXN_EARLIEST] or 0),
        produced_at_us=int(txns[TXN_PRODUCED_AT] or 0),
        files=tuple(sorted(files, key=lambda file: (file.start, file.end))),
        record=commit.record,
    ).check()
    record = commit.record
    if record is None and state.guarded:
        raise OutboxDamaged(f"commit {version} was not written by pyspark-trigger, though the guard is on", "restore a backup")
    if record is not None and (record.table != state.table_id or (record.kind == "append" and record.end != state.end)):
        raise OutboxDamaged(
            f"commit {version} ends at {record.end} in table {record.table}, the snapshot says {state.end} in {state.table_id}"
        )
    return state


def _active_files(table: Any) -> list[DataFile]:
    actions = table.get_add_actions(flatten=True)
    columns = {name: actions.column(name).to_pylist() for name in actions.column_names}
    missing = [None] * len(columns.get("path", []))
    rows = zip(
        columns["path"],
        columns["size_bytes"],
        columns["modification_time"],
        columns.get("num_records", missing),
        columns.get(f"min.{OFFSET}", missing),
        columns.get(f"max.{OFFSET}", missing),
        columns.get(f"min.{PRODUCED_AT}", missing),
        columns.get(f"max.{PRODUCED_AT}", missing),
        strict=True,
    )
    return [
        DataFile(path, size, count, low, high + 1, _microseconds(first), _microseconds(last), _milliseconds(modified))
        if None not in (count, low, high, first, last)
        else DataFile(path, size, -1, -1, -1, 0, 2**62, _milliseconds(modified))
        for path, size, modified, count, low, high, first, last in rows
    ]


def _microseconds(moment: Any) -> int:
    return round(moment.timestamp() * 1000) * 1000


def _milliseconds(moment: Any) -> int:
    return int(moment.timestamp() * 1000) if hasattr(moment, "timestamp") else int(moment)


def _raw_metadata(table: Any) -> dict[str, Any]:
    metadata = table.metadata()
    raw: dict[str, Any] = {"id": str(metadata.id)}
    if metadata.name is not None:
        raw["name"] = metadata.name
    if metadata.description is not None:
        raw["description"] = metadata.description
    return raw | {
        "format": {"provider": "parquet", "options": {}},
        "schemaString": table.schema().to_json(),
        "partitionColumns": list(metadata.partition_columns),
        "configuration": dict(metadata.configuration),
        "createdTime": metadata.created_time,
    }


def offsets_of(commit: Commit) -> OffsetRange | None:
    """What rows a commit brought."""
    record = commit.record
    if record is None or record.kind != "append" or record.start is None or record.end is None:
        return None
    return OffsetRange(record.start, record.end)
