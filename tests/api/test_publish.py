"""`publish`: what it takes, what it returns, and that a broker's failure is never the batch's."""

from __future__ import annotations

import os

import pandas as pd
import pyarrow as pa
import pytest

import pyspark_trigger as trigger
from tests.api.rows import numbered, offsets_of, publish_numbered, wait_until
from tests.api.worker import Worker
from trigger_core.errors import InvalidOption, SchemaMismatch
from trigger_sink.producer import Target, shared_producer


class Stream:
    """Anything with Arrow's stream interface, as polars and duckdb have it."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


FORMS = {
    "table": numbered(0, 4),
    "chunked": pa.concat_tables([numbered(0, 1), numbered(1, 3)]),
    "batch": numbered(0, 4).to_batches()[0],
    "pandas": numbered(0, 4).to_pandas(),
    "filtered pandas": pd.concat([numbered(7, 2).to_pandas(), numbered(0, 4).to_pandas()]).query("n < 7"),
    "dicts": numbered(0, 4).to_pylist(),
    "tuple of dicts": tuple(numbered(0, 4).to_pylist()),
    "arrow stream": Stream(numbered(0, 4)),
}


@pytest.mark.parametrize("form", FORMS)
def test_input_forms(path: str, form: str) -> None:
    start, end = trigger.publish(path, "t", FORMS[form])
    assert (start, end) == (0, 4)
    rows = pa.Table.from_batches(trigger.Topic(path, "t").read())
    assert rows.column_names == ["_offset", "_produced_at", "n", "text"]
    assert rows.drop(["_produced_at"]).to_pylist() == [{"_offset": n, **row} for n, row in enumerate(numbered(0, 4).to_pylist())]


def test_dicts_with_different_keys_are_the_union(path: str) -> None:
    trigger.publish(path, "t", [{"a": 1}, {"b": "x"}, {}])
    rows = pa.Table.from_batches(trigger.Topic(path, "t").read()).select(["a", "b"]).to_pylist()
    assert rows == [{"a": 1, "b": None}, {"a": None, "b": "x"}, {"a": None, "b": None}]


EMPTIES = {"list": [], "table": numbered(0, 0), "pandas": numbered(0, 0).to_pandas(), "no columns": pa.table({})}


@pytest.mark.parametrize("form", EMPTIES)
def test_A8_T6_an_empty_batch_writes_nothing_and_uses_no_offset(path: str, form: str) -> None:
    topic = trigger.Topic(path, "t")
    trigger.publish(path, "t", numbered(0, 3))
    before = topic.describe()
    with trigger.subscribe(path, "t", timeout=0) as feed:
        start, end = trigger.publish(path, "t", EMPTIES[form])
        assert (start, end) == (3, 3)
        assert list(feed) == []
    assert topic.describe() == before
    assert trigger.publish(path, "t", numbered(3, 1)) == trigger.OffsetRange(3, 4)


def test_A8_an_empty_batch_with_columns_makes_the_topic(path: str) -> None:
    assert trigger.publish(path, "t", numbered(0, 0)) == trigger.OffsetRange(0, 0)
    assert trigger.Topic(path, "t").describe().rows == 0
    with pytest.raises(SchemaMismatch, match="column"):
        trigger.publish(path, "u", [])
    assert not os.path.exists(f"{path}/u")


def test_A14_the_same_pair_again_writes_nothing(path: str) -> None:
    topic = trigger.Topic(path, "t")
    assert trigger.publish(path, "t", numbered(0, 3), app_id="job", version=7) == trigger.OffsetRange(0, 3)
    before = topic.describe()
    for version in (7, 6, 0):
        assert trigger.publish(path, "t", numbered(0, 3), app_id="job", version=version) == trigger.OffsetRange(3, 3)
    assert topic.describe() == before
    assert trigger.publish(path, "t", numbered(3, 1), app_id="job", version=8) == trigger.OffsetRange(3, 4)
    assert trigger.publish(path, "t", numbered(4, 1), app_id="other", version=7) == trigger.OffsetRange(4, 5)
    assert offsets_of(topic.read()) == list(range(5))


@pytest.mark.parametrize("half", [{"app_id": "job"}, {"version": 3}])
def test_A14_half_a_pair_is_refused(path: str, half: dict[str, object]) -> None:
    with pytest.raises(InvalidOption, match="txnAppId.*txnVersion|txnVersion.*txnAppId"):
        trigger.publish(path, "t", numbered(0, 1), **half)
    assert not os.path.exists(path)


def test_A4_fan_out_fails_at_batch_7_of_64(path: str, runtime_dir: str, workers: type[Worker]) -> None:
    """All 64 are written, replayable, and seen by an attached reader; later wakeups are sent as before (also T4)."""
    topic = trigger.Topic(path, "t").create(numbered(0, 0).schema)
    reader = workers("subscriber", path=path, topic="t", start="earliest", end=128)
    reader.hear("ready")
    counts = shared_producer(Target(path, "t")).waker.counts
    meeting_place = f"{runtime_dir}/pyspark-trigger"
    at = 0
    for batch in range(64):
        if batch == 7:
            os.chmod(meeting_place, 0o755)  # open to others: the driver refuses to send rows there
        assert trigger.publish(path, "t", numbered(at, 2)) == trigger.OffsetRange(at, at + 2)
        if batch == 7:
            os.chmod(meeting_place, 0o700)
        at += 2
    assert (counts.sent >= 7, counts.failed) == (True, 1)
    assert offsets_of(topic.read()) == list(range(128))
    assert reader.hear("done") == 128
    assert [n for said in reader.said for n in said.get("n", [])] == list(range(128))

    sent = counts.sent

    def sends_again() -> bool:
        publish_numbered(path, "t", 1)
        return counts.sent > sent

    wait_until(sends_again, "wakeups are sent again")
    assert topic.verify().ok


def test_T5_a_second_writer_process_is_not_stuck(path: str, workers: type[Worker]) -> None:
    """Two processes take turns on one topic, each with a state that the other has made stale."""
    one, two = (workers("publisher", path=path, topic="t", name=name) for name in ("one", "two"))
    for worker in (one, two):
        worker.hear("ready")
    at = 0
    for _ in range(5):
        for worker in (one, two):
            worker.tell(rows=2)
            assert worker.hear("range") == [at, at + 2]
            at += 2
    for worker in (one, two):
        worker.tell(rows=3, batches=20)
    for worker in (one, two):
        worker.hear("done")  # of the last single batch's order
    wait_until(lambda: trigger.Topic(path, "t").head() == at + 2 * 20 * 3, "all 40 batches are in")
    rows = pa.Table.from_batches(trigger.Topic(path, "t").read())
    assert rows.column("_offset").to_pylist() == list(range(at + 120))
    for name in ("one", "two"):
        own = [row["n"] for row in rows.to_pylist() if row["who"] == name]
        assert own == list(range(70))
    assert trigger.Topic(path, "t").verify().ok


def test_merge_schema_is_an_option_of_publish(path: str) -> None:
    trigger.publish(path, "t", [{"a": 1}])
    with pytest.raises(SchemaMismatch, match="'b'.*mergeSchema"):
        trigger.publish(path, "t", [{"a": 2, "b": "x"}])
    assert trigger.publish(path, "t", [{"a": 2, "b": "x"}], mergeSchema=True) == trigger.OffsetRange(1, 2)
    rows = pa.Table.from_batches(trigger.Topic(path, "t").read()).select(["a", "b"]).to_pylist()
    assert rows == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]
