"""A full audit of a log: reads every active file and holds it against what the log says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from trigger_core.errors import TriggerError
from trigger_outbox.commit import DataFile, iso_ms
from trigger_outbox.follow import Follower
from trigger_outbox.read import opened
from trigger_outbox.schema import OFFSET, PRODUCED_AT
from trigger_outbox.state import LogState
from trigger_outbox.storage import Store

PROBLEMS_MAX = 100


@dataclass(frozen=True)
class Audit:
    """`ok`, or what is wrong, most important first."""

    version: int
    rows: int
    files: int
    bytes: int
    earliest: int
    end: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(follower: Follower, progress: Callable[[int, int], None] | None = None) -> Audit:
    """Dense, unique, ordered, times never back, statistics true, sizes and sums right. Raises nothing that it can report."""
    state = follower.reopen()
    problems: list[str] = []
    try:
        state.check()
    except TriggerError as error:
        problems.append(str(error))
    rows, at, time_us = 0, min((file.start for file in state.files), default=state.end), 0
    for index, file in enumerate(state.files):
        try:
            found, at, time_us = _audit_file(follower.store, file, state, at, time_us, problems)
            rows += found
        except FileNotFoundError:
            problems.append(f"file {file.path} of rows {file.start} to {file.end} is gone")
        except (TriggerError, pa.ArrowException) as error:
            problems.append(f"file {file.path}: {error}")
        if progress is not None:
            progress(index + 1, len(state.files))
    if at != state.end:
        problems.append(f"rows end at {at}, the log says {state.end}")
    if time_us > state.produced_at_us:
        problems.append(f"the newest row is of {time_us} µs, the log says {state.produced_at_us} µs")
    return Audit(
        state.version,
        rows,
        len(state.files),
        sum(f.size for f in state.files),
        state.earliest,
        state.end,
        tuple(problems[:PROBLEMS_MAX]),
    )


def _audit_file(
    store: Store, file: DataFile, state: LogState, at: int, time_us: int, problems: list[str]
) -> tuple[int, int, int]:
    size = store.size(file.path)
    if size is None:
        raise FileNotFoundError(file.path)
    if size != file.size:
        problems.append(f"file {file.path} has {size} bytes, the log says {file.size}")
    low, high, rows = file.end, -1, 0
    first_us, last_us = 2**62, 0
    with opened(store, file) as parquet:
        for batch in parquet.iter_batches(columns=[OFFSET, PRODUCED_AT]):
            offsets, times = batch.column(OFFSET), batch.column(PRODUCED_AT).cast(pa.int64())
            if offsets.null_count or times.null_count:
                problems.append(f"file {file.path} has nulls in the engine's columns")
                continue
            if not offsets.equals(pa.arange(at, at + batch.num_rows)):
                problems.append(f"file {file.path}: offsets from {offsets[0]} on are not {at} and following")
            span, moments = pc.min_max(offsets).as_py(), pc.min_max(times).as_py()
            if moments["min"] < time_us or moments["max"] != times[-1].as_py():
                problems.append(f"file {file.path}: times go back below {time_us} µs")
            low, high, rows = min(low, span["min"]), max(high, span["max"]), rows + batch.num_rows
            first_us, last_us = min(first_us, moments["min"]), max(last_us, moments["max"])
            at, time_us = high + 1, last_us
    if (rows, low, high + 1) != (file.rows, file.start, file.end):
        problems.append(
            f"file {file.path} has {rows} rows {low} to {high + 1}, the log says {file.rows} rows {file.start} to {file.end}"
        )
    if rows and (iso_ms(first_us), iso_ms(last_us)) != (iso_ms(file.produced_min_us), iso_ms(file.produced_max_us)):
        problems.append(f"file {file.path} has times that its statistics don't")
    return rows, at, time_us
