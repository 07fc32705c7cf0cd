"""Where a read begins and ends, from its options and the log as it is now."""

from __future__ import annotations

from offsets import InitKind, OffsetRange
from trigger_core.errors import DataLoss, InvalidOffset
from trigger_core.options import SourceOptions
from trigger_outbox import Outbox


def start_of(options: SourceOptions, outbox: Outbox, default: str = "latest") -> tuple[int, InitKind]:
    """The first offset of a new query, and how it was asked for."""
    state = outbox.state
    if options.starting_timestamp_us is not None:
        return outbox.offset_at(options.starting_timestamp_us), "timestamp"
    start = default if options.starting_offsets is None else options.starting_offsets
    if start == "latest":
        return state.end, "latest"
    if start == "earliest":
        return state.earliest, "earliest"
    assert isinstance(start, int)
    if start > state.end:
        raise InvalidOffset(
            f"startingOffsets {start} is beyond the head {state.end}", "give a lower one, or latest", start=start, end=state.end
        )
    if start < state.earliest:
        raise DataLoss(
            f"startingOffsets {start} was trimmed: earliest is {state.earliest}, latest is {state.end}",
            "start at earliest, or at an offset that is still there",
            requested=start,
            earliest=state.earliest,
            latest=state.end,
        )
    return start, "number"


def range_of(options: SourceOptions, outbox: Outbox) -> OffsetRange:
    """What a batch read covers."""
    start, _ = start_of(options, outbox, default="earliest")
    state = outbox.state
    end = state.end
    if options.ending_timestamp_us is not None:
        end = outbox.offset_at(options.ending_timestamp_us)
    elif isinstance(options.ending_offsets, int):
        end = options.ending_offsets
    if start > end:
        raise InvalidOffset(
            f"the read starts at {start}, beyond its end {end}", "give a start at or below the end", start=start, end=end
        )
    if end > state.end:
        raise InvalidOffset(
            f"endingOffsets {end} is beyond the head {state.end}", "give a lower one, or latest", end=end, latest=state.end
        )
    return OffsetRange(start, end)
