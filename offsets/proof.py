"""The proof that a read served exactly the rows it was asked for. Sees numbers only: no rows, no I/O, no clock.

Offsets are dense, so counting is enough: every chunk must begin where the last one ended and hold as many rows as it spans.
"""

from __future__ import annotations

from offsets.ranges import OffsetRange
from trigger_core.errors import OutboxDamaged

_CURE = "run Topic.verify() on the topic; if rows are gone, restore the table's files or start with a new checkpointLocation"


class CompletenessProof:
    """Watches one read of `whole`, chunk by chunk, in order. Any contradiction raises `OutboxDamaged` and changes nothing.

    Serves one thread. `next` is the offset that the next chunk must begin with.
    """

    def __init__(self, whole: OffsetRange) -> None:
        self._whole = whole
        self._next = whole.start

    @property
    def next(self) -> int:
        return self._next

    def observe(self, first: int, last: int, rows: int, strictly_consecutive: bool) -> None:
        """One chunk: its first and last offset (inclusive), its rows, and whether each offset is its predecessor plus one."""
        assert rows > 0, "an empty chunk has no first offset"
        if first > self._next:
            raise self._damaged(f"rows {OffsetRange(self._next, first)} are missing", first)
        if first < self._next:
            raise self._damaged(f"row {first} comes again or out of order after {self._next - 1}", first)
        if last >= self._whole.end:
            raise self._damaged(f"row {last} is beyond the end", last)
        span = last - first + 1
        if span != rows:
            what = "some are missing" if span > rows else "some come twice or out of order"
            raise self._damaged(f"{rows} rows stand between {first} and {last}, not {span}: {what}", first)
        if not strictly_consecutive:
            raise self._damaged(f"the {rows} rows from {first} to {last} are out of order", first)
        self._next = last + 1

    def finish(self) -> None:
        """The read is over: it must have come to the end of the range."""
        if self._next != self._whole.end:
            raise self._damaged(f"rows {OffsetRange(self._next, self._whole.end)} are missing at the end", self._next)

    def _damaged(self, problem: str, found: int) -> OutboxDamaged:
        return OutboxDamaged(
            f"reading {self._whole}: {problem}",
            _CURE,
            start=self._whole.start,
            end=self._whole.end,
            expected=self._next,
            found=found,
        )
