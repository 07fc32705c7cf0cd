"""The completeness proof: it passes for exactly the range, and names what is wrong with anything else."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offsets import CompletenessProof, OffsetRange, split
from trigger_core.errors import OutboxDamaged

DETERMINISTIC = settings(
    deadline=None, derandomize=True, database=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow]
)


def prove(whole: OffsetRange, chunks: list[list[int]]) -> None:
    """What a reader does with the offsets that it found."""
    proof = CompletenessProof(whole)
    for chunk in chunks:
        consecutive = all(after == before + 1 for before, after in pairwise(chunk))
        proof.observe(chunk[0], chunk[-1], len(chunk), consecutive)
    proof.finish()


@DETERMINISTIC
@given(st.integers(0, 100), st.integers(0, 60), st.integers(1, 8))
def test_the_range_in_any_chunks_is_complete(start: int, rows: int, pieces: int) -> None:
    whole = OffsetRange(start, start + rows)
    prove(whole, [list(range(piece.start, piece.end)) for piece in split(whole, pieces)])


@DETERMINISTIC
@given(st.integers(0, 5), st.integers(0, 6), st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=5), max_size=4))
def test_whatever_is_not_exactly_the_range_is_damage(start: int, rows: int, chunks: list[list[int]]) -> None:
    whole = OffsetRange(start, start + rows)
    if [offset for chunk in chunks for offset in chunk] == list(range(whole.start, whole.end)):
        prove(whole, chunks)
        return
    with pytest.raises(OutboxDamaged):
        prove(whole, chunks)


@pytest.mark.parametrize(
    ("chunks", "problem"),
    [
        ([[1, 2, 3, 4]], r"rows \[0, 1\) are missing"),
        ([[0, 1], [3, 4]], r"rows \[2, 3\) are missing"),
        ([[0, 1], [1, 2]], "row 1 comes again or out of order after 1"),
        ([[0, 1, 2, 3, 4, 5]], "row 5 is beyond the end"),
        ([[0, 1, 3, 4]], "4 rows stand between 0 and 4, not 5: some are missing"),
        ([[0, 1, 1, 2]], "4 rows stand between 0 and 2, not 3: some come twice"),
        ([[0, 2, 1, 3]], "the 4 rows from 0 to 3 are out of order"),
        ([[0, 1, 2]], r"rows \[3, 5\) are missing at the end"),
        ([], r"rows \[0, 5\) are missing at the end"),
    ],
)
def test_t4_density_names_the_hole_the_repeat_the_disorder_and_the_short_end(chunks: list[list[int]], problem: str) -> None:
    with pytest.raises(OutboxDamaged, match=r"reading \[0, 5\): " + problem):
        prove(OffsetRange(0, 5), chunks)


def test_a_refused_chunk_leaves_the_proof_as_it_was_and_carries_the_numbers() -> None:
    proof = CompletenessProof(OffsetRange(10, 20))
    proof.observe(10, 14, 5, True)
    with pytest.raises(OutboxDamaged) as error:
        proof.observe(17, 19, 3, True)
    assert error.value.facts == {"start": 10, "end": 20, "expected": 15, "found": 17}
    assert proof.next == 15
    proof.observe(15, 19, 5, True)
    proof.finish()


def test_an_empty_chunk_is_the_callers_mistake() -> None:
    with pytest.raises(AssertionError, match="empty chunk"):
        CompletenessProof(OffsetRange(0, 5)).observe(0, 0, 0, True)
