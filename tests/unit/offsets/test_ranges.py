"""Ranges: validation, splitting, gaps. The oracle is a set of small integers."""

from __future__ import annotations

import pickle
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offsets import OFFSET_MAX, PIECES_MAX, OffsetRange, check_offset, missing, split
from trigger_core.errors import InvalidOffset, InvalidOption

DETERMINISTIC = settings(deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])


def ordered(bounds: tuple[int, int]) -> OffsetRange:
    return OffsetRange(min(bounds), max(bounds))


SMALL = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(ordered)
ANY = st.tuples(st.integers(0, OFFSET_MAX), st.integers(0, OFFSET_MAX)).map(ordered)


def rows(held: OffsetRange) -> set[int]:
    return set(range(held.start, held.end))


@pytest.mark.parametrize("value", [0, 1, OFFSET_MAX])
def test_every_bigint_from_zero_is_an_offset(value: int) -> None:
    assert check_offset(value) == value


@pytest.mark.parametrize("value", [2**63, 2**64, -1, -(2**63)])
def test_t13_an_offset_outside_the_bigint_is_refused_not_wrapped(value: int) -> None:
    with pytest.raises(InvalidOffset, match=r"position .* is out of range — give a number from 0 to 2\^63 - 1"):
        check_offset(value, "position")


@pytest.mark.parametrize("value", [True, 1.0, "1", None, b"1", [1]])
def test_only_whole_numbers_are_offsets(value: object) -> None:
    with pytest.raises(InvalidOffset, match="is not a whole number"):
        check_offset(value)


def test_an_error_quotes_a_long_value_in_short() -> None:
    with pytest.raises(InvalidOffset) as error:
        check_offset("9" * 10_000)
    assert len(str(error.value)) < 250
    with pytest.raises(InvalidOffset, match="unprintable int"):
        check_offset(10**5000)


def test_b18_a_start_beyond_the_end_raises_with_both_numbers() -> None:
    with pytest.raises(InvalidOffset, match="start 7 is beyond end 3") as error:
        OffsetRange(7, 3)
    assert error.value.facts == {"start": 7, "end": 3}


@pytest.mark.parametrize(
    ("start", "end", "name"),
    [(-1, 3, "start -1"), (0, 2**63, "end 9223372036854775808"), (0, "3", "end '3'")],
)
def test_t13_both_bounds_are_checked_by_name(start: int, end: int, name: str) -> None:
    with pytest.raises(InvalidOffset, match=name):
        OffsetRange(start, end)


def test_a_range_unpacks_prints_pickles_and_counts() -> None:
    held = OffsetRange(3, 5)
    start, end = held
    assert (start, end, len(held), held.rows, str(held)) == (3, 5, 2, 2, "[3, 5)")
    assert pickle.loads(pickle.dumps(held)) == held
    assert held
    assert not OffsetRange(3, 3)


def test_the_largest_range_has_a_length() -> None:
    assert len(OffsetRange(0, OFFSET_MAX)) == OFFSET_MAX


def test_in_asks_for_a_row_and_not_for_a_bound() -> None:
    held = OffsetRange(3, 6)
    assert [offset for offset in range(10) if offset in held] == [3, 4, 5]
    assert "4" not in held


@DETERMINISTIC
@given(SMALL, SMALL)
def test_intersect_overlaps_covers_agree_with_sets(one: OffsetRange, other: OffsetRange) -> None:
    both = one.intersect(other)
    assert rows(both) == rows(one) & rows(other)
    assert one.start <= both.start <= both.end <= one.end
    assert one.overlaps(other) == other.overlaps(one) == bool(rows(one) & rows(other))
    assert one.covers(other) == (rows(other) <= rows(one))


@DETERMINISTIC
@given(SMALL, st.integers(-5, 50))
def test_contains_agrees_with_sets(held: OffsetRange, offset: int) -> None:
    assert held.contains(offset) == (offset in held) == (offset in rows(held))


@DETERMINISTIC
@given(SMALL, st.lists(SMALL, max_size=6))
def test_missing_is_what_no_held_range_has(whole: OffsetRange, have: list[OffsetRange]) -> None:
    gaps = missing(whole, have)
    held = set().union(*map(rows, have)) if have else set()
    assert [offset for gap in gaps for offset in sorted(rows(gap))] == sorted(rows(whole) - held)
    assert all(gaps)
    assert all(before.end < after.start for before, after in pairwise(gaps)), "neighbours are one gap"


@DETERMINISTIC
@given(ANY, st.integers(1, 50), st.none() | st.integers(1, OFFSET_MAX))
def test_split_is_disjoint_covering_and_near_equal(whole: OffsetRange, pieces_min: int, rows_max: int | None) -> None:
    if rows_max is not None:
        rows_max = max(rows_max, whole.rows // 1000 + 1)
    pieces = split(whole, pieces_min, rows_max)
    assert len(pieces) >= min(pieces_min, whole.rows)
    assert all(pieces)
    reached = whole.start
    for piece in pieces:
        assert piece.start == reached
        assert rows_max is None or piece.rows <= rows_max
        reached = piece.end
    assert reached == whole.end or not whole
    sizes = {piece.rows for piece in pieces}
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_split_by_example() -> None:
    assert split(OffsetRange(0, 10), 3) == [OffsetRange(0, 3), OffsetRange(3, 6), OffsetRange(6, 10)]
    assert split(OffsetRange(5, 7), 9) == [OffsetRange(5, 6), OffsetRange(6, 7)]
    assert split(OffsetRange(0, 10), 1, 4) == [OffsetRange(0, 3), OffsetRange(3, 6), OffsetRange(6, 10)]
    assert split(OffsetRange(5, 5), 4, 2) == []


@pytest.mark.parametrize(("pieces_min", "rows_max"), [(0, None), (1, 0), (-1, 5)])
def test_split_refuses_what_can_not_be_meant(pieces_min: int, rows_max: int | None) -> None:
    with pytest.raises(InvalidOption, match="minPartitions"):
        split(OffsetRange(0, 10), pieces_min, rows_max)


def test_split_is_bounded() -> None:
    assert len(split(OffsetRange(0, PIECES_MAX), 1, 1)) == PIECES_MAX
    with pytest.raises(InvalidOption, match="raise maxRecordsPerPartition"):
        split(OffsetRange(0, OFFSET_MAX), 1, 1)
