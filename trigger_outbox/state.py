"""`LogState`: all that the sink, the readers and maintenance know of a log, and `apply`, the pure fold of one commit into it.

                 commit file V+1
    state @ V ───────────────────► state @ V+1      or raises, and the state stays as it was

It raises, at that version, on anything it does not understand or that contradicts what it knows: a hole in the versions or the
offsets, another table, a foreign commit, a feature it does not know. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from offsets import OffsetRange
from trigger_core.errors import OutboxDamaged, TopicNotFound, TopicRecreated, UnsupportedTable, UnsupportedType
from trigger_outbox.commit import (
    FEATURE,
    OWN_PREFIX,
    TXN_DROPPED,
    TXN_EARLIEST,
    TXN_OFFSET,
    TXN_PRODUCED_AT,
    Commit,
    DataFile,
    Metadata,
    Protocol,
    Record,
)
from trigger_outbox.schema import ENGINE_FIELDS

_WRITER_FEATURES = frozenset({"appendOnly", "invariants", FEATURE, "timestampNtz"})
_READER_FEATURES = frozenset({"timestampNtz"})
_REFUSED_SETTINGS = (
    "delta.enableChangeDataFeed",
    "delta.enableRowTracking",
    "delta.enableInCommitTimestamps",
    "delta.columnMapping.mode",
)
_REFUSED_PREFIXES = ("delta.constraints.", "delta.setTransactionRetentionDuration")


@dataclass(frozen=True)
class LogState:
    version: int
    metadata: Metadata
    protocol: Protocol
    end: int
    """The next offset to be given out."""
    earliest: int
    """Rows below are trimmed, exactly, whatever their files still hold."""
    produced_at_us: int
    files: tuple[DataFile, ...]
    """Active files, by start."""
    txns: Mapping[str, int] = field(default_factory=dict)
    """Application ids seen since the seed; older ones must be asked of the snapshot."""
    record: Record | None = None
    """Of the commit at `version`."""
    turn: Record | None = None
    """A writer that asked the others to let it go first, until its append is seen."""

    @property
    def table_id(self) -> str:
        return self.metadata.id

    @property
    def guarded(self) -> bool:
        return FEATURE in self.protocol.writer_features

    @property
    def range(self) -> OffsetRange:
        """What can be read."""
        return OffsetRange(self.earliest, self.end)

    def overlapping(self, wanted: OffsetRange) -> list[DataFile]:
        """Every file that may hold a row of `wanted`: no order or disjointness is assumed, a file without statistics counts."""
        return [file for file in self.files if file.rows < 0 or (file.start < wanted.end and file.end > wanted.start)]

    def check(self) -> LogState:
        """Returns itself if it adds up; raises `OutboxDamaged` with the numbers."""
        check_supported(self.protocol, self.metadata)
        if any(file.rows < 0 for file in self.files):
            raise _damaged(self.version, f"file {next(f.path for f in self.files if f.rows < 0)} has no statistics")
        rows = sum(file.rows for file in self.files)
        lowest = min((file.start for file in self.files), default=self.end)
        highest = max((file.end for file in self.files), default=self.end)
        if highest != self.end:
            raise _damaged(
                self.version, f"its highest offset on disk is {highest - 1} but {TXN_OFFSET} says that {self.end} is next"
            )
        if rows != self.end - lowest:
            raise _damaged(
                self.version, f"offsets {lowest} to {self.end} should be {self.end - lowest} rows, its files have {rows}"
            )
        if not lowest <= self.earliest <= self.end:
            raise _damaged(self.version, f"{TXN_EARLIEST} is {self.earliest}, outside of {lowest} to {self.end}")
        return self


def first_state(commit: Commit) -> LogState:
    """The state after commit 0, which creates a topic in one put."""
    record, metadata, protocol = commit.record, commit.metadata, commit.protocol
    if commit.version != 0 or record is None or record.kind != "create" or metadata is None or protocol is None:
        raise _damaged(commit.version, "it does not begin with the creation of a topic")
    if commit.txns.get(TXN_OFFSET) != 0:
        raise _damaged(commit.version, f"a topic begins with {TXN_OFFSET} 0, not {commit.txns.get(TXN_OFFSET)}")
    check_supported(protocol, metadata)
    return LogState(0, metadata, protocol, 0, 0, 0, (), {}, record)


def apply(state: LogState, commit: Commit) -> LogState:
    """`state` after `commit`. Pure; an illegal commit raises and leaves `state` as it was."""
    version = commit.version
    if version != state.version + 1:
        raise _damaged(version, f"it does not follow version {state.version}")
    if commit.record is None:
        raise _damaged(version, "it was not written by pyspark-trigger")
    if commit.unknown:
        raise UnsupportedTable(
            f"commit {version} has {commit.unknown[0]}, which this version does not know", "upgrade pyspark-trigger"
        )
    record = commit.record
    if record.table != state.table_id or (commit.metadata and commit.metadata.id != state.table_id):
        raise TopicRecreated(
            f"commit {version} belongs to table {record.table}, this is {state.table_id}",
            "the topic was dropped and created anew: start with a new checkpoint",
        )
    if TXN_DROPPED in commit.txns:
        raise TopicNotFound(f"the topic was dropped at version {version}", "create it anew, or use another name", dropped=True)
    metadata, protocol = commit.metadata or state.metadata, commit.protocol or state.protocol
    if commit.metadata or commit.protocol:
        check_supported(protocol, metadata)
    end, produced_at_us = _fold_rows(state, commit, record)
    earliest = commit.txns.get(TXN_EARLIEST, state.earliest)
    if not state.earliest <= earliest <= end:
        raise _damaged(version, f"it trims to {earliest}, outside of {state.earliest} to {end}")
    files = _fold_files(state, commit, record, end)
    users = {app: number for app, number in commit.txns.items() if not app.startswith(OWN_PREFIX)}
    turn = record if record.kind == "turn" else state.turn
    if turn is not None and turn.operation == turn_of(record.operation):
        turn = None
    txns = {**state.txns, **users} if users else state.txns
    after = LogState(version, metadata, protocol, end, earliest, produced_at_us, files, txns, record, turn)
    return after if files is state.files or record.kind == "append" else after.check()


def _fold_rows(state: LogState, commit: Commit, record: Record) -> tuple[int, int]:
    """The end and the time after an append; of anything else, that it brought no rows."""
    if record.kind != "append":
        if TXN_OFFSET in commit.txns and commit.txns[TXN_OFFSET] != state.end:
            raise _damaged(commit.version, f"a {record.kind} moved {TXN_OFFSET} from {state.end} to {commit.txns[TXN_OFFSET]}")
        return state.end, state.produced_at_us
    if record.start != state.end:
        raise _damaged(commit.version, f"it starts at offset {record.start}, the next one is {state.end}")
    if record.end is None or record.end <= state.end or commit.txns.get(TXN_OFFSET) != record.end:
        raise _damaged(commit.version, f"it ends at {record.end} but {TXN_OFFSET} is {commit.txns.get(TXN_OFFSET)}")
    produced_at_us = record.produced_at_us
    if produced_at_us is None or produced_at_us < state.produced_at_us or commit.txns.get(TXN_PRODUCED_AT) != produced_at_us:
        raise _damaged(
            commit.version, f"its time is {produced_at_us} µs, before {state.produced_at_us} µs or not that of its txn"
        )
    if sum(file.rows for file in commit.adds) != record.end - record.start:
        raise _damaged(
            commit.version, f"its files have {sum(f.rows for f in commit.adds)} rows, it says {record.end - record.start}"
        )
    return record.end, produced_at_us


def _fold_files(state: LogState, commit: Commit, record: Record, end: int) -> tuple[DataFile, ...]:
    if not commit.adds and not commit.removes:
        return state.files
    lowest = state.end if record.kind == "append" else 0
    if any(file.rows < 0 or file.start < lowest or file.end > end for file in commit.adds):
        raise _damaged(commit.version, f"a file of it has no statistics, or offsets outside of {lowest} to {end}")
    if record.kind == "append":
        if commit.removes:
            raise _damaged(commit.version, f"an append removes {len(commit.removes)} files")
        return (*state.files, *sorted(commit.adds, key=_by_start))
    gone = set(commit.removes)
    kept = [file for file in state.files if file.path not in gone]
    if len(kept) + len(gone) != len(state.files):
        raise _damaged(commit.version, f"it removes {len(gone)} files, of which {len(state.files) - len(kept)} were active")
    if record.kind == "compact":
        before = sum(file.rows for file in state.files if file.path in gone)
        after = sum(file.rows for file in commit.adds)
        if before != after:
            raise _damaged(commit.version, f"a compaction made {after} rows of {before}")
    return tuple(sorted([*kept, *commit.adds], key=_by_start))


def check_supported(protocol: Protocol, metadata: Metadata) -> None:
    """Raises `UnsupportedTable` on any Delta feature whose meaning we would miss."""
    strange = sorted((protocol.writer_features - _WRITER_FEATURES) | (protocol.reader_features - _READER_FEATURES))
    strange += [key for key in metadata.configuration if key.startswith(_REFUSED_PREFIXES)]
    strange += [key for key in _REFUSED_SETTINGS if metadata.configuration.get(key, "false") not in ("false", "none")]
    strange += [
        mark
        for mark in ("delta.generationExpression", "delta.identity.", "delta.invariants")
        if mark in metadata.schema.delta_json
    ]
    if strange:
        raise UnsupportedTable(
            f"the outbox uses {strange[0]!r}, which this version does not know", "upgrade pyspark-trigger, or drop that feature"
        )
    if protocol.reader > 3 or protocol.writer > 7:
        raise UnsupportedTable(
            f"the outbox needs Delta reader {protocol.reader} and writer {protocol.writer}", "upgrade pyspark-trigger"
        )
    try:
        fields = list(metadata.schema.arrow)
    except (ValueError, UnsupportedType) as error:
        raise UnsupportedTable(f"the outbox's schema can't be read: {error}", "upgrade pyspark-trigger") from error
    if fields[: len(ENGINE_FIELDS)] != list(ENGINE_FIELDS):
        raise UnsupportedTable(
            "the table does not begin with _offset BIGINT NOT NULL, _produced_at TIMESTAMP NOT NULL", "it is not a topic's outbox"
        )


def turn_of(operation: str) -> str:
    """The operation id of the turn that an append asks for: not its own, because that tells whose a commit is."""
    return f"{operation}.turn"


def _by_start(file: DataFile) -> tuple[int, int]:
    return (file.start, file.end)


def _damaged(version: int, what: str) -> OutboxDamaged:
    return OutboxDamaged(
        f"commit {version} of the outbox is damaged: {what}",
        "nothing was written; compare with a backup, or drop the topic",
        version=version,
    )
