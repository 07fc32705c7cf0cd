"""A topic's life: made in one put, listed, described, dropped whole, made anew as another table."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pyarrow as pa
import pytest

from offsets import OffsetRange
from tests.conftest import Place
from tests.log.interposed import Interposed, interposed, reply_lost
from tests.log.orders import SCHEMA, TOPIC, append, assert_sound, batch, created, filled, ids, listing, reopened, root, table
from trigger_core.errors import OutboxDamaged, SchemaConflict, StoreUnavailable, TopicNotFound, TopicRecreated
from trigger_outbox import Outbox, follow, lifecycle, put, topic_names
from trigger_outbox.commit import key_of
from trigger_outbox.follow import Follower
from trigger_outbox.outbox import drop_topic
from trigger_outbox.staging import stage


def names(place: Place) -> list[str]:
    return topic_names(place.path, place.storage_options)


def drop(place: Place, topic: str = TOPIC) -> bool:
    return drop_topic(place.path, topic, place.storage_options)


def test_F1_create_list_describe_drop_are_idempotent(place: Place) -> None:
    assert names(place) == []
    assert not drop(place)
    first = created(place)
    append(first, 1, 2)
    again = created(place)
    assert again.state.table_id == first.state.table_id
    assert again.state.end == 2
    created(place, "zebra")
    assert names(place) == [TOPIC, "zebra"]
    told = reopened(place).describe()
    assert (told.name, told.earliest, told.end, told.rows, told.files, told.version) == (TOPIC, 0, 2, 2, 1, 1)
    assert (told.id, told.guarded, told.bytes) == (first.state.table_id, True, first.state.files[0].size)
    assert told.schema.names == ["_offset", "_produced_at", "id", "name"]
    assert drop(place)
    assert not drop(place)
    assert names(place) == ["zebra"]
    assert all(key.startswith("zebra/") for key in listing(place)), "nothing of it is left"
    with pytest.raises(TopicNotFound, match=f"no topic '{TOPIC}'"):
        reopened(place)


def test_F1_the_same_columns_in_another_spelling_are_the_same_topic(place: Place) -> None:
    first = created(place, schema=pa.schema([("a", pa.string()), ("b", pa.int16())]))
    again = created(place, schema=pa.schema([("a", pa.large_string()), ("b", pa.uint8())]))
    assert again.state.table_id == first.state.table_id
    with pytest.raises(SchemaConflict, match="a string, b int16, not a string"):
        created(place, schema=pa.schema([("a", pa.string())]))
    with pytest.raises(SchemaConflict):
        created(place, schema=pa.schema([pa.field("a", pa.string(), nullable=False), ("b", pa.int16())]))


def test_F1_a_drop_takes_staging_and_all_else_with_it(place: Place) -> None:
    outbox = filled(place, 3)
    assert outbox.checkpoint()
    stage(outbox.home, "query", 1, 0, 0, table(1).to_batches(), SCHEMA)
    outbox.home.put("consumers/a.json", b"{}")
    drop(place)
    assert listing(place) == {}
    if not place.storage_options:
        assert os.listdir(place.path) == [], "not even an empty folder"


def test_F2_a_create_that_fails_anywhere_leaves_nothing_usable_half_way(place: Place) -> None:
    real = root(place)
    for failing in range(3):  # the probe, its twin, the commit
        calls: list[str] = []

        def fails(key: str, data: bytes, failing: int = failing, calls: list[str] = calls) -> None:
            calls.append(key)
            if len(calls) == failing + 1:
                raise StoreUnavailable("the store is down", "wait", landed=False)
            real.create(key, data)

        with pytest.raises(StoreUnavailable):
            lifecycle.create(Interposed(real, on_create=fails), TOPIC, SCHEMA)
        assert names(place) == []
        with pytest.raises(TopicNotFound):
            reopened(place)
    assert append(created(place), 1).range == OffsetRange(0, 1)


def test_F2_two_creates_at_once_are_one_topic(place: Place) -> None:
    real = root(place)

    def overtaken(key: str, data: bytes) -> None:
        if key.endswith(".json") and not names(place):
            created(place)
        real.create(key, data)

    follower = lifecycle.create(Interposed(real, on_create=overtaken), TOPIC, SCHEMA)
    assert follower.state.table_id == reopened(place).state.table_id


def test_F2_a_create_whose_reply_is_lost_is_one_topic(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put, "PUT_BACKOFF_S", 0.001)
    real = root(place)

    def lands_unseen(key: str, data: bytes) -> None:
        real.create(key, data)
        if key.endswith(".json"):
            raise reply_lost()

    follower = lifecycle.create(Interposed(real, on_create=lands_unseen), TOPIC, SCHEMA)
    assert reopened(place).state.table_id == follower.state.table_id
    assert reopened(place).state.version == 0


# ── A21, B12: dropped and made anew ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("commits", [0, 2, 3, 4, 6], ids=lambda number: f"{number} commits in the new one")
def test_A21_a_late_writer_is_refused_and_leaves_no_trace(place: Place, commits: int) -> None:
    late = filled(place, 3)
    drop(place)
    fresh = filled(place, commits)
    before = {key: size for key, size in listing(place).items() if "_delta_log" in key}
    for action in (lambda: append(late, 9), lambda: late.trim(2), late.release):
        with pytest.raises((TopicRecreated, TopicNotFound), match="anew"):
            action()
    with contextlib.suppress(TopicRecreated):
        assert late.compact(files_min=2) == 0, "its inputs are gone"
    assert {key: size for key, size in listing(place).items() if "_delta_log" in key} == before
    assert append(fresh, commits).range == OffsetRange(commits, commits + 1)
    assert ids(reopened(place)) == list(range(commits + 1))
    assert_sound(reopened(place), rows=commits + 1)


@pytest.mark.parametrize("doing", ["append", "trim", "release"])
def test_A21_a_late_writer_of_a_topic_that_is_gone_is_refused(place: Place, doing: str) -> None:
    late = filled(place, 3)
    drop(place)
    with pytest.raises(TopicNotFound):
        {"append": lambda: append(late, 9), "trim": lambda: late.trim(2), "release": late.release}[doing]()
    assert not [key for key in listing(place) if "_delta_log" in key], "no commit of it may look like the rest of a log"
    assert append(created(place), 0).range == OffsetRange(0, 1)


def test_A21_a_drop_between_the_look_and_the_put(place: Place) -> None:
    outbox = filled(place, 3)
    late, store = interposed(outbox)

    def dropped(key: str, data: bytes) -> None:
        if len(store.created) == 1:
            drop(place)
            filled(place, 1)
        store.real.create(key, data)

    store.on_create = dropped
    with pytest.raises(TopicRecreated):
        late.append(batch(table(9)))
    assert ids(reopened(place)) == [0]
    assert_sound(reopened(place), rows=1)


def test_B12_a_reader_of_a_dropped_topic_is_told(place: Place) -> None:
    outbox, reader = filled(place, 3), reopened(place)
    drop(place)
    with pytest.raises(TopicNotFound):
        list(reader.read(OffsetRange(0, 3)))
    filled(place, 6)
    for _ in range(2):
        with pytest.raises(TopicRecreated, match="new checkpoint"):
            reader.refresh()
    with pytest.raises(TopicRecreated):
        Outbox.open(place.path, TOPIC, place.storage_options, table_id=outbox.state.table_id)


def test_a_drop_is_seen_by_whoever_follows_it(place: Place) -> None:
    """The commit that ends a topic is in its writers' way before a file is gone."""
    outbox, reader = filled(place, 2), reopened(place)
    lifecycle._end(outbox.follower.store, TOPIC)
    with pytest.raises(TopicNotFound, match="dropped"):
        reader.refresh()
    with pytest.raises(TopicNotFound, match="dropped"):
        append(outbox, 2)
    with pytest.raises(TopicNotFound, match=r"drop\(\) again"):
        created(place)
    with pytest.raises(TopicNotFound, match=r"drop\(\) again"):
        reopened(place)
    assert drop(place)
    assert created(place).state.end == 0


@pytest.mark.parametrize("removed", [1, 2])
def test_an_interrupted_drop_is_finished_by_the_next(place: Place, removed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "OPEN_BACKOFF_S", 0.001)
    outbox = filled(place, 2)
    lifecycle._end(outbox.follower.store, TOPIC)
    outbox.follower.store.delete([key_of(version) for version in range(removed)])
    with pytest.raises((OutboxDamaged, TopicNotFound), match=r"drop\(\) again"):
        created(place)
    assert names(place) == [TOPIC], "still there to be dropped"
    assert drop(place)
    assert names(place) == []
    assert created(place).state.end == 0


def test_only_folders_of_topics_are_listed(tmp_path: Path) -> None:
    place = Place(str(tmp_path))
    created(place)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes.txt").write_text("not a topic")
    assert names(place) == [TOPIC]
    with pytest.raises(TopicNotFound):
        reopened(place, "notes")
    assert Follower(root(place).child(TOPIC).child("outbox"), TOPIC).state.end == 0
