"""One task's share of a read: where its rows are, and reading them. Survives pickling to any executor.

Every piece is checked where it is read: exactly the offsets asked for, in order, hot or cold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from offsets import OffsetRange, Piece, group, plan, split
from trigger_core.options import SourceOptions
from trigger_outbox.commit import DataFile
from trigger_outbox.follow import Follower
from trigger_outbox.lifecycle import OUTBOX
from trigger_outbox.read import aligned, read_files
from trigger_outbox.schema import OFFSET
from trigger_outbox.state import LogState
from trigger_outbox.storage import open_store
from trigger_source.tail import Payload, Tail

COLD_BYTES_PER_TASK = 32 * 1024 * 1024
COLD_ROWS_PER_TASK = 1_000_000
COLD_TASKS_MAX = 1000


@dataclass
class HotPartition(InputPartition):
    payloads: tuple[Payload, ...]

    def read(self, options: SourceOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        for payload in self.payloads:
            for batch in payload.rows().to_batches():
                yield aligned(batch, schema)


@dataclass
class ColdPartition(InputPartition):
    range: OffsetRange
    files: tuple[DataFile, ...]
    table_id: str

    def read(self, options: SourceOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        outbox = open_store(options.path, options.storage).child(options.topic).child(OUTBOX)
        follower = Follower(outbox, options.topic, table_id=self.table_id)  # asked only if a file is gone
        names = list(dict.fromkeys([OFFSET, *schema.names]))
        file_schema = pa.schema(
            [schema.field(name) if name in schema.names else pa.field(OFFSET, pa.int64(), False) for name in names]
        )
        for batch in read_files(follower, self.files, self.range, file_schema):
            yield aligned(batch, schema)


@dataclass
class NoRows(InputPartition):
    """For a batch read of nothing: Spark runs one task in any case, with a partition of its own making if it is given none."""

    value: None = None

    def read(self, options: SourceOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return iter(())


def plan_partitions(
    wanted: OffsetRange, state: LogState, options: SourceOptions, tail: Tail | None = None
) -> list[InputPartition]:
    """`wanted` as tasks, in offset order: hot where the tail has verified payloads, cold elsewhere."""
    if not wanted:
        return []
    partitions: list[InputPartition] = []
    for pieces in group(plan(wanted, tail.hot(wanted) if tail is not None else [])):
        payloads = _payloads(pieces, tail)
        if payloads is not None:
            partitions.append(HotPartition(payloads))
        else:
            whole = OffsetRange(pieces[0].range.start, pieces[-1].range.end)
            partitions.extend(_cold(whole, state, options))
    return partitions


def _payloads(pieces: Sequence[Piece], tail: Tail | None) -> tuple[Payload, ...] | None:
    """What a hot piece promised, or None if it is cold or has been evicted meanwhile."""
    found = [tail.payload(piece.key) if tail is not None and piece.key is not None else None for piece in pieces]
    held = tuple(payload for payload in found if payload is not None)
    return held if len(held) == len(pieces) else None


def _cold(wanted: OffsetRange, state: LogState, options: SourceOptions) -> list[InputPartition]:
    files = state.overlapping(wanted)
    size = sum(file.size for file in files)
    pieces = max(1, min(COLD_TASKS_MAX, -(-size // COLD_BYTES_PER_TASK), len(wanted)))
    pieces = max(pieces, options.min_partitions or 1)
    rows_max = options.max_records_per_partition or max(COLD_ROWS_PER_TASK, -(-len(wanted) // COLD_TASKS_MAX))
    return [ColdPartition(part, tuple(state.overlapping(part)), state.table_id) for part in split(wanted, pieces, rows_max)]
