"""Which rows of a batch are served hot, from payloads at hand, and which cold, from Delta. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from offsets.ranges import OffsetRange, missing

PARTITION_BYTES_MAX = 4 * 1024 * 1024
"""Payload bytes in one input partition: clusters refuse larger tasks."""

BATCH_BYTES_MAX = 16 * 1024 * 1024
"""Payload bytes in all partitions of one batch: they pass through the driver."""


@dataclass(frozen=True)
class HotPayload:
    """Verified rows of `range` that the reader holds under `key`, `size_bytes` long."""

    range: OffsetRange
    size_bytes: int
    key: str


@dataclass(frozen=True)
class Piece:
    """Rows that come from one place. `key` and `size_bytes` are those of the payload, None and 0 when cold."""

    kind: Literal["hot", "cold"]
    range: OffsetRange
    key: str | None = None
    size_bytes: int = 0


def plan(
    whole: OffsetRange,
    hot: Sequence[HotPayload],
    *,
    partition_bytes_max: int = PARTITION_BYTES_MAX,
    batch_bytes_max: int = BATCH_BYTES_MAX,
) -> list[Piece]:
    """Ordered, disjoint pieces that cover `whole`.

    A payload is used only if it lies wholly in `whole` and fits both budgets; it is never cut. The newest are chosen first,
    and the first that bursts the batch's budget ends the choice: so a reader that is behind has one seam, history from Delta
    and then the hot tail. `hot` may overlap and come in any order.
    """
    chosen: list[Piece] = []
    floor, left = whole.end, batch_bytes_max
    for payload in sorted(hot, key=lambda payload: (payload.range, payload.key), reverse=True):
        usable = payload.range and whole.covers(payload.range) and payload.range.end <= floor
        if not usable or payload.size_bytes > partition_bytes_max:
            continue
        if payload.size_bytes > left:
            break
        chosen.append(Piece("hot", payload.range, payload.key, payload.size_bytes))
        floor, left = payload.range.start, left - payload.size_bytes
    cold = [Piece("cold", gap) for gap in missing(whole, [piece.range for piece in chosen])]
    return sorted(chosen + cold, key=lambda piece: piece.range)


def group(pieces: Iterable[Piece], *, partition_bytes_max: int = PARTITION_BYTES_MAX) -> list[tuple[Piece, ...]]:
    """Input partitions: neighbouring hot pieces together while their bytes fit, each cold piece alone. Keeps the order.

    A burst of small commits is thus a few tasks and not one for each commit.
    """
    groups: list[tuple[Piece, ...]] = []
    room = -1  # no group that a hot piece could join
    for piece in pieces:
        if piece.kind == "hot" and piece.size_bytes <= room:
            groups[-1] += (piece,)
            room -= piece.size_bytes
        else:
            groups.append((piece,))
            room = partition_bytes_max - piece.size_bytes if piece.kind == "hot" else -1
    return groups
