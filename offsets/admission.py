"""How far the next micro-batch may read. Times and sizes are handed in: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from offsets.ranges import OffsetRange, check_offset
from trigger_core.errors import InvalidOffset, InvalidOption

TRIGGER_DELAY_MS_DEFAULT = 15 * 60 * 1000
"""As in Spark's Kafka source: how long `minOffsetsPerTrigger` may hold rows back."""


@dataclass(frozen=True)
class Limits:
    """`maxOffsetsPerTrigger`, `minOffsetsPerTrigger`, `maxTriggerDelay`, `maxBytesPerTrigger`. None: no such limit."""

    max_offsets: int | None = None
    min_offsets: int | None = None
    max_trigger_delay_ms: int = TRIGGER_DELAY_MS_DEFAULT
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        for option, value in (
            ("maxOffsetsPerTrigger", self.max_offsets),
            ("minOffsetsPerTrigger", self.min_offsets),
            ("maxBytesPerTrigger", self.max_bytes),
        ):
            if value is not None and value < 1:
                raise InvalidOption(f"{option} is {value}", "give 1 or more, or leave it out", option=option, value=value)
        if self.max_trigger_delay_ms < 0:
            raise InvalidOption(f"maxTriggerDelay is {self.max_trigger_delay_ms} ms", "give 0 or more", option="maxTriggerDelay")
        if self.max_offsets is not None and self.min_offsets is not None and self.min_offsets > self.max_offsets:
            raise InvalidOption(
                f"minOffsetsPerTrigger {self.min_offsets} is beyond maxOffsetsPerTrigger {self.max_offsets}",
                "lower the first or raise the second",
                min_offsets=self.min_offsets,
                max_offsets=self.max_offsets,
            )


UNLIMITED = Limits()
"""For `Trigger.Once`, which ignores limits."""


def admit(
    position: int,
    head: int,
    limits: Limits,
    *,
    now_ms: int,
    last_trigger_ms: int | None,
    sizes: Sequence[tuple[OffsetRange, int]] = (),
) -> int:
    """The end of a batch that starts at `position`, from there (hold back, or nothing new) to `head`.

    `last_trigger_ms` is when rows were last admitted, None if never: a query's first batch is not held back. `sizes` are the
    log's files with their bytes, in any order. Whole files are admitted while their sum is at most `max_bytes`; if not even
    the first fits, its share of rows by size, at least one, so that a query always moves. Rows that no file claims cost
    nothing here: that they exist is for the completeness proof to say. A head below `position` raises `InvalidOffset`.
    """
    new = _new_rows(position, head)
    if not new or _held_back(new, limits, now_ms, last_trigger_ms):
        return position
    end = head
    if limits.max_offsets is not None:
        end = min(end, position + limits.max_offsets)
    if limits.max_bytes is not None:
        end = _end_by_bytes(OffsetRange(position, end), limits.max_bytes, sizes)
    return end


def available_now(position: int, cap: int, head: int) -> int:
    """Where `Trigger.AvailableNow` ends: at the head it saw at its start (`cap`), never before `position`."""
    return max(check_offset(position, "position"), min(check_offset(cap, "cap"), check_offset(head, "head")))


def _new_rows(position: int, head: int) -> OffsetRange:
    check_offset(position, "position")
    check_offset(head, "head")
    if position > head:
        raise InvalidOffset(
            f"the checkpoint is at {position}, the topic ends at {head}",
            "the topic lost rows or the checkpoint is of another topic; check both, or start with a new checkpointLocation",
            start=position,
            end=head,
        )
    return OffsetRange(position, head)


def _held_back(new: OffsetRange, limits: Limits, now_ms: int, last_trigger_ms: int | None) -> bool:
    if limits.min_offsets is None or new.rows >= limits.min_offsets or last_trigger_ms is None:
        return False
    waited_ms = now_ms - last_trigger_ms
    # A clock that was set back must not hold rows until it has caught up.
    return 0 <= waited_ms < limits.max_trigger_delay_ms


def _end_by_bytes(new: OffsetRange, bytes_max: int, sizes: Sequence[tuple[OffsetRange, int]]) -> int:
    end = new.start
    left = bytes_max
    for file, file_bytes in sorted(sizes):
        part = OffsetRange(end, new.end).intersect(file)
        if not part:
            continue
        part_bytes = -(-file_bytes * part.rows // file.rows)
        if part_bytes > left:
            # `part.start`, not `end`: rows before this file that no file claims are free.
            return part.start if part.start > new.start else part.start + max(1, part.rows * left // part_bytes)
        left -= part_bytes
        end = part.end
    return new.end
