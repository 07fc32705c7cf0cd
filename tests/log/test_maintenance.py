"""Keeping a log flat, beside readers and writers: merges, checkpoints, log cleanup, vacuum, staging."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from offsets import OffsetRange
from tests.conftest import Place
from tests.log.interposed import interposed
from tests.log.orders import SCHEMA, TOPIC, append, assert_sound, batch, created, filled, ids, listing, reopened, table
from trigger_core.errors import OutboxDamaged, StoreUnavailable
from trigger_outbox import Outbox, follow, maintain, put
from trigger_outbox.commit import key_of
from trigger_outbox.follow import Follower
from trigger_outbox.staging import STAGING, SWEEP_AGE_MS, read_staged, stage, sweep_old, sweep_owner
from trigger_outbox.storage import Store
from trigger_outbox.tiers import TIER_FILES

AGE_S = 3_600


def versions(outbox: Outbox) -> list[int]:
    """Of the commit files that stand."""
    found = [entry.key.rpartition("/")[2] for entry in outbox.follower.store.list("_delta_log")]
    return sorted(int(name.removesuffix(".json")) for name in found if name.endswith(".json"))


def age(folder: Path) -> None:
    """Makes every file look as if it had been written an hour ago."""
    for file in folder.rglob("*"):
        if file.is_file():
            then_s = file.stat().st_mtime - AGE_S
            os.utime(file, (then_s, then_s))


def parquet(outbox: Outbox) -> set[str]:
    return {
        entry.key for entry in outbox.follower.store.list() if entry.key.endswith(".parquet") and "_delta_log" not in entry.key
    }


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The clock that followers look at, moved on."""
    real = follow.boot_time_s
    monkeypatch.setattr(follow, "boot_time_s", lambda: real() + seconds)


# ── compaction ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_C13_a_merge_keeps_rows_order_and_statistics(place: Place) -> None:
    outbox = filled(place, 10, rows=3)
    assert outbox.compact() == 0, "nothing is due below a tier"
    assert outbox.compact(files_min=2) == 10
    assert len(outbox.state.files) == 1
    assert reopened(place).state.files == outbox.state.files
    assert ids(outbox) == ids(reopened(place)) == list(range(30))
    assert_sound(outbox, rows=30)


def test_C13_two_compactions_of_the_same_files_are_one(place: Place) -> None:
    """Through delta-rs both would commit, and every row would be there twice."""
    outbox = filled(place, 6)
    slow, store = interposed(outbox)
    follower = slow._follower

    def overtaken(key: str, data: bytes) -> None:
        if len(store.created) == 1:
            assert outbox.compact(files_min=2) == 6
        store.real.create(key, data)

    store.on_create = overtaken
    assert maintain.compact(follower, files_min=2) == 0
    assert ids(reopened(place)) == list(range(6))
    assert_sound(outbox, rows=6)


@pytest.mark.parametrize("meanwhile", ["append", "trim"])
def test_C13_a_compaction_overtaken_by_others(place: Place, meanwhile: str) -> None:
    outbox = filled(place, 6)
    slow, store = interposed(outbox)

    def overtaken(key: str, data: bytes) -> None:
        if len(store.created) == 1:
            append(outbox, 6) if meanwhile == "append" else outbox.trim(2)
        store.real.create(key, data)

    store.on_create = overtaken
    merged = maintain.compact(slow._follower, rounds_max=1, files_min=2)
    assert merged == (6 if meanwhile == "append" else 0), "its inputs are checked again, and only then it is put"
    assert ids(reopened(place)) == (list(range(7)) if meanwhile == "append" else [2, 3, 4, 5])
    assert_sound(outbox)


def test_a_compaction_whose_reply_is_lost_is_one_compaction(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(put, "PUT_BACKOFF_S", 0.001)
    outbox = filled(place, 4)
    slow, store = interposed(outbox)

    def lands_unseen(key: str, data: bytes) -> None:
        store.real.create(key, data)
        raise StoreUnavailable("no reply", "")

    store.on_create = lands_unseen
    assert maintain.compact(slow._follower, files_min=2) == 4
    assert reopened(place).state.version == 5
    assert_sound(outbox, rows=4)


def test_appends_merge_as_they_go(tmp_path: Path) -> None:
    outbox = created(Place(str(tmp_path)))
    for number in range(2 * TIER_FILES + 3):
        outbox.append(batch(table(number)))
    assert len(outbox.state.files) < TIER_FILES
    assert ids(outbox) == list(range(2 * TIER_FILES + 3))
    assert_sound(outbox)
    assert (tmp_path / TOPIC / "outbox" / "_delta_log" / "_last_checkpoint").exists()


def test_upkeep_never_fails_an_append_that_has_landed(place: Place) -> None:
    outbox = filled(place, TIER_FILES - 1)
    outbox.follower.store.put(outbox.state.files[0].path, b"not Parquet")
    assert outbox.append(batch(table(99))).range == OffsetRange(TIER_FILES - 1, TIER_FILES)
    with pytest.raises(OutboxDamaged, match="can't be read"):
        outbox.compact()


# ── checkpoints and log cleanup ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_checkpoint_carries_all_that_a_state_needs(place: Place) -> None:
    outbox = filled(place, 3)
    append(outbox, 3, txn=("query", 8))
    outbox.trim(1)
    assert outbox.checkpoint()
    outbox.follower.store.delete([key_of(version) for version in range(5)])
    fresh = reopened(place)
    assert (fresh.state.end, fresh.state.earliest, fresh.state.produced_at_us) == (4, 1, outbox.state.produced_at_us)
    assert fresh.state.files == outbox.state.files
    assert fresh.follower.txn("query") == 8
    assert fresh.state.metadata.configuration == outbox.state.metadata.configuration
    assert append(fresh, 4).range == OffsetRange(4, 5)
    wider = batch(table(5).append_column("more", table(5).column("id")), merge_schema=True)
    assert fresh.append(wider).range == OffsetRange(5, 6)
    assert ids(reopened(place)) == [1, 2, 3, 4, 5]


def test_cleanup_keeps_two_hundred_versions_and_a_minute(tmp_path: Path) -> None:
    place = Place(str(tmp_path))
    outbox = filled(place, 20)
    assert outbox.checkpoint()
    for number in range(20, 240):
        append(outbox, number)
    assert outbox.clean_log() == 0, "young"
    age(tmp_path / TOPIC / "outbox" / "_delta_log")
    append(outbox, 240)
    assert outbox.clean_log() > 0
    assert versions(outbox) == list(range(20, 242)), "from the checkpoint on, without a hole"
    assert outbox.clean_log() == 0
    assert ids(reopened(place)) == list(range(241))
    assert_sound(reopened(place), rows=241)


def test_cleanup_without_an_old_checkpoint_removes_nothing(tmp_path: Path) -> None:
    outbox = filled(Place(str(tmp_path)), 210)
    assert outbox.checkpoint()
    age(tmp_path / TOPIC / "outbox" / "_delta_log")
    append(outbox, 210)
    assert outbox.clean_log() == 0, "its checkpoint is at the head: fewer than 200 versions would stand"


def cleaned(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Grows the log and removes all but its last commits, on any store."""
    monkeypatch.setattr(maintain, "LOG_VERSIONS_KEPT", 2)
    monkeypatch.setattr(maintain, "FENCE_S", -1.0)
    for _ in range(4):
        append(outbox, outbox.state.end)
    assert outbox.checkpoint()
    for _ in range(4):
        append(outbox, outbox.state.end)
    assert outbox.clean_log() > 0
    assert min(versions(outbox)) > 4


def test_B24_a_follower_that_slept_across_a_cleanup_opens_anew(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox, sleeper = filled(place, 2), reopened(place)
    cleaned(outbox, monkeypatch)
    assert sleeper.refresh() == [], "what comes next is not there: that looks like the head"
    assert sleeper.state.end == 2
    later(monkeypatch, follow.REOPEN_AFTER_S + 1)
    assert sleeper.refresh() == []
    assert (sleeper.state, sleeper.follower.reopens) == (reopened(place).state, 2)
    assert ids(sleeper) == list(range(10))


def test_B24_an_idle_follower_at_the_head_stays_there(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox, reader = filled(place, 2), reopened(place)
    cleaned(outbox, monkeypatch)
    reader = reopened(place)
    outbox.trim(10)
    outbox.vacuum(retention_hours=0)
    assert parquet(outbox) == set()
    for _ in range(3):
        later(monkeypatch, follow.REOPEN_AFTER_S + 1)
        reader.refresh()
        assert (reader.state.end, reader.state.earliest) == (10, 10)
    append(outbox, 10)
    assert ids(reader) == [10]


def test_A23_an_orphan_in_the_hole_of_a_cleaned_log_is_not_believed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer is stopped between its look and its put; meanwhile the log goes on and old names go."""
    outbox, sleeper = filled(place, 2), reopened(place)
    stalled, store = interposed(outbox)

    def held_up(key: str, data: bytes) -> None:
        if len(store.created) == 1:
            cleaned(outbox, monkeypatch)
        store.real.create(key, data)

    store.on_create = held_up
    done = stalled.append(batch(table(99)))
    assert (done.range, stalled.fenced) == (OffsetRange(10, 11), 1)
    later(monkeypatch, follow.REOPEN_AFTER_S + 1)
    assert ids(sleeper) == ids(reopened(place)) == [*range(10), 99]
    assert_sound(outbox, rows=11)


def test_A23_a_commit_that_landed_before_the_cleanup_is_not_written_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    outbox = filled(place, 2)
    for number, txn in enumerate([None, ("query", 0)]):
        stalled, store = interposed(outbox)

        def held_up(key: str, data: bytes, store: object = store) -> None:
            outbox.follower.store.create(key, data)
            outbox.refresh()
            cleaned(outbox, monkeypatch)

        store.on_create = held_up
        start = outbox.state.end
        done = stalled.append(batch(table(1_000 + number), txn=txn))
        assert done.range == OffsetRange(start, start + 1)
        assert len(store.created) == 1
        assert ids(reopened(place)).count(1_000 + number) == 1


def test_a_folder_that_is_opened_while_it_is_cleaned_is_tried_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "OPEN_BACKOFF_S", 0.001)
    outbox = filled(place, 3)
    store = interposed(outbox)[1]
    misses = [True, True, False]

    def sometimes(key: str) -> bytes | None:
        return None if misses and misses.pop(0) else store.real.get(key)

    store.on_get = sometimes
    assert Follower(store, TOPIC).state.end == 3


# ── vacuum ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_vacuum_takes_what_no_version_within_the_retention_needs(place: Place) -> None:
    outbox = filled(place, 4)
    old = parquet(outbox)
    outbox.compact(files_min=2)
    outbox.follower.store.put("d0/0/left-by-a-lost-race.parquet", b"x")
    everything = parquet(outbox)
    assert outbox.vacuum() == [], "the retention is an hour"
    assert outbox.vacuum(retention_hours=0.5) == [], "never less than was asked for"
    assert parquet(outbox) == everything
    doomed = outbox.vacuum(retention_hours=0, dry_run=True)
    assert set(doomed) == {*old, "d0/0/left-by-a-lost-race.parquet"}
    assert parquet(outbox) == everything
    assert outbox.vacuum(retention_hours=0) == doomed
    assert parquet(outbox) == {file.path for file in outbox.state.files}
    assert ids(reopened(place)) == [0, 1, 2, 3]
    assert_sound(outbox, rows=4)


def test_vacuum_touches_nothing_but_data_files(place: Place) -> None:
    outbox = filled(place, 2)
    outbox.follower.store.put("notes.txt", b"a user's")
    outbox.home.put("consumers/a.json", b"{}")
    before = listing(place)
    outbox.vacuum(retention_hours=0)
    assert listing(place) == before


# ── A20: staging ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def staged(home: Store) -> list[str]:
    return sorted(entry.key.split("/", 1)[1].rpartition("/")[0] for entry in home.list(STAGING))


def put_rows(home: Store, owner: str, number: int, task: int = 0) -> str:
    return stage(home, owner, number, task, 0, table(1, 2, 3).to_batches(max_chunksize=2), SCHEMA)


def test_staged_rows_come_back_and_every_attempt_has_its_own(place: Place) -> None:
    home = created(place).home
    keys = [put_rows(home, "query", 4, task=7) for _ in range(2)]
    assert len(set(keys)) == 2
    assert all(key.startswith("staging/query/4/7-0-") and key.endswith(".arrow") for key in keys)
    assert [rows.num_rows for rows in read_staged(home, keys[0])] == [2, 1]
    home.delete([keys[0]])
    with pytest.raises(OutboxDamaged, match="gone before their commit.*run the batch again"):
        list(read_staged(home, keys[0]))


def test_A20_C9_staging_is_swept_up_to_the_batch_and_of_its_query_alone(place: Place) -> None:
    home = created(place).home
    for owner, number in [("q1", 2), ("q1", 10), ("q1", 11), ("q10", 1), ("q/1", 1)]:
        put_rows(home, owner, number)
    assert sweep_owner(home, "q1", 10) == 2, "10 is after 2 though it sorts before"
    assert staged(home) == ["q1/11", "q10/1", "q_1/1"]
    assert sweep_owner(home, "q1", 10) == 0
    assert sweep_owner(home, "never", 99) == 0


def test_A20_staging_of_killed_queries_is_swept_by_age(place: Place) -> None:
    outbox = created(place)
    put_rows(outbox.home, "dead", 1)
    put_rows(outbox.home, "dead", 2)
    now_ms = time.time_ns() // 1_000_000
    assert sweep_old(outbox.home) == 0
    outbox.vacuum(retention_hours=0)
    assert staged(outbox.home) == ["dead/1", "dead/2"], "a query may still be about to commit them"
    assert sweep_old(outbox.home, now_ms=now_ms + SWEEP_AGE_MS + 60_000) == 2
    assert staged(outbox.home) == []
    if not place.storage_options:
        assert not (Path(place.path) / TOPIC / STAGING).exists(), "nor an empty folder"


def test_A20_vacuum_sweeps_old_staging(tmp_path: Path) -> None:
    outbox = created(Place(str(tmp_path)))
    old, young = put_rows(outbox.home, "dead", 1), put_rows(outbox.home, "alive", 1)
    then_s = time.time() - SWEEP_AGE_MS / 1000 - 60
    os.utime(tmp_path / TOPIC / old, (then_s, then_s))
    outbox.vacuum()
    assert [entry.key for entry in outbox.home.list(STAGING)] == [young]
