"""Appending: one order over all writers, each batch once whatever the store says about its put, values kept exactly."""

from __future__ import annotations

import json
import math
import time
from datetime import date, datetime, timezone
from decimal import Decimal

import pyarrow as pa
import pytest

from offsets import OffsetRange
from tests.conftest import Place
from tests.log.interposed import interposed, reply_lost
from tests.log.orders import SCHEMA, append, assert_sound, batch, created, filled, ids, listing, reopened, table
from trigger_core.errors import (
    CheckpointRewound,
    ClockAhead,
    CommitStateUnknown,
    SchemaMismatch,
    StoreUnavailable,
    UnsupportedType,
)
from trigger_outbox import Batch, Outbox, Rows, encode, put
from trigger_outbox.append import CLOCK_SLACK_US, Appender, next_produced_at_us
from trigger_outbox.commit import Record, append_commit, key_of, parse_commit
from trigger_outbox.encode import decode_payload, digest, encode_all
from trigger_outbox.storage import KeyExists

HOUR_US = 3_600_000_000


def test_A1_a_hundred_batches_are_contiguous_from_0(place: Place) -> None:
    outbox = created(place)
    at = 0
    for number in range(100):
        count = 1 + number % 3
        done = append(outbox, *range(at, at + count))
        assert (done.range, done.version) == (OffsetRange(at, at + count), number + 1)
        at += count
    assert ids(reopened(place)) == list(range(at))
    assert_sound(outbox, rows=at)


def test_T5_T15_two_writers_share_one_order(place: Place) -> None:
    """Each finds the other's commits in its way, folds them and stamps anew; neither is stuck."""
    one, other = created(place), reopened(place)
    places = [append(writer, number).range for number, writer in enumerate([one, other, other, one, other, one])]
    assert places == [OffsetRange(number, number + 1) for number in range(6)]
    assert ids(one) == ids(other) == list(range(6))


def test_T5_a_lost_race_is_stamped_anew(place: Place) -> None:
    outbox = created(place)
    late, store = interposed(outbox)

    def overtaken(key: str, data: bytes) -> None:
        if len(store.created) == 1:
            append(outbox, 7)
        store.real.create(key, data)

    store.on_create = overtaken
    done = late.append(batch(table(8, 9)))
    assert (done.range, done.version, done.attempts) == (OffsetRange(1, 3), 2, 2)
    assert store.created == [key_of(1), key_of(2)]
    assert ids(outbox) == [7, 8, 9]
    assert_sound(outbox, rows=3)


def test_a_compaction_in_the_way_does_not_move_the_rows(place: Place) -> None:
    outbox = filled(place, 4)
    late, store = interposed(outbox)
    puts: list[str] = []

    def compacted(key: str, data: bytes) -> None:
        if len(store.created) == 1:
            assert outbox.compact(files_min=2) == 4
        store.real.create(key, data)

    def counted(key: str, data: bytes) -> None:
        puts.append(key)
        store.real.put(key, data)

    store.on_create, store.on_put = compacted, counted
    assert late.append(batch(table(4))).range == OffsetRange(4, 5)
    assert len(puts) == 1, "the rows keep their offsets, so their file is not encoded again"
    assert ids(outbox) == [0, 1, 2, 3, 4]
    assert_sound(outbox, rows=5)


@pytest.mark.parametrize("txn", [None, ("query", 0)])
def test_A8_T6_an_empty_batch_writes_nothing(place: Place, txn: tuple[str, int] | None) -> None:
    outbox = filled(place, 2)
    before = listing(place)
    done = outbox.append(batch(table(), txn=txn))
    assert done.range == OffsetRange(2, 2)
    assert not outbox.append(Batch(Rows(lambda: iter([table(), table()]), 0), SCHEMA)).range
    assert listing(place) == before
    assert append(outbox, 2).range == OffsetRange(2, 3)


def test_A12_many_chunks_are_one_commit_in_order_over_many_files(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "CHUNK_BYTES_MAX", 400)
    outbox = created(place)
    chunks = [table(*range(start, start + 7)) for start in range(0, 70, 7)]
    done = outbox.append(Batch(Rows(lambda: iter(chunks), 70), SCHEMA), upkeep=False)
    assert (done.version, done.range) == (1, OffsetRange(0, 70))
    assert len(outbox.state.files) > 3
    assert ids(reopened(place)) == list(range(70))
    assert ids(outbox, OffsetRange(13, 29)) == list(range(13, 29))
    assert_sound(outbox, rows=70)


def test_a_payload_is_the_batch_and_its_digest_is_in_the_commit(place: Place) -> None:
    outbox = created(place)
    done = append(outbox, 5, 6)
    assert done.payload is not None
    body = outbox.follower.store.get(key_of(1))
    assert body is not None
    record = parse_commit(1, body).record
    assert record is not None and record.payload_sha256 == digest(done.payload)
    hot = decode_payload(done.payload, 0, 2, outbox.state.produced_at_us, outbox.state.metadata.schema)
    cold = pa.Table.from_batches(outbox.read(OffsetRange(0, 2)))
    assert hot.equals(cold)
    assert append(outbox, 7, payload_bytes_max=0).payload is None


# ── A13: the outcome of the put is not known ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put, "PUT_BACKOFF_S", 0.001)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("txn", [None, ("query", 3)])
@pytest.mark.parametrize("error", [reply_lost(), KeyExists("resent by the client")])
def test_A13_the_reply_to_the_put_is_lost(place: Place, txn: tuple[str, int] | None, error: Exception) -> None:
    outbox = filled(place, 1)
    writer, store = interposed(outbox)

    def lands_unseen(key: str, data: bytes) -> None:
        store.real.create(key, data)
        raise error

    store.on_create = lands_unseen
    done = writer.append(batch(table(1, 2), txn=txn))
    assert (done.range, done.version, done.repeated) == (OffsetRange(1, 3), 2, False)
    assert len(store.created) == 1
    assert ids(reopened(place)) == [0, 1, 2]
    assert_sound(outbox, rows=3)


@pytest.mark.usefixtures("impatient")
def test_A13_the_put_fails_and_is_put_again(place: Place) -> None:
    outbox = created(place)
    writer, store = interposed(outbox)

    def fails_once(key: str, data: bytes) -> None:
        if len(store.created) == 1:
            raise reply_lost()
        store.real.create(key, data)

    store.on_create = fails_once
    assert writer.append(batch(table(1))).range == OffsetRange(0, 1)
    assert ids(outbox) == [1]


@pytest.mark.usefixtures("impatient")
def test_A13_the_first_put_lands_after_the_look_and_before_the_retry(place: Place) -> None:
    outbox = created(place)
    writer, store = interposed(outbox)

    def lands_late(key: str, data: bytes) -> None:
        if len(store.created) == 1:
            raise reply_lost()
        store.real.create(key, data)  # the first one, at last
        store.real.create(key, data)  # and the retry, which finds it there

    store.on_create = lands_late
    assert writer.append(batch(table(1))).range == OffsetRange(0, 1)
    assert ids(outbox) == [1]
    assert_sound(outbox, rows=1)


@pytest.mark.usefixtures("impatient")
def test_A13_another_writer_takes_the_version_of_a_failed_put(place: Place) -> None:
    outbox = created(place)
    writer, store = interposed(outbox)

    def overtaken(key: str, data: bytes) -> None:
        if len(store.created) == 1:
            append(outbox, 7)
            raise reply_lost()
        store.real.create(key, data)

    store.on_create = overtaken
    assert writer.append(batch(table(8))).range == OffsetRange(1, 2)
    assert ids(outbox) == [7, 8]


def never_answers(writer: Appender, outbox: Outbox) -> tuple[str, bytes]:
    """Lets the append of `outbox` through `writer` end without an answer, and returns the put that is still on its way."""
    store = writer._outbox  # the test's own double
    held: list[tuple[str, bytes]] = []

    def vanishes(key: str, data: bytes) -> None:
        held.append((key, data))
        raise reply_lost()

    store.on_create = vanishes  # type: ignore[attr-defined]
    with pytest.raises(CommitStateUnknown, match="did not say whether commit 2 landed") as caught:
        writer.append(batch(table(1, 2), txn=("query", 4)))
    assert "same txnAppId and txnVersion" in caught.value.cure
    assert len(held) == put.PUT_TRIES_MAX
    return held[0]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("landing", ["before the retry", "during the retry", "after the retry", "never"])
def test_A13_an_unknown_outcome_is_resolved_by_the_txn(place: Place, landing: str) -> None:
    """The batch is run again by a new process; the first put lands before, in the middle of, after the retry's, or never."""
    outbox = filled(place, 1)
    writer, _ = interposed(outbox)
    key, data = never_answers(writer, outbox)
    retry, store = interposed(outbox)
    if landing == "before the retry":
        store.real.create(key, data)

    def meanwhile(retry_key: str, retry_data: bytes) -> None:
        if landing == "during the retry" and len(store.created) == 1:
            store.real.create(key, data)
        store.real.create(retry_key, retry_data)

    store.on_create = meanwhile
    done = retry.append(batch(table(1, 2), txn=("query", 4)))
    assert done.repeated == (landing in ("before the retry", "during the retry"))
    if landing == "after the retry":
        with pytest.raises(KeyExists):
            store.real.create(key, data)
    assert ids(reopened(place)) == [0, 1, 2]
    assert retry.append(batch(table(1, 2), txn=("query", 4))).repeated
    assert_sound(outbox, rows=3)


def test_a_put_that_surely_failed_is_an_error_at_once(place: Place) -> None:
    outbox = created(place)
    writer, store = interposed(outbox)

    def refused(key: str, data: bytes) -> None:
        raise StoreUnavailable("no space left", "make room", landed=False)

    store.on_create = refused
    with pytest.raises(StoreUnavailable, match="no space left"):
        writer.append(batch(table(1)))
    assert len(store.created) == 1
    assert append(outbox, 1).range == OffsetRange(0, 1)


# ── A14, A17: once per (application, version) ────────────────────────────────────────────────────────────────────────────────


def test_A14_the_same_pair_again_writes_nothing(place: Place) -> None:
    outbox = created(place)
    assert not append(outbox, 1, txn=("job", 5)).repeated
    before = listing(place)
    for writer in (outbox, reopened(place)):
        again = append(writer, 1, txn=("job", 5))
        assert (again.repeated, again.range, again.payload) == (True, None, None)
        assert append(writer, 1, txn=("job", 2)).repeated, "as in Delta, an older one of a batch job is skipped"
    assert listing(place) == before
    assert not append(outbox, 2, txn=("other", 5)).repeated
    assert not append(outbox, 3, txn=("job", 6)).repeated
    assert ids(outbox) == [1, 2, 3]


def test_A14_a_pair_is_remembered_through_checkpoints(place: Place) -> None:
    outbox = created(place)
    append(outbox, 0, txn=("old \u2028 query", 9))
    append(outbox, 1)
    assert outbox.checkpoint()
    append(outbox, 2)
    for key in [key_of(0), key_of(1)]:  # as after a cleanup: only the checkpoint knows
        outbox.follower.store.delete([key])
    assert append(reopened(place), 0, txn=("old \u2028 query", 9)).repeated


def test_A17_an_older_batch_of_a_query_is_a_rewound_checkpoint(place: Place) -> None:
    outbox = created(place)
    append(outbox, 1, txn=("query", 7), strict=True)
    before = listing(place)
    assert append(outbox, 1, txn=("query", 7), strict=True).repeated, "the last one again is a re-run"
    with pytest.raises(CheckpointRewound, match=r"batch 6 of query query comes after its batch 7") as caught:
        append(reopened(place), 0, txn=("query", 6), strict=True)
    assert caught.value.facts == {"batch": 6, "last": 7}
    assert listing(place) == before


# ── A15: values ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

MOMENT = datetime(2026, 11, 18, 11, 6, 15, 123456, tzinfo=timezone.utc)
EVERY_TYPE = pa.table(
    {
        "boolean": pa.array([True, False, None]),
        "byte": pa.array([-128, 127, None], pa.int8()),
        "short": pa.array([-(2**15), 2**15 - 1, None], pa.int16()),
        "integer": pa.array([-(2**31), 2**31 - 1, None], pa.int32()),
        "long": pa.array([-(2**63), 2**63 - 1, None], pa.int64()),
        "float": pa.array([math.nan, -0.0, None], pa.float32()),
        "double": pa.array([math.inf, -math.inf, None], pa.float64()),
        "decimal_small": pa.array([Decimal("-1.50"), Decimal("999.99"), None], pa.decimal128(5, 2)),
        "decimal_large": pa.array([Decimal("9" * 38), Decimal("-" + "9" * 38), None], pa.decimal128(38, 0)),
        "string": pa.array(["", "ü\u2028\n\x00", None]),
        "binary": pa.array([b"", b"\x00\xff", None]),
        "date": pa.array([date(1900, 1, 1), date(9999, 12, 31), None]),
        "timestamp": pa.array([datetime(1900, 1, 1, tzinfo=timezone.utc), MOMENT, None], pa.timestamp("us", "UTC")),
        "timestamp_ntz": pa.array([datetime(1900, 1, 1), MOMENT.replace(tzinfo=None), None], pa.timestamp("us")),
        "array": pa.array([[], [1, None], None], pa.list_(pa.field("element", pa.int32()))),
        "map": pa.array([[], [("a", None), ("b", 1)], None], pa.map_(pa.string(), pa.int64())),
        "struct": pa.array(
            [{"a": None, "b": "x"}, {"a": 1, "b": None}, None], pa.struct([("a", pa.int32()), ("b", pa.string())])
        ),
        "deep": pa.array(
            [[{"m": [("k", [Decimal("1.5")])]}], [None, {"m": None}], None],
            pa.list_(
                pa.field("element", pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.field("element", pa.decimal128(10, 1)))))]))
            ),
        ),
    }
)


def test_A15_every_type_comes_back_value_for_value(place: Place) -> None:
    outbox = created(place, schema=EVERY_TYPE.schema)
    done = outbox.append(batch(EVERY_TYPE))
    outbox.append(batch(EVERY_TYPE.slice(1, 1)), upkeep=False)
    state = reopened(place).state
    assert state.protocol.reader_features == {"timestampNtz"}
    for reader in (outbox, reopened(place)):
        cold = pa.Table.from_batches(reader.read(OffsetRange(0, 3)))
        kept = cold.select(EVERY_TYPE.schema.names)
        assert kept.schema == EVERY_TYPE.schema
        assert repr(kept.to_pylist()) == repr(EVERY_TYPE.to_pylist()), "repr: NaN is not equal to itself, and -0.0 is to 0.0"
        assert done.payload is not None
        hot = decode_payload(done.payload, 0, 3, cold.column("_produced_at")[0].value, state.metadata.schema)
        assert repr(hot.to_pylist()) == repr(cold.to_pylist())
    assert outbox.compact(files_min=2) == 2
    merged = pa.Table.from_batches(outbox.read(OffsetRange(0, 4))).select(EVERY_TYPE.schema.names)
    assert repr(merged.to_pylist()) == repr([*EVERY_TYPE.to_pylist(), EVERY_TYPE.to_pylist()[1]])
    assert_sound(outbox, rows=4)


# ── schema changes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_new_column_is_added_only_when_asked_for(place: Place) -> None:
    outbox = filled(place, 2)
    wider = table(2).append_column("at", pa.array([MOMENT.replace(tzinfo=None)], pa.timestamp("us")))
    with pytest.raises(SchemaMismatch, match=r"'at' is not in the topic.*mergeSchema"):
        outbox.append(batch(wider))
    assert outbox.append(batch(wider, merge_schema=True), upkeep=False).range == OffsetRange(2, 3)
    assert outbox.state.metadata.schema.user.names == ["id", "name", "at"]
    assert append(outbox, 3).range == OffsetRange(3, 4), "rows of the old form still fit"
    for reader in (outbox, reopened(place)):
        read = pa.Table.from_batches(reader.read(OffsetRange(0, 4)))
        assert [value is not None for value in read.column("at").to_pylist()] == [False, False, True, False]
        assert reader.state.protocol.reader_features == {"timestampNtz"}
        assert reader.state.guarded
    assert outbox.compact(files_min=2) == 4
    assert ids(outbox) == [0, 1, 2, 3]
    assert_sound(outbox, rows=4)


def test_losing_to_a_schema_change_merges_again(place: Place) -> None:
    outbox = created(place)
    late, store = interposed(outbox)

    def overtaken(key: str, data: bytes) -> None:
        if len(store.created) == 1:
            outbox.append(batch(table(1).append_column("a", pa.array([1])), merge_schema=True))
        store.real.create(key, data)

    store.on_create = overtaken
    late.append(batch(table(2).append_column("b", pa.array([2])), merge_schema=True))
    read = pa.Table.from_batches(reopened(place).read(OffsetRange(0, 2)))
    assert read.select(["id", "a", "b"]).to_pylist() == [{"id": 1, "a": 1, "b": None}, {"id": 2, "a": None, "b": 2}]


def test_a_merge_that_cannot_be_is_refused_whole(place: Place) -> None:
    outbox = filled(place, 1)
    before = listing(place)
    with pytest.raises(SchemaMismatch, match="'id'"):
        outbox.append(batch(pa.table({"id": ["x"], "new": [1]}), merge_schema=True))
    with pytest.raises(SchemaMismatch, match="the same to Delta"):
        outbox.append(batch(table(1).append_column("NAME", pa.array(["x"])), merge_schema=True))
    with pytest.raises(UnsupportedType, match="'wait'"):
        outbox.append(batch(table(1).append_column("wait", pa.array([1], pa.duration("s"))), merge_schema=True))
    assert listing(place) == before


# ── A24: clocks ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def append_from_a_host_ahead(outbox: Outbox, ahead_us: int) -> int:
    """What a writer with another clock commits; returns the time it stamped."""
    state = outbox.state
    time_us = time.time_ns() // 1000 + ahead_us
    rows = table(state.end)
    files = encode_all(Rows.of(rows), state.end, time_us, state.metadata.schema, state.version, outbox.follower.store.put)
    record = Record(state.table_id, f"ahead{state.version}", "append", state.end, state.end + 1, time_us)
    body = append_commit(record, files, read_version=state.version, now_ms=time_us // 1000)
    outbox.follower.store.create(key_of(state.version + 1), body)
    outbox.refresh()
    return time_us


def test_A24_a_host_far_ahead_stops_the_others(place: Place) -> None:
    outbox = filled(place, 1)
    append_from_a_host_ahead(outbox, HOUR_US)
    before = listing(place)
    with pytest.raises(ClockAhead, match=r"stamped 3[56]\d\d s ahead.*NTP"):
        append(reopened(place), 9)
    assert listing(place) == before


def test_A24_times_never_go_back(place: Place) -> None:
    outbox = filled(place, 1)
    ahead_us = append_from_a_host_ahead(outbox, HOUR_US // 30)
    append(outbox, 2)
    assert outbox.state.produced_at_us == ahead_us, "stamped with the last time, not with an earlier one"
    times = pa.Table.from_batches(outbox.read(OffsetRange(0, 3))).column("_produced_at").cast(pa.int64()).to_pylist()
    assert times == sorted(times)
    assert_sound(outbox, rows=3)


def test_A24_the_slack_is_five_minutes(place: Place) -> None:
    state = filled(place, 1).state
    last_us = state.produced_at_us
    assert next_produced_at_us(state, last_us + 10) == last_us + 10
    assert next_produced_at_us(state, last_us - CLOCK_SLACK_US) == last_us
    with pytest.raises(ClockAhead):
        next_produced_at_us(state, last_us - CLOCK_SLACK_US - 1)


def test_history_is_whole_for_engines(place: Place) -> None:
    """Each commit says what it read and how much it wrote."""
    outbox = filled(place, 2, rows=3)
    body = outbox.follower.store.get(key_of(2))
    assert body is not None
    info = json.loads(body.split(b"\n")[0])["commitInfo"]
    assert info["readVersion"] == 1
    assert info["operationMetrics"]["numOutputRows"] == "3"
    assert int(info["operationMetrics"]["numOutputBytes"]) == outbox.state.files[1].size
