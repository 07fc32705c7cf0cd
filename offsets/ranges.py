"""Half-open ranges of row offsets, `[start, end)`, and the arithmetic on them. No I/O, no clock.

An offset is the position of one row in its topic, dense from 0. A position is the next row to read, so the range between
two positions needs no plus or minus one: from position 3 to position 5 are the rows 3 and 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from offsets.excerpt import excerpt
from trigger_core.errors import InvalidOffset, InvalidOption

OFFSET_MAX = 2**63 - 1
"""`_offset` is a BIGINT. An offset beyond it is refused: wrapped round it would mean "replay everything"."""

PIECES_MAX = 100_000
"""Most pieces that `split` returns: each becomes a Spark task."""


def check_offset(value: object, name: str = "offset") -> int:
    """Returns `value` if it is a whole number from 0 to `OFFSET_MAX`, else raises `InvalidOffset` that calls it `name`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidOffset(f"{name} {excerpt(value)} is not a whole number", "give a number from 0 to 2^63 - 1", name=name)
    if not 0 <= value <= OFFSET_MAX:
        raise InvalidOffset(f"{name} {excerpt(value)} is out of range", "give a number from 0 to 2^63 - 1", name=name)
    return value


@dataclass(frozen=True, order=True)
class OffsetRange:
    """The rows `start`, `start + 1`, … `end - 1`. Falsy when empty; `len(r)` and `r.rows` count its rows.

    It unpacks as `start, end = r`. So iterating gives those two numbers, not the rows. `list(r)` and `f(*r)` do that too,
    but Python first sets aside room for `len(r)` items: name the fields instead.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        check_offset(self.start, "start")
        check_offset(self.end, "end")
        if self.start > self.end:
            raise InvalidOffset(
                f"start {self.start} is beyond end {self.end}",
                "give a start that is at or below the end",
                start=self.start,
                end=self.end,
            )

    def __iter__(self) -> Iterator[int]:
        yield self.start
        yield self.end

    def __len__(self) -> int:
        return self.end - self.start

    def __bool__(self) -> bool:
        return self.start < self.end

    def __contains__(self, offset: object) -> bool:
        # Without this, `in` would go through __iter__ and find the two bounds only.
        return isinstance(offset, int) and self.contains(offset)

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"

    @property
    def rows(self) -> int:
        return self.end - self.start

    def contains(self, offset: int) -> bool:
        return self.start <= offset < self.end

    def covers(self, other: OffsetRange) -> bool:
        """Whether every row of `other` is here; an empty range is covered by any."""
        return not other or (self.start <= other.start and other.end <= self.end)

    def intersect(self, other: OffsetRange) -> OffsetRange:
        """The rows that both have. When there are none: an empty range that lies within `self`."""
        start = min(max(self.start, other.start), self.end)
        return OffsetRange(start, max(start, min(self.end, other.end)))

    def overlaps(self, other: OffsetRange) -> bool:
        return bool(self.intersect(other))


def split(whole: OffsetRange, pieces_min: int = 1, rows_max: int | None = None) -> list[OffsetRange]:
    """Cuts `whole` into ordered, disjoint, non-empty pieces that cover it, whose sizes differ by one row at most.

    At least `pieces_min` pieces, as far as there are rows, and none longer than `rows_max`. An empty range has no pieces.
    Raises `InvalidOption` when that takes more than `PIECES_MAX`.
    """
    if pieces_min < 1 or (rows_max is not None and rows_max < 1):
        raise InvalidOption(
            f"minPartitions {pieces_min} and maxRecordsPerPartition {rows_max} can't split a range",
            "give each as 1 or more, or leave it out",
            pieces_min=pieces_min,
            rows_max=rows_max,
        )
    pieces = pieces_min if rows_max is None else max(pieces_min, -(-whole.rows // rows_max))
    pieces = min(pieces, whole.rows)
    if pieces > PIECES_MAX:
        raise InvalidOption(
            f"{whole.rows} rows would become {pieces} partitions, the most is {PIECES_MAX}",
            "raise maxRecordsPerPartition, lower minPartitions, or bound a batch with maxOffsetsPerTrigger",
            rows=whole.rows,
            pieces=pieces,
        )
    cuts = [whole.start + whole.rows * index // pieces for index in range(pieces)] + [whole.end]
    return [OffsetRange(start, end) for start, end in pairwise(cuts)]


def missing(whole: OffsetRange, have: Iterable[OffsetRange]) -> list[OffsetRange]:
    """The parts of `whole` that no range in `have` holds, ordered and as long as can be. `have` may overlap, in any order."""
    gaps = []
    reached = whole.start
    for held in sorted(part for part in map(whole.intersect, have) if part):
        if held.start > reached:
            gaps.append(OffsetRange(reached, held.start))
        reached = max(reached, held.end)
    if reached < whole.end:
        gaps.append(OffsetRange(reached, whole.end))
    return gaps
