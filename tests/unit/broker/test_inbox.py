"""The inbox: bounded, newest kept, losses counted."""

from __future__ import annotations

import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from trigger_broker.inbox import Inbox
from trigger_broker.protocol import Fetched, Malformed, Received
from trigger_core.wakeup import Wakeup


def fetched(number: int, size: int | None) -> Fetched:
    return Fetched(Wakeup(number, "t", number, number + 1, "s", payload=None if size is None else bytes(size)), str(number))


def sizes(entries: list[Received]) -> list[int | None]:
    return [
        None if entry.wakeup.payload is None else len(entry.wakeup.payload) for entry in entries if isinstance(entry, Fetched)
    ]


def test_entries_come_out_once_in_order() -> None:
    inbox = Inbox()
    entries = [fetched(n, 10) for n in range(5)]
    for entry in entries:
        inbox.put(entry)
    assert inbox.take(0) == entries
    assert inbox.take(0) == []


def test_too_many_bytes_cost_the_oldest_payloads() -> None:
    inbox = Inbox(bytes_max=25)
    for n in range(4):
        inbox.put(fetched(n, 10))
    assert sizes(inbox.take(0)) == [None, None, 10, 10]
    assert (inbox.counts().reduced, inbox.counts().dropped) == (2, 0)


def test_too_many_entries_cost_the_oldest() -> None:
    inbox = Inbox(count_max=3)
    for n in range(5):
        inbox.put(fetched(n, None))
    assert [entry.native_id for entry in inbox.take(0)] == ["2", "3", "4"]
    assert (inbox.counts().received, inbox.counts().dropped) == (5, 2)


def test_malformed_bytes_are_kept_whole_or_not_at_all() -> None:
    inbox = Inbox(bytes_max=10)
    inbox.put(Malformed(b"12345678", "bad", "1"))
    inbox.put(fetched(2, 5))
    assert [entry.native_id for entry in inbox.take(0)] == ["2"]
    assert (inbox.counts().malformed, inbox.counts().dropped) == (1, 1)


def test_an_entry_larger_than_the_inbox_becomes_a_pointer() -> None:
    inbox = Inbox(bytes_max=10)
    inbox.put(fetched(1, 11))
    assert sizes(inbox.take(0)) == [None]


entries = st.one_of(
    st.tuples(st.just("put"), st.none() | st.integers(0, 40)),
    st.tuples(st.just("garbage"), st.integers(0, 40)),
    st.tuples(st.just("take"), st.none()),
)


@settings(derandomize=True, deadline=None)
@given(st.lists(entries, max_size=60))
def test_bounds_hold_and_every_entry_is_accounted_for(steps: list[tuple[str, int | None]]) -> None:
    inbox = Inbox(bytes_max=100, count_max=8)
    put = taken = 0
    last = -1
    for number, (step, size) in enumerate(steps):
        if step == "put":
            inbox.put(fetched(number, size))
            put += 1
        elif step == "garbage":
            inbox.put(Malformed(bytes(size or 0), "bad", str(number)))
            put += 1
        else:
            came = inbox.take(0)
            assert len(came) <= 8
            assert sum(len(e.wakeup.payload or b"") if isinstance(e, Fetched) else len(e.raw) for e in came) <= 100
            numbers = [int(entry.native_id) for entry in came]
            assert numbers == sorted(numbers)
            assert all(number > last for number in numbers)
            last = max(numbers, default=last)
            taken += len(came)
    left = len(inbox.take(0))
    assert put == taken + left + inbox.counts().dropped


def test_an_arrival_ends_the_wait() -> None:
    inbox = Inbox()
    came: list[list[Received]] = []
    reader = threading.Thread(target=lambda: came.append(inbox.take(60_000)))
    reader.start()
    inbox.put(fetched(1, None))
    reader.join(60)
    assert came == [[fetched(1, None)]]


def test_close_ends_the_wait_and_discards() -> None:
    inbox = Inbox()
    came: list[list[Received]] = []
    reader = threading.Thread(target=lambda: came.append(inbox.take(60_000)))
    reader.start()
    inbox.close()
    reader.join(60)
    inbox.put(fetched(1, 10))
    assert came == [[]]
    assert inbox.closed
    assert inbox.take(60_000) == []
