"""Hot and cold: every plan covers its range once, in order, within its budgets."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offsets import BATCH_BYTES_MAX, PARTITION_BYTES_MAX, HotPayload, OffsetRange, Piece, group, plan

DETERMINISTIC = settings(
    deadline=None, derandomize=True, database=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow]
)


def ordered(bounds: tuple[int, int]) -> OffsetRange:
    return OffsetRange(min(bounds), max(bounds))


RANGES = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(ordered)
PAYLOADS = st.lists(st.builds(HotPayload, RANGES, st.integers(0, 50), st.text("abc", min_size=1, max_size=3)), max_size=12)


def hot(start: int, end: int, size_bytes: int = 1) -> HotPayload:
    return HotPayload(OffsetRange(start, end), size_bytes, f"{start}-{end}")


def kinds(pieces: list[Piece]) -> list[tuple[str, int, int]]:
    return [(piece.kind, piece.range.start, piece.range.end) for piece in pieces]


@DETERMINISTIC
@given(RANGES, PAYLOADS, st.integers(0, 60), st.integers(0, 200))
def test_c2_any_plan_covers_the_range_once_in_order_within_both_budgets(
    whole: OffsetRange, payloads: list[HotPayload], partition_max: int, batch_max: int
) -> None:
    pieces = plan(whole, payloads, partition_bytes_max=partition_max, batch_bytes_max=batch_max)
    served = [offset for piece in pieces for offset in range(piece.range.start, piece.range.end)]
    assert served == list(range(whole.start, whole.end))
    assert all(piece.range for piece in pieces)
    for piece in pieces:
        if piece.kind == "hot":
            assert piece.key is not None
            assert HotPayload(piece.range, piece.size_bytes, piece.key) in payloads, "a payload is never cut"
            assert piece.size_bytes <= partition_max
        else:
            assert (piece.key, piece.size_bytes) == (None, 0)
    assert sum(piece.size_bytes for piece in pieces) <= batch_max


@DETERMINISTIC
@given(RANGES, PAYLOADS, st.randoms(use_true_random=False))
def test_c11_the_order_of_payloads_changes_nothing(whole: OffsetRange, payloads: list[HotPayload], random: object) -> None:
    shuffled = sorted(payloads, key=lambda _: random.random())  # type: ignore[attr-defined]
    assert kinds(plan(whole, shuffled)) == kinds(plan(whole, payloads))


@DETERMINISTIC
@given(RANGES, PAYLOADS, st.integers(0, 60))
def test_groups_keep_every_piece_in_order_within_the_partition_budget(
    whole: OffsetRange, payloads: list[HotPayload], partition_max: int
) -> None:
    pieces = plan(whole, payloads, partition_bytes_max=partition_max)
    groups = group(pieces, partition_bytes_max=partition_max)
    assert [piece for members in groups for piece in members] == pieces
    for members in groups:
        assert len({piece.kind for piece in members}) == 1
        assert len(members) == 1 or members[0].kind == "hot"
        assert sum(piece.size_bytes for piece in members) <= partition_max


def test_c2_a_reader_that_is_behind_has_one_seam() -> None:
    pieces = plan(OffsetRange(0, 40), [hot(20, 30), hot(30, 40), hot(10, 20)], batch_bytes_max=2)
    assert kinds(pieces) == [("cold", 0, 20), ("hot", 20, 30), ("hot", 30, 40)]


def test_everything_hot_and_everything_cold() -> None:
    assert plan(OffsetRange(0, 20), [hot(10, 20), hot(0, 10)]) == [
        Piece("hot", OffsetRange(0, 10), "0-10", 1),
        Piece("hot", OffsetRange(10, 20), "10-20", 1),
    ]
    assert plan(OffsetRange(0, 20), []) == [Piece("cold", OffsetRange(0, 20))]
    assert plan(OffsetRange(5, 5), [hot(5, 5), hot(0, 10)]) == []


def test_a_payload_that_reaches_over_an_edge_is_not_used() -> None:
    pieces = plan(OffsetRange(5, 15), [hot(0, 8), hot(8, 12), hot(12, 16)])
    assert kinds(pieces) == [
        ("cold", 5, 8),
        ("hot", 8, 12),
        ("cold", 12, 15),
    ]


def test_c11_duplicates_and_overlaps_are_served_once() -> None:
    assert kinds(plan(OffsetRange(0, 10), [hot(0, 6), hot(4, 10), hot(4, 10)])) == [("cold", 0, 4), ("hot", 4, 10)]


def test_a11_a_payload_too_large_for_a_partition_is_cold_and_the_others_stay_hot() -> None:
    pieces = plan(OffsetRange(0, 30), [hot(0, 10), hot(10, 20, PARTITION_BYTES_MAX + 1), hot(20, 30)])
    assert kinds(pieces) == [("hot", 0, 10), ("cold", 10, 20), ("hot", 20, 30)]


def test_the_default_budgets_hold_four_full_partitions() -> None:
    payloads = [hot(at, at + 1, PARTITION_BYTES_MAX) for at in range(6)]
    pieces = plan(OffsetRange(0, 6), payloads)
    assert kinds(pieces) == [("cold", 0, 2), ("hot", 2, 3), ("hot", 3, 4), ("hot", 4, 5), ("hot", 5, 6)]
    assert sum(piece.size_bytes for piece in pieces) == BATCH_BYTES_MAX
    assert [len(members) for members in group(pieces)] == [1, 1, 1, 1, 1]


def test_e6_a_burst_of_small_commits_is_one_partition() -> None:
    pieces = plan(OffsetRange(0, 100), [hot(at, at + 1, 1000) for at in range(100)])
    assert [len(members) for members in group(pieces)] == [100]
