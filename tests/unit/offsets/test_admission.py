"""Admission: how far a batch may go, with the times and sizes given."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offsets import OFFSET_MAX, TRIGGER_DELAY_MS_DEFAULT, UNLIMITED, Limits, OffsetRange, admit, available_now
from trigger_core.errors import InvalidOffset, InvalidOption

DETERMINISTIC = settings(
    deadline=None, derandomize=True, database=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow]
)

Sizes = list[tuple[OffsetRange, int]]


def by_bytes(position: int, head: int, max_bytes: int, sizes: Sizes) -> int:
    return admit(position, head, Limits(max_bytes=max_bytes), now_ms=0, last_trigger_ms=None, sizes=sizes)


@st.composite
def files(draw: st.DrawFn) -> Sizes:
    """Neighbouring files from 0, shuffled."""
    end, sizes = 0, []
    for rows, size in draw(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 1000)), min_size=1, max_size=8)):
        sizes.append((OffsetRange(end, end + rows), size))
        end += rows
    return draw(st.permutations(sizes))


def cost(rows: OffsetRange, sizes: Sizes) -> float:
    return sum(size * file.intersect(rows).rows / file.rows for file, size in sizes)


@DETERMINISTIC
@given(
    st.integers(0, OFFSET_MAX),
    st.integers(0, 10_000),
    st.none() | st.integers(1, 500),
    st.none() | st.integers(1, 500),
    st.integers(0, 1000),
    st.none() | st.integers(0, 2000),
)
def test_b15_b16_a_batch_moves_within_its_limits_or_waits_for_a_reason(
    position: int, new: int, max_offsets: int | None, min_offsets: int | None, delay_ms: int, last_ms: int | None
) -> None:
    head = min(position + new, OFFSET_MAX)
    if max_offsets is not None and min_offsets is not None:
        min_offsets = min(min_offsets, max_offsets)
    limits = Limits(max_offsets, min_offsets, delay_ms)
    end = admit(position, head, limits, now_ms=1000, last_trigger_ms=last_ms)
    assert position <= end <= head
    assert max_offsets is None or end - position <= max_offsets
    waited = last_ms is None or not 0 <= 1000 - last_ms < delay_ms
    held_back = min_offsets is not None and head - position < min_offsets and not waited
    assert (end == position) == (head == position or held_back)


def test_b15_no_limits_take_all_as_once_does() -> None:
    assert admit(3, 1_000_000, UNLIMITED, now_ms=0, last_trigger_ms=0) == 1_000_000


def test_b15_max_offsets_counts_from_the_position() -> None:
    limits = Limits(max_offsets=10)
    assert [admit(at, 25, limits, now_ms=0, last_trigger_ms=0) for at in (0, 10, 20, 25)] == [10, 20, 25, 25]


def test_b16_min_offsets_wait_until_enough_or_until_the_delay() -> None:
    limits = Limits(min_offsets=10, max_trigger_delay_ms=500)
    assert admit(0, 9, limits, now_ms=1499, last_trigger_ms=1000) == 0
    assert admit(0, 10, limits, now_ms=1499, last_trigger_ms=1000) == 10
    assert admit(0, 9, limits, now_ms=1500, last_trigger_ms=1000) == 9
    assert admit(0, 9, limits, now_ms=1499, last_trigger_ms=None) == 9, "the first batch of a query is not held back"
    assert admit(0, 9, limits, now_ms=10, last_trigger_ms=1000) == 9, "a clock set back holds nothing back"
    assert Limits(min_offsets=1).max_trigger_delay_ms == TRIGGER_DELAY_MS_DEFAULT == 900_000


@DETERMINISTIC
@given(files(), st.data(), st.integers(1, 3000))
def test_max_bytes_keep_the_budget_and_always_move(sizes: Sizes, data: st.DataObject, max_bytes: int) -> None:
    head = max(file.end for file, _ in sizes)
    position = data.draw(st.integers(0, head - 1))
    end = by_bytes(position, head, max_bytes, sizes)
    assert position < end <= head
    assert end == position + 1 or cost(OffsetRange(position, end), sizes) <= max_bytes + 1e-6


@DETERMINISTIC
@given(files(), st.integers(1, 3000))
def test_max_bytes_take_as_many_whole_files_as_fit(sizes: Sizes, max_bytes: int) -> None:
    head = max(file.end for file, _ in sizes)
    fitting = [0] + [file.end for file, _ in sizes if sum(size for other, size in sizes if other.end <= file.end) <= max_bytes]
    if max(fitting) > 0:
        assert by_bytes(0, head, max_bytes, sizes) == max(fitting)


def test_max_bytes_by_example() -> None:
    sizes = [(OffsetRange(10, 20), 100), (OffsetRange(0, 10), 100), (OffsetRange(20, 30), 100)]
    assert by_bytes(0, 30, 250, sizes) == 20, "whole files"
    assert by_bytes(5, 30, 150, sizes) == 20, "half of a file costs half"
    assert by_bytes(0, 30, 40, sizes) == 4, "a file that is too large by itself is taken in shares"
    assert by_bytes(0, 30, 1, sizes) == 1, "one row at least"
    assert by_bytes(0, 30, 300, sizes) == 30
    assert by_bytes(25, 30, 1000, sizes) == 30, "files behind the position cost nothing"


def test_max_bytes_and_max_offsets_hold_together() -> None:
    sizes = [(OffsetRange(0, 10), 100), (OffsetRange(10, 20), 100)]
    limits = Limits(max_offsets=15, max_bytes=120)
    assert admit(0, 20, limits, now_ms=0, last_trigger_ms=None, sizes=sizes) == 10
    assert admit(0, 20, Limits(max_offsets=5, max_bytes=120), now_ms=0, last_trigger_ms=None, sizes=sizes) == 5


def test_rows_that_no_file_claims_and_rows_claimed_twice_hold_nothing_up() -> None:
    assert by_bytes(0, 30, 10, []) == 30
    assert by_bytes(0, 30, 10, [(OffsetRange(5, 30), 100)]) == 5
    assert by_bytes(0, 20, 150, [(OffsetRange(0, 10), 100), (OffsetRange(0, 10), 100), (OffsetRange(10, 20), 50)]) == 20
    assert by_bytes(0, 20, 150, [(OffsetRange(3, 3), 9999), (OffsetRange(0, 20), 150)]) == 20


def test_a_head_below_the_position_is_an_error_with_both_numbers() -> None:
    with pytest.raises(InvalidOffset, match="checkpoint is at 7, the topic ends at 3") as error:
        admit(7, 3, UNLIMITED, now_ms=0, last_trigger_ms=None)
    assert error.value.facts == {"start": 7, "end": 3}


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"max_offsets": 0}, "maxOffsetsPerTrigger is 0"),
        ({"min_offsets": -1}, "minOffsetsPerTrigger is -1"),
        ({"max_bytes": 0}, "maxBytesPerTrigger is 0"),
        ({"max_trigger_delay_ms": -1}, "maxTriggerDelay is -1 ms"),
        ({"max_offsets": 5, "min_offsets": 6}, "minOffsetsPerTrigger 6 is beyond maxOffsetsPerTrigger 5"),
    ],
)
def test_b16_limits_that_can_not_be_meant_name_their_option(options: dict[str, int], option: str) -> None:
    with pytest.raises(InvalidOption, match=option):
        Limits(**options)


@DETERMINISTIC
@given(st.integers(0, OFFSET_MAX), st.integers(0, OFFSET_MAX), st.integers(0, OFFSET_MAX))
def test_b14_available_now_never_goes_back_and_never_beyond_its_cap(position: int, cap: int, head: int) -> None:
    end = available_now(position, cap, head)
    assert end >= position
    assert end == position or end <= min(cap, head)


def test_b14_b23_available_now_by_example() -> None:
    assert available_now(0, 100, 250) == 100, "a fast writer does not keep it going"
    assert available_now(900, 900, 900) == 900, "nothing new, also when everything below 800 is trimmed"
    assert available_now(120, 100, 250) == 120, "restarted after a failure, with an older cap"


def test_t13_available_now_refuses_numbers_that_are_no_offsets() -> None:
    with pytest.raises(InvalidOffset, match="head"):
        available_now(0, 0, 2**63)
