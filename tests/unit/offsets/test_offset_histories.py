"""Histories of one query against a model of how Spark uses offsets: batch 0 asks for the initial offset twice, a batch whose end
was stored is run again after a crash, and writers go on all the while. Nothing lost, nothing twice."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offsets import InitKind, Limits, StreamOffset, admit, available_now, range_between

DETERMINISTIC = settings(
    deadline=None, derandomize=True, database=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow]
)

DRAIN_TRIGGERS_MAX = 2000


class Query:
    """Spark's side: what is stored in `offsets/` and `commits/`, and which rows each committed batch had."""

    def __init__(self, kind: InitKind, number: int, limits: Limits) -> None:
        self.kind, self.number, self.limits = kind, number, limits
        self.head = number
        self.stored: list[str] = []
        self.batches: list[tuple[int, int]] = []

    def initial(self) -> StreamOffset:
        return StreamOffset.initial("t", "x", self.head if self.kind == "latest" else self.number, self.kind)

    def start(self) -> StreamOffset:
        batch = len(self.batches)
        return StreamOffset.parse(self.stored[batch - 1]) if batch else self.initial()

    def end(self, cap: int | None) -> StreamOffset:
        start = self.start()
        position = start.position("t").next
        head = self.head if cap is None else available_now(position, cap, self.head)
        return start.advance("t", admit(position, head, self.limits, now_ms=0, last_trigger_ms=None))

    def trigger(self, written_between: int, crash: bool, cap: int | None = None) -> bool:
        """One round of Spark's loop; `crash` strikes between `offsets/N` and `commits/N`. False: there was nothing to run."""
        if len(self.stored) == len(self.batches):
            end = self.end(cap)
            if self.stored and end.text() == self.stored[-1]:
                return False
            self.stored.append(end.text())
        self.head += written_between
        if crash:
            return True
        served = range_between(self.start(), StreamOffset.parse(self.stored[-1]), "t")
        self.batches.append((served.start, served.end))
        return True

    def drain(self, cap: int | None = None) -> None:
        for _ in range(DRAIN_TRIGGERS_MAX):
            if not self.trigger(0, crash=False, cap=cap):
                return
        raise AssertionError("the query does not come to an end")

    def rows(self) -> list[int]:
        return [offset for start, end in self.batches for offset in range(start, end)]


STEPS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.booleans()), max_size=12)
LIMITS = st.builds(Limits, max_offsets=st.none() | st.integers(1, 15))
KINDS = st.sampled_from(["latest", "earliest", "number", "timestamp"])


@DETERMINISTIC
@given(KINDS, st.integers(0, 50), LIMITS, STEPS)
def test_b3_b15_b22_any_history_of_crashes_and_writes_loses_and_repeats_nothing(
    kind: InitKind, number: int, limits: Limits, steps: list[tuple[int, int, bool]]
) -> None:
    query = Query(kind, number, limits)
    first = None
    for written, written_between, crash in steps:
        query.head += written
        if first is None:
            first = query.initial().position("t").next
        query.trigger(written_between, crash)
    if first is None:
        first = query.initial().position("t").next
    query.drain()
    assert query.rows() == list(range(first, query.head))
    assert all(limits.max_offsets is None or end - start <= limits.max_offsets for start, end in query.batches)
    assert not any('"init"' in text for text in query.stored), "an initial offset is never stored"


@DETERMINISTIC
@given(KINDS, LIMITS, st.lists(st.integers(0, 20), max_size=10), st.integers(0, 30))
def test_b14_available_now_ends_at_the_head_it_first_saw(kind: InitKind, limits: Limits, fast: list[int], before: int) -> None:
    query = Query(kind, 10, limits)
    query.drain()
    query.head += before
    cap = query.head
    for written_between in fast:
        query.trigger(written_between, crash=False, cap=cap)
    query.drain(cap)
    assert query.rows() == list(range(10, cap))


def test_b2_latest_restarted_before_the_first_row_sees_the_rows_since_its_pin() -> None:
    query = Query("latest", 100, Limits())
    query.trigger(0, crash=True)
    query.head = 107
    query.drain()
    assert query.batches == [(100, 100), (100, 107)]
