"""Bad input: one line that names the thing and the cure, and nothing written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from offsets import OffsetRange
from tests.conftest import Place
from tests.log.interposed import Interposed
from tests.log.orders import SCHEMA, TOPIC, append, batch, created, filled, listing, reopened, root, table
from trigger_core.errors import (
    InvalidName,
    InvalidOffset,
    InvalidOption,
    ReservedColumn,
    SchemaConflict,
    SchemaMismatch,
    TopicNotFound,
    TopicRecreated,
    TriggerError,
    UnsafeStore,
    UnsupportedType,
)
from trigger_outbox import Outbox, lifecycle, topic_names
from trigger_outbox.append import check_txn
from trigger_outbox.outbox import drop_topic
from trigger_outbox.storage import open_store

Action = Callable[[Place, Outbox], object]


def with_rows(rows: pa.Table, **settings: object) -> Action:
    return lambda place, outbox: outbox.append(batch(rows, **settings))


def with_txn(*txn: object) -> Action:
    return with_rows(table(1), txn=txn)


def naming(name: str) -> Action:
    return lambda place, outbox: Outbox.create(place.path, name, SCHEMA, place.storage_options)


BAD: dict[str, tuple[type[TriggerError], str, Action]] = {
    "missing topic": (TopicNotFound, "'nowhere'.*create it", lambda place, outbox: reopened(place, "nowhere")),
    "no such column": (SchemaMismatch, "'extra'.*mergeSchema", with_rows(table(1).append_column("extra", pa.array([1])))),
    "another type": (SchemaMismatch, "'id' is string.*cast", with_rows(pa.table({"id": ["x"], "name": ["y"]}))),
    "null in NOT NULL": (
        SchemaMismatch,
        "'id' is NOT NULL",
        with_rows(pa.table({"id": pa.array([None], pa.int64()), "name": ["y"]})),
    ),
    "column missing": (SchemaMismatch, "'id' is NOT NULL and is missing", with_rows(pa.table({"name": ["y"]}))),
    "a value beyond 2^63": (
        UnsupportedType,
        "'id' is uint64",
        with_rows(pa.table({"id": pa.array([2**63], pa.uint64()), "name": ["y"]})),
    ),
    "reserved column": (ReservedColumn, "'_offset'.*rename", with_rows(table(1).append_column("_offset", pa.array([1])))),
    "reserved in any case": (ReservedColumn, "'_Tenant'", with_rows(table(1).append_column("_Tenant", pa.array(["x"])))),
    "a type of no Delta": (
        UnsupportedType,
        "'wait' is duration.*cast",
        lambda place, outbox: created(place, "odd", pa.schema([("wait", pa.duration("us"))])),
    ),
    "a reserved column at create": (
        ReservedColumn,
        "'_erased_at'",
        lambda place, outbox: created(place, "odd", pa.schema([("_erased_at", pa.int64())])),
    ),
    "no columns": (SchemaMismatch, "at least one column", lambda place, outbox: created(place, "odd", pa.schema([]))),
    "other columns": (SchemaConflict, "'orders'", lambda place, outbox: created(place, TOPIC, pa.schema([("id", pa.string())]))),
    "start beyond end": (InvalidOffset, "2.*1", lambda place, outbox: list(outbox.read(OffsetRange(2, 1)))),
    "negative offset": (InvalidOffset, "-1", lambda place, outbox: list(outbox.read(OffsetRange(-1, 1)))),
    "T13 an offset of 2^63": (
        InvalidOffset,
        "9223372036854775808",
        lambda place, outbox: list(outbox.read(OffsetRange(0, 2**63))),
    ),
    "end beyond the head": (InvalidOffset, "beyond the head 2", lambda place, outbox: list(outbox.read(OffsetRange(0, 3)))),
    "trim beyond the head": (InvalidOffset, "the head is 2", lambda place, outbox: outbox.trim(3)),
    "trim below 0": (InvalidOffset, "before", lambda place, outbox: outbox.trim(-1)),
    "T13 trim to 2^63": (InvalidOffset, "before", lambda place, outbox: outbox.trim(2**63)),
    "name with a slash": (InvalidName, "'a/b'", naming("a/b")),
    "name with a leading dot": (InvalidName, "'.a'", naming(".a")),
    "name with ..": (InvalidName, r"'a\.\.b'", naming("a..b")),
    "empty name": (InvalidName, "''", naming("")),
    "long name": (InvalidName, "1 to 128", naming("a" * 129)),
    "drop of a bad name": (InvalidName, r"'\.\.'", lambda place, outbox: drop_topic(place.path, "..", place.storage_options)),
    "open of a bad name": (InvalidName, "'a/b'", lambda place, outbox: reopened(place, "a/b")),
    "A14 app id alone": (InvalidOption, "both or neither", with_txn("job", None)),
    "A14 version alone": (InvalidOption, "both or neither", with_txn(None, 1)),
    "own app id": (InvalidOption, r"'trigger\.offset'", with_txn("trigger.offset", 1)),
    "empty app id": (InvalidOption, "application id ''", with_txn("", 1)),
    "app id that is no text": (InvalidOption, "application id", with_txn("\ud800", 1)),
    "negative txn version": (InvalidOption, "txnVersion -1", with_txn("job", -1)),
    "T13 txn version of 2^63": (InvalidOption, "txnVersion 9223372036854775808", with_txn("job", 2**63)),
    "txn version True": (InvalidOption, "txnVersion True", with_txn("job", True)),
    "a recreated topic": (
        TopicRecreated,
        "is now table .*new checkpoint",
        lambda place, outbox: Outbox.open(place.path, TOPIC, place.storage_options, table_id="an-older-one"),
    ),
    "allow_unsafe_rename": (
        UnsafeStore,
        "'AWS_S3_ALLOW_UNSAFE_RENAME'.*remove it",
        lambda place, outbox: Outbox.create(
            place.path, "odd", SCHEMA, {**place.storage_options, "AWS_S3_ALLOW_UNSAFE_RENAME": "true"}
        ),
    ),
    "an empty path": (InvalidOption, "path is empty", lambda place, outbox: open_store("")),
    "credentials in the path": (InvalidOption, r"storage\.\*", lambda place, outbox: open_store("s3://key:secret@bucket/x")),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_line_and_writes_nothing(what: str, place: Place) -> None:
    kind, text, action = BAD[what]
    outbox = filled(place, 2)
    before = listing(place)
    with pytest.raises(kind, match=text) as caught:
        action(place, outbox)
    assert "\n" not in str(caught.value)
    assert caught.value.cure, "says what to do"
    assert "secret" not in str(caught.value)
    assert listing(place) == before
    assert append(outbox, 2).range == OffsetRange(2, 3), "the next append is normal"


@pytest.mark.parametrize("txn", [("job", 0), ("Trigger.offset", 1), ("\u2028", 2**63 - 1), ("trigger", 5), None])
def test_good_transaction_ids_are_taken(txn: tuple[str, int] | None) -> None:
    check_txn(txn)


@pytest.mark.parametrize("option", ["allow_unsafe_rename", "AWS_S3_ALLOW_UNSAFE_RENAME", "aws_allow_unsafe_rename"])
def test_unsafe_rename_is_refused_wherever_a_store_is_opened(option: str, tmp_path: Path) -> None:
    with pytest.raises(UnsafeStore, match=option):
        open_store(tmp_path, {option: "true"})


def test_a_store_without_put_if_absent_is_refused(place: Place) -> None:
    """Such a store would let two writers both have one version."""
    real = root(place)
    careless = Interposed(real, on_create=real.put)
    before = listing(place)
    with pytest.raises(UnsafeStore, match="both create one key") as caught:
        lifecycle.create(careless, TOPIC, SCHEMA)
    assert real.url in str(caught.value) and "put-if-absent" in caught.value.cure
    assert listing(place) == before
    assert topic_names(place.path, place.storage_options) == []


def test_paths_of_every_form_are_one_folder(tmp_path: Path) -> None:
    created(Place(str(tmp_path / "a b")))
    assert topic_names(tmp_path / "a b") == topic_names(f"file://{tmp_path}/a%20b") == topic_names(f"{tmp_path}/a b/") == [TOPIC]
