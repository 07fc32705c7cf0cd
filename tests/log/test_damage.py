"""Damage is noticed, with the numbers, and never answered with offset 0; the guard keeps other writers from doing it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from offsets import OffsetRange
from tests.conftest import Place
from tests.log.orders import TOPIC, append, assert_sound, created, filled, ids, listing, reopened, table
from trigger_core.errors import OutboxDamaged, TriggerError, UnsupportedTable
from trigger_outbox import Outbox, follow
from trigger_outbox.commit import key_of
from trigger_outbox.outbox import drop_topic

Edit = Callable[[dict[str, Any]], dict[str, Any] | None]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "OPEN_BACKOFF_S", 0.001)


def delta(outbox: Outbox) -> DeltaTable:
    return DeltaTable(outbox.follower.store.url, storage_options=dict(outbox.follower.store.options) or None)


def edit_commit(outbox: Outbox, version: int, edit: Edit) -> None:
    """Changes a commit file in place, as a bad restore or a bad disk would."""
    store = outbox.follower.store
    body = store.get(key_of(version))
    assert body is not None
    actions = [edit(json.loads(line)) for line in body.decode().split("\n") if line]
    store.put(key_of(version), "".join(json.dumps(action) + "\n" for action in actions if action is not None).encode())


def without_offset(action: dict[str, Any]) -> dict[str, Any] | None:
    return None if action.get("txn", {}).get("appId") == "trigger.offset" else action


def with_offset(version: int) -> Edit:
    def edit(action: dict[str, Any]) -> dict[str, Any]:
        if action.get("txn", {}).get("appId") == "trigger.offset":
            action["txn"]["version"] = version
        return action

    return edit


def without_files(action: dict[str, Any]) -> dict[str, Any] | None:
    return None if "add" in action else action


def with_statistics(**changes: Any) -> Edit:
    def edit(action: dict[str, Any]) -> dict[str, Any]:
        if "add" in action:
            action["add"]["stats"] = json.dumps({**json.loads(action["add"]["stats"]), **changes})
        return action

    return edit


def refuses_everything(place: Place, text: str) -> None:
    before = listing(place)
    for action in (lambda: reopened(place), lambda: append(created(place), 9)):
        with pytest.raises(OutboxDamaged, match=text) as caught:
            action()
        assert "\n" not in str(caught.value)
        assert caught.value.cure
    assert listing(place) == before, "nothing was written"


# ── A22 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_A22_T19_trigger_offset_is_gone(place: Place) -> None:
    outbox = filled(place, 1)
    edit_commit(outbox, 0, without_offset)
    edit_commit(outbox, 1, without_offset)
    refuses_everything(place, r"no trigger\.offset")


@pytest.mark.parametrize("version", [1, 3, 9])
def test_A22_trigger_offset_is_not_that_of_the_rows(place: Place, version: int) -> None:
    outbox = filled(place, 2)
    edit_commit(outbox, 2, with_offset(version))
    refuses_everything(place, f"highest offset on disk is 1 but trigger.offset says that {version} is next")


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (without_files, "offsets 0 to 3 should be 3 rows, its files have 2"),
        (with_statistics(numRecords=7), "should be 3 rows, its files have 9"),
        (with_statistics(minValues={}, maxValues={}), "has no statistics"),
    ],
)
def test_A22_rows_do_not_add_up(place: Place, edit: Edit, text: str) -> None:
    outbox = filled(place, 3)
    edit_commit(outbox, 2, edit)
    refuses_everything(place, text)


@pytest.mark.parametrize("body", [b"", b"\n", b"{", b'{"add":', bytes(9), b"[]\n", b"null\n"])
def test_A22_a_torn_commit_file_at_the_head(place: Place, body: bytes) -> None:
    outbox, reader = filled(place, 2), reopened(place)
    outbox.follower.store.put(key_of(3), body)
    for action in (reader.refresh, lambda: append(outbox, 2)):
        with pytest.raises(OutboxDamaged, match="commit 3"):
            action()
    before = listing(place)
    with pytest.raises(OutboxDamaged):
        reopened(place)
    assert listing(place) == before
    outbox.follower.store.delete([key_of(3)])  # what the error says: the file is restored, or was never one
    assert append(reopened(place), 2).range == OffsetRange(2, 3)


def test_A22_a_foreign_commit(place: Place) -> None:
    """By an engine that ignored the guard."""
    outbox, reader = filled(place, 2), reopened(place)
    info = {"commitInfo": {"timestamp": 1, "operation": "WRITE", "operationParameters": {}, "engineInfo": "elsewhere"}}
    outbox.follower.store.create(key_of(3), json.dumps(info).encode() + b"\n")
    for action in (reader.refresh, lambda: append(outbox, 2), lambda: reopened(place)):
        with pytest.raises(OutboxDamaged, match="commit 3.*not written by pyspark-trigger"):
            action()


def test_A22_a_plain_table_is_no_topic(place: Place) -> None:
    outbox = created(place)
    url = outbox.root.child("plain").child("outbox").url
    write_deltalake(url, pa.table({"_offset": [0]}), storage_options=place.storage_options or None)
    with pytest.raises(OutboxDamaged, match=r"no trigger\.offset"):
        reopened(place, "plain")


def test_A22_a_log_whose_newest_commits_vanish(place: Place) -> None:
    outbox = filled(place, 3)
    outbox.follower.store.delete([key_of(3)])
    with pytest.raises(OutboxDamaged, match="went back from version 3 to 2"):
        outbox.follower.reopen()
    with pytest.raises(TriggerError):
        append(outbox, 9)


def test_an_unknown_table_feature_is_refused(place: Place) -> None:
    outbox, reader = filled(place, 1), reopened(place)

    def with_feature(action: dict[str, Any]) -> dict[str, Any]:
        if "protocol" in action:
            action["protocol"]["writerFeatures"].append("rowTracking")
        return action

    edit_commit(outbox, 0, with_feature)
    before = listing(place)
    with pytest.raises(UnsupportedTable, match="'rowTracking'.*upgrade"):
        reopened(place)
    assert ids(reader) == [0], "who knows the log already goes on"
    assert listing(place) == before


# ── verify ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_verify_finds_what_the_sums_cannot(place: Place) -> None:
    outbox = filled(place, 4, rows=2)
    assert_sound(outbox, rows=8)
    store, files = outbox.follower.store, outbox.state.files
    swapped = store.get(files[1].path)
    assert swapped is not None
    store.put(files[2].path, swapped)
    store.delete([files[3].path])
    audit = outbox.verify()
    assert not audit.ok
    assert any(files[2].path in problem and "offsets from 2" in problem for problem in audit.problems)
    assert any(files[3].path in problem and "is gone" in problem for problem in audit.problems)
    assert (audit.end, audit.files) == (8, 4)


@pytest.mark.parametrize(
    "damage", [lambda body: body[:-8] + bytes(64) + body[-8:], lambda body: bytes(len(body)), lambda body: b""]
)
def test_a_file_of_bad_bytes_is_reported_by_verify_and_refused_by_readers(place: Place, damage: Callable[[bytes], bytes]) -> None:
    outbox = filled(place, 2)
    store, file = outbox.follower.store, outbox.state.files[1]
    body = store.get(file.path)
    assert body is not None
    store.put(file.path, damage(body))
    audit = outbox.verify()
    assert any(file.path in problem and "can't be read" in problem for problem in audit.problems)
    assert ids(outbox, OffsetRange(0, 1)) == [0]
    with pytest.raises(OutboxDamaged, match="can't be read.*backup"):
        ids(outbox)


# ── C14: the guard ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def rows_at(*offsets: int) -> pa.Table:
    times = pa.array([0] * len(offsets), pa.timestamp("us", "UTC"))
    return table(*offsets).add_column(0, "_offset", pa.array(offsets, pa.int64())).add_column(1, "_produced_at", times)


WRITES: dict[str, Callable[[DeltaTable], object]] = {
    "append": lambda log: write_deltalake(log, rows_at(99), mode="append"),
    "overwrite": lambda log: write_deltalake(log, rows_at(99), mode="overwrite"),
    "OPTIMIZE": lambda log: log.optimize.compact(),
    "DELETE": lambda log: log.delete("_offset < 2"),
    "UPDATE": lambda log: log.update(updates={"name": "'x'"}),
    "VACUUM": lambda log: log.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False),
    "ALTER": lambda log: log.alter.set_table_properties({"delta.appendOnly": "true"}),
    "RESTORE": lambda log: log.restore(1),
}


@pytest.mark.parametrize("what", WRITES)
def test_C14_the_guard_refuses_other_writers(place: Place, what: str) -> None:
    outbox = filled(place, 3)
    outbox.compact(files_min=2)  # so that VACUUM has something to take
    append(outbox, 3)
    append(outbox, 4)
    before = listing(place)
    with pytest.raises((DeltaError, OSError, ValueError), match="triggerOutbox|unsupported|Unsupported|not supported"):
        WRITES[what](delta(outbox))
    assert listing(place) == before
    assert delta(outbox).to_pyarrow_table().num_rows == 5, "reading is as ever"
    assert append(reopened(place), 5).range == OffsetRange(5, 6)


@pytest.mark.parametrize("what", sorted(WRITES.keys() - {"RESTORE"}))
def test_C14_after_release_they_may_and_damage_is_noticed(place: Place, what: str) -> None:
    outbox, follower = filled(place, 4), reopened(place)
    outbox.release()
    outbox.release()
    assert not outbox.state.guarded
    WRITES[what](delta(outbox))
    damages = what in {"append", "overwrite", "DELETE"}
    if damages:
        with pytest.raises(OutboxDamaged):
            reopened(place)
        with pytest.raises(OutboxDamaged):
            ids(follower)
    else:
        assert ids(follower) == ids(reopened(place)) == [0, 1, 2, 3]
        assert follower.state.end == 4


def test_C14_after_release_a_restore_can_undo_damage(place: Place) -> None:
    outbox = filled(place, 4)
    outbox.release()
    whole = outbox.state.version
    delta(outbox).delete("_offset >= 2")
    with pytest.raises(OutboxDamaged, match="highest offset on disk is 1"):
        ids(outbox)
    delta(outbox).restore(whole)
    assert ids(outbox) == ids(reopened(place)) == [0, 1, 2, 3]


def test_C14_a_released_topic_is_read_only_to_us(place: Place) -> None:
    outbox, late = filled(place, 3), reopened(place)
    outbox.release()
    before = listing(place)
    for writer in (outbox, late, reopened(place)):
        with pytest.raises(UnsupportedTable, match=r"released.*write to it with Delta"):
            append(writer, 3)
        assert writer.compact(files_min=2) == 0
    assert {key for key in listing(place) if "_delta_log" in key} == {key for key in before if "_delta_log" in key}
    assert ids(late) == [0, 1, 2]
    assert reopened(place).describe().guarded is False
    assert delta(outbox).protocol().min_writer_version == 2
    assert_sound(outbox, rows=3)


def test_C14_a_topic_can_be_dropped_after_its_release(place: Place) -> None:
    outbox = filled(place, 1)
    outbox.release()
    assert drop_topic(place.path, TOPIC, place.storage_options)
    assert listing(place) == {}
