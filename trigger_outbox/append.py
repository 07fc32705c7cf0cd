"""Appending: offsets are given out inside the commit, to whoever's put wins the next version.

    fold to the head → already there? → stamp → put the files → put the commit ──won──► prove → done
           ▲                                                         │
           └────────── fold the winner; its rows first: stamp anew ◄─lost

Before each line, think of a SIGKILL there: until the commit's put nothing counts, after it everything does. No attempt
deletes a file it wrote, because a put that seemed to fail may still land; vacuum does.
"""

from __future__ import annotations

import random
import time
import uuid
from dataclasses import dataclass, replace

import pyarrow as pa

from offsets import OffsetRange
from trigger_core.errors import (
    CheckpointRewound,
    ClockAhead,
    CommitContended,
    CommitStateUnknown,
    InvalidOption,
    TopicNotFound,
    UnsupportedTable,
)
from trigger_outbox.commit import OWN_PREFIX, DataFile, Record, append_commit, turn_commit
from trigger_outbox.encode import Rows, digest, encode_all, encode_payload
from trigger_outbox.follow import Follower, boot_time_s
from trigger_outbox.lock import writers_lock
from trigger_outbox.put import Lost, put_commit, stands, withdraw
from trigger_outbox.read import read_range
from trigger_outbox.schema import PRODUCED_AT, TopicSchema
from trigger_outbox.state import LogState, turn_of
from trigger_outbox.storage import Store

ATTEMPTS_MAX = 200
LOSSES_BEFORE_TURN = 3
TURN_MS_MAX = 10_000
TURN_MS_MIN = 100
TURN_POLL_S = 0.005
CLOCK_SLACK_US = 5 * 60 * 1_000_000
ENCODE_AGAIN_AFTER_S = 600.0
"""Files that waited longer for their commit may have been vacuumed: they are encoded anew."""
LOOK_AGAIN_AFTER_S = 60.0
"""A commit that took longer makes sure afterwards that its files are there."""
RETRY_S = 0.002
WAKEUP_PAYLOAD_BYTES_DEFAULT = 256 * 1024


@dataclass(frozen=True)
class Batch:
    """One append. `txn` makes it idempotent; `strict` says that an older version is an error (a streaming query's batch) and
    not a repetition (a batch job's)."""

    rows: Rows
    schema: pa.Schema
    txn: tuple[str, int] | None = None
    strict: bool = False
    merge_schema: bool = False
    payload_bytes_max: int = WAKEUP_PAYLOAD_BYTES_DEFAULT


@dataclass(frozen=True)
class Appended:
    """What became of a batch. `repeated`: it was there before, nothing was written; `range` is None if where is not known."""

    range: OffsetRange | None
    version: int
    table_id: str
    schema: TopicSchema
    payload: bytes | None = None
    repeated: bool = False
    attempts: int = 1
    encode_s: float = 0.0
    bytes: int = 0


@dataclass
class _Attempt:
    """What is kept between two tries of one batch."""

    operation: str
    files: list[DataFile]
    start: int = -1
    schema: TopicSchema | None = None
    produced_at_us: int = 0
    payload: bytes | None = None
    encode_s: float = 0.0
    began_s: float = 0.0
    losses: int = 0
    turns: int = 0

    def fits(self, state: LogState, schema: TopicSchema) -> bool:
        return (
            bool(self.files)
            and self.start == state.end
            and self.schema == schema
            and self.produced_at_us >= state.produced_at_us
            and boot_time_s() - self.began_s < ENCODE_AGAIN_AFTER_S
        )


class Appender:
    """Appends to one topic. Keeps the followed state between batches, and is right without it. One thread at a time."""

    def __init__(self, topic: Store, follower: Follower) -> None:
        self._topic = topic
        self._outbox = follower.store
        self._follower = follower
        self.conflicts = 0
        self.fenced = 0
        self._turn_seen: tuple[Record | None, float] = (None, 0.0)

    def append(self, batch: Batch) -> Appended:
        """Commits `batch` durably and returns where its rows are. Raises with nothing written, or `CommitStateUnknown`."""
        check_txn(batch.txn)
        attempt = _Attempt(uuid.uuid4().hex, [])
        for tries in range(1, ATTEMPTS_MAX + 1):
            self._follower.refresh()
            self._let_others_go_first(attempt)
            with writers_lock(self._topic):
                done = self._try(batch, attempt)
            if done is not None:
                return replace(done, attempts=tries)
            if attempt.losses >= LOSSES_BEFORE_TURN * (attempt.turns + 1):
                self._ask_for_a_turn(attempt)
            time.sleep(RETRY_S * random.random())
        raise CommitContended(
            f"lost {attempt.losses} races in {ATTEMPTS_MAX} attempts for the next version of {self._outbox.url}",
            "nothing was written: run the batch again, with fewer writers on the topic",
        )

    def _try(self, batch: Batch, attempt: _Attempt) -> Appended | None:
        self._follower.refresh()
        state = self._follower.state
        if not state.guarded:
            raise UnsupportedTable(
                "the topic was released: it is an ordinary Delta table now", "write to it with Delta, or to another topic"
            )
        repeated = self._already_there(batch, state)
        if repeated is not None:
            return repeated
        if self._is_others_turn(attempt):  # it began while we waited for the lock
            return None
        schema = self._schema_for(batch, state)
        if batch.rows.count == 0:
            return Appended(OffsetRange(state.end, state.end), state.version, state.table_id, schema)
        if not attempt.fits(state, schema):
            self._encode(batch, attempt, state, schema)
        record = Record(
            table=state.table_id,
            operation=attempt.operation,
            kind="append",
            start=state.end,
            end=state.end + batch.rows.count,
            produced_at_us=attempt.produced_at_us,
            payload_sha256=None if attempt.payload is None else digest(attempt.payload),
        )
        changed = schema != state.metadata.schema
        body = append_commit(
            record,
            attempt.files,
            read_version=state.version,
            now_ms=time.time_ns() // 1_000_000,
            txn=batch.txn,
            metadata={**state.metadata.raw, "schemaString": schema.delta_json} if changed else None,
            protocol=schema if changed and schema.has_timestamp_ntz != state.metadata.schema.has_timestamp_ntz else None,
        )
        outcome = put_commit(self._outbox, state.version + 1, body, attempt.operation)
        if isinstance(outcome, Lost):
            attempt.losses += 1
            self.conflicts += 1
            self._follower.refresh()
            return None
        if stands(self._outbox, state, attempt.operation):
            self._follower.fold_own(state.version + 1, outcome.body)
        elif not self._is_in_log(batch, attempt, record, state.version + 1):
            withdraw(self._outbox, state.version + 1, attempt.operation)
            self.fenced += 1
            attempt.files = []
            return None
        if boot_time_s() - attempt.began_s > LOOK_AGAIN_AFTER_S:
            self._restore_files(batch, attempt, schema)
        assert record.end is not None
        return Appended(
            OffsetRange(state.end, record.end),
            state.version + 1,
            state.table_id,
            schema,
            attempt.payload,
            encode_s=attempt.encode_s,
            bytes=sum(file.size for file in attempt.files),
        )

    def _already_there(self, batch: Batch, state: LogState) -> Appended | None:
        if batch.txn is None:
            return None
        app_id, version = batch.txn
        last = self._follower.txn(app_id)
        if last is None or version > last:
            return None
        if version < last and batch.strict:
            raise CheckpointRewound(
                f"batch {version} of query {app_id} comes after its batch {last}: its checkpoint was copied or rolled back",
                "restore the newer checkpoint, or start the query with a new one (its batches are then new)",
                batch=version,
                last=last,
            )
        return Appended(None, state.version, state.table_id, state.metadata.schema, repeated=True)

    def _schema_for(self, batch: Batch, state: LogState) -> TopicSchema:
        return state.metadata.schema.merged(batch.schema) if batch.merge_schema else state.metadata.schema

    def _encode(self, batch: Batch, attempt: _Attempt, state: LogState, schema: TopicSchema) -> None:
        attempt.began_s = boot_time_s()
        attempt.start, attempt.schema = state.end, schema
        attempt.produced_at_us = next_produced_at_us(state, time.time_ns() // 1000)
        rows = _conformed(batch.rows, schema)
        attempt.files = encode_all(rows, state.end, attempt.produced_at_us, schema, state.version, self._outbox.put)
        attempt.payload = encode_payload(rows.chunks(), schema, batch.payload_bytes_max)
        written = sum(file.rows for file in attempt.files)
        assert written == batch.rows.count, f"encoded {written} rows of {batch.rows.count}"
        attempt.encode_s = boot_time_s() - attempt.began_s

    def _is_in_log(self, batch: Batch, attempt: _Attempt, record: Record, version: int) -> bool:
        """Whether a commit whose predecessor was cleaned away is in the log (it landed, and then we were stopped) or is an
        orphan in a hole of an old one. Read from a fresh snapshot; raises `CommitStateUnknown` where that can't tell."""
        try:
            state = self._follower.reopen()
        except TopicNotFound:
            withdraw(self._outbox, version, attempt.operation)  # dropped: what we put must not look like the rest of a log
            raise
        paths = {file.path for file in attempt.files}
        if any(file.path in paths for file in state.files):
            return True
        if batch.txn is not None:
            last = self._follower.txn(batch.txn[0])
            if last is None or last < batch.txn[1]:
                return False
        assert record.start is not None and record.end is not None
        if state.end < record.end:
            return False
        if state.earliest > record.start:
            if batch.txn is not None:
                return False  # it is in the log, ours or another run of it: the next try finds it there
            raise CommitStateUnknown(
                f"rows {record.start} to {record.end} were trimmed before their writer, which was stopped, could look for them",
                "look into your own source; with txnAppId and txnVersion such a batch is safe to run again",
            )
        for rows in read_range(self._follower, OffsetRange(record.start, record.end), columns=[PRODUCED_AT]):
            times = set(rows.column(PRODUCED_AT).cast(pa.int64()).to_pylist())
            if times != {record.produced_at_us}:
                return False
        return self._same_rows(batch, record)

    def _same_rows(self, batch: Batch, record: Record) -> bool:
        assert record.start is not None and record.end is not None
        schema = self._follower.state.metadata.schema
        ours = pa.concat_tables(_conformed(batch.rows, schema).chunks())
        theirs = pa.Table.from_batches(read_range(self._follower, OffsetRange(record.start, record.end)), schema.arrow)
        return bool(theirs.select(schema.user.names).equals(ours))

    def _restore_files(self, batch: Batch, attempt: _Attempt, schema: TopicSchema) -> None:
        """A vacuum may have taken a file that waited for its commit; Delta accepts the commit all the same."""
        if all(self._outbox.size(file.path) is not None for file in attempt.files):
            return
        paths = [file.path for file in attempt.files]
        rows = _conformed(batch.rows, schema)
        encode_all(rows, attempt.start, attempt.produced_at_us, schema, 0, self._outbox.put, paths)

    def _let_others_go_first(self, attempt: _Attempt) -> None:
        """Waits while another writer's turn runs, counted from when we saw it, or until its append is seen."""
        while self._is_others_turn(attempt):
            time.sleep(TURN_POLL_S)
            self._follower.refresh()

    def _is_others_turn(self, attempt: _Attempt) -> bool:
        turn = self._follower.state.turn
        if turn is None or turn.operation == turn_of(attempt.operation) or turn.turn_ms is None:
            return False
        if self._turn_seen[0] is not turn:  # by identity: a second turn of one batch reads the same
            self._turn_seen = (turn, boot_time_s())
        return (boot_time_s() - self._turn_seen[1]) * 1000 < min(turn.turn_ms, TURN_MS_MAX)

    def _ask_for_a_turn(self, attempt: _Attempt) -> None:
        """After some losses: asks the others to wait for about as long as this batch needs. A live turn is not replaced."""
        attempt.turns += 1
        self._follower.refresh()
        self._let_others_go_first(attempt)
        state = self._follower.state
        turn_ms = int(min(TURN_MS_MAX, max(TURN_MS_MIN, 2000 * attempt.encode_s)))
        record = Record(state.table_id, turn_of(attempt.operation), "turn", turn_ms=turn_ms)
        for _ in range(LOSSES_BEFORE_TURN):
            state = self._follower.state
            body = turn_commit(record, read_version=state.version, now_ms=time.time_ns() // 1_000_000)
            if not isinstance(put_commit(self._outbox, state.version + 1, body, record.operation), Lost):
                stands(self._outbox, state, record.operation)
                self._follower.refresh()
                return
            self._follower.refresh()
            self._let_others_go_first(attempt)


def next_produced_at_us(state: LogState, now_us: int) -> int:
    """The time of the next rows: never before the last ones'. `ClockAhead` rather than stamping hours of the same instant."""
    if state.produced_at_us > now_us + CLOCK_SLACK_US:
        ahead_s = (state.produced_at_us - now_us) // 1_000_000
        raise ClockAhead(
            f"the newest rows are stamped {ahead_s} s ahead of this host's clock",
            "set the clocks (NTP); nothing was written",
            ahead_s=ahead_s,
        )
    return max(now_us, state.produced_at_us)


def check_txn(txn: tuple[str, int] | None) -> None:
    if txn is None:
        return
    app_id, version = txn
    if app_id is None or version is None:
        raise InvalidOption("txnAppId and txnVersion go together", "give both or neither")
    if not isinstance(app_id, str) or not app_id or app_id.startswith(OWN_PREFIX) or not _is_text(app_id):
        raise InvalidOption(f"application id {app_id!r} is not allowed", f"give any text that does not begin with {OWN_PREFIX!r}")
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < 2**63:
        raise InvalidOption(f"txnVersion {version!r} is not a whole number from 0 to 2^63 - 1", "count your batches from 0")


def _is_text(value: str) -> bool:
    try:
        return bool(value.encode())
    except UnicodeEncodeError:  # half of a surrogate pair: it could not be written
        return False


def _conformed(rows: Rows, schema: TopicSchema) -> Rows:
    return Rows(lambda: (schema.conform(chunk) for chunk in rows.chunks()), rows.count)
