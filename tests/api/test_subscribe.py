"""`subscribe`: history, then the live tail, over one seam, each row once and in order, whatever the broker does."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from datetime import datetime, timedelta, timezone

import pyarrow as pa
import pytest

import pyspark_trigger as trigger
from pyspark_trigger.subscribing import Subscriber
from tests.api.conftest import sockets_in
from tests.api.rows import numbered, offsets_of, publish_numbered, table_of, wait_until
from tests.api.worker import DEADLINE_S, Worker
from trigger_core.errors import DataLoss
from trigger_outbox import Outbox
from trigger_source.tail import Tail

CLOSE_S_MAX = 2.0


def test_B1_earliest_is_everything(path: str) -> None:
    publish_numbered(path, "t", 5)
    with trigger.subscribe(path, "t", start="earliest", end=15) as feed:
        assert offsets_of(feed) == list(range(15))


def subscribed(path: str, start: int, **settings: int) -> Subscriber:
    """A subscriber that polls once an hour: what it learns, it learns from wakeups."""
    tail = Tail(Outbox.open(path, "t"), "local:", poll_interval_ms=3_600_000, **settings)
    tail.attach()
    tail.refresh()
    return Subscriber(tail, start, None, 0)


def wait_for_payloads(feed: Subscriber, wanted: trigger.OffsetRange) -> None:
    """Until the rows of `wanted` are all at hand, hot."""

    def at_hand() -> bool:
        feed.tail.wait(0, 0)
        return sum(len(payload.range) for payload in feed.tail.hot(wanted)) == len(wanted)

    wait_until(at_hand, f"payloads of {wanted}")


def test_history_then_the_live_tail_over_one_seam(path: str) -> None:
    publish_numbered(path, "t", 10)
    with subscribed(path, 0) as feed:
        publish_numbered(path, "t", 5)
        wait_for_payloads(feed, trigger.OffsetRange(30, 45))
        assert offsets_of(feed) == list(range(45))
        assert (feed.cold_rows, feed.hot_rows) == (30, 15)
        assert feed.position == 45


def test_hot_and_cold_rows_are_the_same(path: str) -> None:
    publish_numbered(path, "t", 1)
    with subscribed(path, 3) as feed:
        publish_numbered(path, "t", 5)
        wait_for_payloads(feed, trigger.OffsetRange(3, 18))
        hot = table_of(feed)
        assert feed.hot_rows == 15
    cold = table_of(trigger.Topic(path, "t").read(3, 18))
    assert hot.equals(cold)
    assert hot.schema == cold.schema


def test_B2_latest_sees_only_later_rows(path: str) -> None:
    """Also after a restart, at its position, before the first row."""
    publish_numbered(path, "t", 4)
    with trigger.subscribe(path, "t", timeout=0) as feed:
        assert list(feed) == []
        position = feed.position
    assert position == 12
    publish_numbered(path, "t", 2)
    with trigger.subscribe(path, "t", start=position, timeout=0) as feed:
        assert offsets_of(feed) == list(range(12, 18))


def test_B2_latest_is_as_of_the_call(path: str) -> None:
    publish_numbered(path, "t", 1)
    with trigger.subscribe(path, "t", end=6) as feed:
        publish_numbered(path, "t", 1)
        assert offsets_of(feed) == [3, 4, 5]


def test_B3_resume_misses_none_and_repeats_none(path: str) -> None:
    seen: list[int] = []
    position: int | str = "earliest"
    for _ in range(6):
        publish_numbered(path, "t", 3, rows=4)
        with trigger.subscribe(path, "t", start=position, timeout=0) as feed:
            publish_numbered(path, "t", 2, rows=1)
            seen += offsets_of([next(feed), next(feed)])  # and leaves the rest
            position = feed.position
    with trigger.subscribe(path, "t", start=position, timeout=0) as feed:
        seen += offsets_of(feed)
    assert seen == list(range(trigger.Topic(path, "t").head()))


def test_B6_a_fresh_broker_and_all_from_delta(path: str, runtime_dir: str) -> None:
    """Nobody listened while it was written, and the broker remembers nothing (also T3: Delta serves what a broker can't)."""
    publish_numbered(path, "t", 20)
    assert sockets_in(runtime_dir) == []
    with trigger.subscribe(path, "t", start=0, end=60) as feed:
        assert offsets_of(feed) == list(range(60))
        assert (feed.cold_rows, feed.hot_rows) == (60, 0)


def test_B8_T2_resume_at_the_head(path: str) -> None:
    """Nothing old comes again; the next row does."""
    head = publish_numbered(path, "t", 20)
    with trigger.subscribe(path, "t", start=head, timeout=0) as feed:
        assert list(feed) == []
    with trigger.subscribe(path, "t", start=head, end=head + 3) as feed:
        publish_numbered(path, "t", 1)
        assert offsets_of(feed) == [head, head + 1, head + 2]


@pytest.mark.parametrize("start", [0, 4, 6])
def test_B9_T1_an_event_between_attach_and_the_head(path: str, start: int) -> None:
    """It is in the log when the head is read, and its wakeup has come too: it is served once."""
    publish_numbered(path, "t", 2)
    tail = Tail(Outbox.open(path, "t"), "local:")
    tail.attach()
    publish_numbered(path, "t", 1)
    assert tail.refresh() == 9
    with Subscriber(tail, start, None, 0) as feed:
        assert offsets_of(feed) == list(range(start, 9))


def test_B9_while_another_process_writes(path: str, workers: type[Worker]) -> None:
    """Subscribers that join at any moment see the rest, without a hole at the seam."""
    trigger.Topic(path, "t").create(pa.schema([("who", pa.string()), ("n", pa.int64())]))
    writer = workers("publisher", path=path, topic="t")
    writer.hear("ready")
    writer.tell(rows=2, batches=150)
    joined = 0
    while trigger.Topic(path, "t").head() < 300:
        with trigger.subscribe(path, "t", start="latest" if joined % 2 else "earliest", end=300) as feed:
            first = feed.position
            taken = next(feed, None)
            if taken is not None:
                assert taken.column("_offset")[0].as_py() == first
        joined += 1
    with trigger.subscribe(path, "t", start="earliest", timeout=0) as feed:
        assert offsets_of(feed) == list(range(300))


def test_B13_two_subscribers_each_see_all(path: str, workers: type[Worker]) -> None:
    trigger.Topic(path, "t").create(numbered(0, 0).schema)
    readers = [workers("subscriber", path=path, topic="t", start="earliest", end=120) for _ in range(2)]
    for reader in readers:
        assert reader.hear("ready") == 0
    publish_numbered(path, "t", 40)
    for reader in readers:
        assert reader.hear("done") == 120
        assert [n for said in reader.said for n in said.get("n", [])] == list(range(120))
        assert [n for said in reader.said for n in said.get("offsets", [])] == list(range(120))


def test_B20_a_start_by_time(path: str) -> None:
    """Before, between, at and after all rows; in another zone; to the microsecond."""
    publish_numbered(path, "t", 1)
    wait_until(lambda: time.time_ns() // 1000 > trigger.Topic(path, "t").describe().produced_at_us, "the clock goes on")
    publish_numbered(path, "t", 1)
    times = table_of(trigger.Topic(path, "t").read()).column("_produced_at").to_pylist()
    first, second = times[0], times[3]
    assert first < second
    cases = {
        first - timedelta(days=1): 0,
        first: 0,
        first + timedelta(microseconds=1): 3,
        second: 3,
        second.astimezone(timezone(timedelta(hours=5))): 3,
        second.astimezone().replace(tzinfo=None): 3,
        second + timedelta(microseconds=1): 6,
        second + timedelta(days=1): 6,
    }
    for moment, wanted in cases.items():
        with trigger.subscribe(path, "t", start=moment, timeout=0) as feed:
            assert feed.position == wanted, moment
            assert offsets_of(feed) == list(range(wanted, 6))


def test_C1_a_cache_that_overflows(path: str) -> None:
    """Payloads fall out of a tiny cache, the oldest first; every row comes all the same."""
    publish_numbered(path, "t", 1)
    with subscribed(path, 0, cache_bytes=1_500) as feed:
        publish_numbered(path, "t", 8)
        wait_for_payloads(feed, trigger.OffsetRange(24, 27))
        assert offsets_of(feed) == list(range(27))
        assert feed.hot_rows >= 3
        assert feed.cold_rows >= 12
        assert feed.cold_rows + feed.hot_rows == 27


def test_C1_no_cache_at_all(path: str) -> None:
    publish_numbered(path, "t", 1)
    tail = Tail(Outbox.open(path, "t"), "local:", cache_bytes=0)
    tail.attach()
    tail.refresh()
    with Subscriber(tail, 3, 18, None) as feed:
        publish_numbered(path, "t", 5)
        assert offsets_of(feed) == list(range(3, 18))
        assert feed.hot_rows == 0


def test_C3_no_broker_for_the_whole_run(path: str, runtime_dir: str, workers: type[Worker]) -> None:
    publish_numbered(path, "t", 2, broker="none:")
    reader = workers("subscriber", path=path, topic="t", start="earliest", end=30, broker="none:")
    reader.hear("ready")
    publish_numbered(path, "t", 8, broker="none:")
    assert reader.hear("done") == 30
    assert [n for said in reader.said for n in said.get("n", [])] == list(range(30))
    assert reader.said[-2]["hot"] == 0
    assert os.listdir(runtime_dir) == []


def test_C3_a_broker_that_can_t_be_reached(path: str, runtime_dir: str) -> None:
    """Both sides fall back to the log."""
    os.mkdir(f"{runtime_dir}/pyspark-trigger", 0o755)
    publish_numbered(path, "t", 2)
    with trigger.subscribe(path, "t", start="earliest", end=12) as feed:
        publish_numbered(path, "t", 2)
        assert offsets_of(feed) == list(range(12))
        assert (feed.hot_rows, feed.tail.counts.attached) == (0, 0)


def test_C12_eviction_between_planning_and_reading(path: str) -> None:
    """Payloads that were planned hot are gone when their turn comes: the same bytes, from Delta."""
    publish_numbered(path, "t", 1)
    with subscribed(path, 3) as feed:
        publish_numbered(path, "t", 6)
        wait_for_payloads(feed, trigger.OffsetRange(3, 21))
        batches = [next(feed)]
        assert feed.hot_rows == 3
        feed.tail.forget(10_000)
        batches += list(feed)
        assert (feed.hot_rows, feed.cold_rows) == (3, 15)
    assert table_of(batches).equals(table_of(trigger.Topic(path, "t").read(3, 21)))


def test_C12_files_vanish_between_planning_and_reading(path: str) -> None:
    topic = trigger.Topic(path, "t")
    publish_numbered(path, "t", 12, broker="none:")
    before = table_of(topic.read())
    with trigger.subscribe(path, "t", start="earliest", broker="none:", timeout=0) as feed:
        batches = [next(feed)]
        assert topic.compact() == 12
        assert len(topic.vacuum(retention_hours=0)) == 12
        batches += list(feed)
    assert table_of(batches).equals(before)


@pytest.mark.parametrize("rows", [2_000, 200_000])
def test_E6_a_burst_in_one_commit(path: str, rows: int, workers: type[Worker]) -> None:
    """One wakeup for all its rows: with them while they are few, else a pointer and the rows from Delta."""
    publish_numbered(path, "t", 1)
    reader = workers("subscriber", path=path, topic="t", end=3 + rows)
    reader.hear("ready")
    trigger.publish(path, "t", numbered(3, rows))
    assert reader.hear("done") == 3 + rows
    assert [n for said in reader.said for n in said.get("n", [])] == list(range(3, 3 + rows))
    assert rows == 2_000 or reader.said[-2]["hot"] == 0


def test_T3_a_trimmed_start_says_requested_earliest_and_latest(path: str) -> None:
    publish_numbered(path, "t", 5)
    trigger.Topic(path, "t").trim(6)
    with pytest.raises(DataLoss, match=r"offset 2 .*earliest is 6, latest is 15") as caught:
        trigger.subscribe(path, "t", start=2)
    assert caught.value.facts == {"requested": 2, "earliest": 6, "latest": 15}
    with trigger.subscribe(path, "t", start="earliest", timeout=0) as feed:
        assert offsets_of(feed) == list(range(6, 15))


def test_T4_a_wakeup_that_was_never_sent(path: str) -> None:
    """A commit without a wakeup is found by the poll, and at once when a later one comes, because offsets are dense."""
    publish_numbered(path, "t", 1)
    with trigger.subscribe(path, "t", end=9) as feed:
        publish_numbered(path, "t", 1, broker="none:")
        assert offsets_of([next(feed)]) == [3, 4, 5]
        publish_numbered(path, "t", 1, broker="none:")
        assert offsets_of(feed) == [6, 7, 8]
    with trigger.subscribe(path, "t", end=15) as feed:
        publish_numbered(path, "t", 1, broker="none:")
        publish_numbered(path, "t", 1)
        assert offsets_of(feed) == list(range(9, 15))


def test_T8_replay_is_bounded_in_memory(path: str, workers: type[Worker]) -> None:
    """Four times the rows, about the same memory."""
    rows = 400_000
    block = pa.table({"n": pa.array(range(rows), pa.int64()), "a": pa.array(range(rows), pa.float64()), "b": ["x" * 50] * rows})
    for _ in range(4):
        trigger.publish(path, "t", block, broker="none:")
    peaks = []
    for wanted in (rows, 4 * rows):
        reader = workers("peak", path=path, topic="t", rows=wanted)
        peaks.append(reader.hear("peak"))
        assert reader.said[-1]["rows"] == wanted
    assert peaks[1] < 1.5 * peaks[0]
    assert peaks[1] < block.nbytes


async def _take(path: str, count: int, seen: list[int], **options: object) -> None:
    async for batch in trigger.asubscribe(path, "t", **options):  # type: ignore[arg-type]
        seen += offsets_of([batch])
        if len(seen) >= count:
            return


def test_asubscribe(path: str, runtime_dir: str) -> None:
    """History and tail, two at once in one event loop, which goes on while they wait."""
    publish_numbered(path, "t", 4)

    async def run() -> tuple[list[int], list[int]]:
        one: list[int] = []
        two: list[int] = []
        tasks = [
            asyncio.create_task(_take(path, 24, one, start="earliest", end=24)),
            asyncio.create_task(_take(path, 24, two, start=0, timeout=DEADLINE_S)),
        ]
        while len(one) < 12 or len(two) < 12:
            await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, publish_numbered, path, "t", 4)
        await asyncio.wait_for(asyncio.gather(*tasks), DEADLINE_S)
        return one, two

    assert asyncio.run(run()) == (list(range(24)), list(range(24)))
    wait_until(lambda: sockets_in(runtime_dir) == [], "sockets are removed")


def test_F4_asubscribe_is_cancelled_while_it_waits_for_ever(path: str, runtime_dir: str) -> None:
    publish_numbered(path, "t", 1)
    threads = set(threading.enumerate())

    async def run() -> float:
        seen: list[int] = []
        task = asyncio.create_task(_take(path, 100, seen, start="earliest"))
        while len(seen) < 3:
            await asyncio.sleep(0)
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - began

    assert asyncio.run(run()) < DEADLINE_S
    assert sockets_in(runtime_dir) == []
    wait_until(lambda: set(threading.enumerate()) <= threads, "its threads end")


def open_files() -> set[str]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
        except OSError:
            pass  # the descriptor of the listing itself
    return found


def test_F4_close_leaves_no_thread_socket_or_file(path: str, runtime_dir: str) -> None:
    publish_numbered(path, "t", 2)
    threads, files = set(threading.enumerate()), open_files()
    for start in ("earliest", "latest"):
        feed = trigger.subscribe(path, "t", start=start)
        if start == "earliest":
            next(feed)
        assert len(sockets_in(runtime_dir)) == 1
        began = time.monotonic()
        feed.close()
        feed.close()
        took_s = time.monotonic() - began
        assert list(feed) == []
        assert took_s < CLOSE_S_MAX
        assert set(threading.enumerate()) <= threads
        assert open_files() <= files
        assert os.listdir(runtime_dir) == []


def test_F4_the_end_and_the_timeout_close_by_themselves(path: str, runtime_dir: str) -> None:
    publish_numbered(path, "t", 2)
    threads, files = set(threading.enumerate()), open_files()
    assert offsets_of(trigger.subscribe(path, "t", start=0, end=6)) == list(range(6))
    assert offsets_of(trigger.subscribe(path, "t", start=0, timeout=0)) == list(range(6))
    with pytest.raises(trigger.TriggerError):
        trigger.subscribe(path, "t", start=7)
    assert set(threading.enumerate()) <= threads
    assert open_files() <= files
    assert os.listdir(runtime_dir) == []


def test_F4_close_from_another_thread_ends_a_wait(path: str, runtime_dir: str) -> None:
    publish_numbered(path, "t", 1)
    feed = trigger.subscribe(path, "t")
    ended = threading.Event()

    def wait() -> None:
        assert list(feed) == []
        ended.set()

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: feed.tail.counts.polls > 0, "it is waiting")
    feed.close()
    assert ended.wait(DEADLINE_S)
    thread.join(DEADLINE_S)
    assert os.listdir(runtime_dir) == []


def test_end_may_lie_beyond_the_head(path: str) -> None:
    publish_numbered(path, "t", 1)
    with trigger.subscribe(path, "t", start="earliest", end=4) as feed:
        publish_numbered(path, "t", 1)
        assert offsets_of(feed) == [0, 1, 2, 3]
        assert feed.position == 4


def test_a_naive_time_is_local(path: str) -> None:
    publish_numbered(path, "t", 1)
    with trigger.subscribe(path, "t", start=datetime(2000, 1, 1), timeout=0) as feed:  # noqa: DTZ001
        assert feed.position == 0
