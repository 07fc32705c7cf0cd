"""Every kind of commit file, byte for byte: what is on disks must stay readable, what we write must stay what engines read.

`UPDATE_GOLDEN=1 pytest …` writes the files anew; a change of one is a change of the format and belongs into the changelog.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest

from tests.unit.outbox.commits import NOW_MS, NOW_US, OPERATION, SCHEMA, TABLE, compact, create, data_file, trim
from trigger_core.errors import OutboxDamaged, UnsupportedTable
from trigger_outbox.commit import (
    ENGINE,
    Record,
    append_commit,
    create_commit,
    drop_commit,
    parse_commit,
    release_commit,
    turn_commit,
)
from trigger_outbox.lifecycle import CONFIGURATION
from trigger_outbox.schema import topic_schema
from trigger_outbox.state import apply, first_state

GOLDEN = Path(__file__).parents[2] / "golden" / "commits"
ENGINE_IN_GOLDEN = "pyspark-trigger/X"
SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
NTZ = topic_schema(pa.schema([pa.field("at", pa.timestamp("us"))]))


def raw_metadata() -> dict[str, object]:
    """The metaData object of the created topic, as a schema change must repeat it."""
    action = next(json.loads(line) for line in create().decode().splitlines() if line.startswith('{"metaData"'))
    return dict(action["metaData"])


def appended(start: int, end: int) -> Record:
    return Record(TABLE, OPERATION, "append", start, end, NOW_US, SHA256)


def written() -> dict[str, bytes]:
    merged = SCHEMA.merged(pa.schema([pa.field("price", pa.decimal128(10, 2))]))
    with_ntz = SCHEMA.merged(pa.schema([pa.field("at", pa.timestamp("us"))]))
    old = [data_file(0, 2), data_file(2, 5)]
    return {
        "create": create(),
        "create_timestamp_ntz": create_commit(Record(TABLE, OPERATION, "create"), NTZ, CONFIGURATION, NOW_MS),
        "append": append_commit(appended(0, 2), [data_file(0, 2)], read_version=0, now_ms=NOW_MS),
        "append_two_files": append_commit(appended(0, 5), old, read_version=0, now_ms=NOW_MS),
        "append_with_txn": append_commit(
            appended(0, 2), [data_file(0, 2)], read_version=0, now_ms=NOW_MS, txn=("query \u2028 ü", 7)
        ),
        "append_with_schema_change": append_commit(
            appended(0, 2),
            [data_file(0, 2)],
            read_version=0,
            now_ms=NOW_MS,
            metadata={**raw_metadata(), "schemaString": merged.delta_json},
        ),
        "append_with_new_feature": append_commit(
            appended(0, 2),
            [data_file(0, 2)],
            read_version=0,
            now_ms=NOW_MS,
            metadata={**raw_metadata(), "schemaString": with_ntz.delta_json},
            protocol=with_ntz,
        ),
        "compact": compact([data_file(0, 5, level=1)], old, read_version=1),
        "trim": trim(3, old[:1], read_version=1),
        "turn": turn_commit(Record(TABLE, f"{OPERATION}.turn", "turn", turn_ms=400), read_version=0, now_ms=NOW_MS),
        "drop": drop_commit(Record(TABLE, OPERATION, "drop"), read_version=0, now_ms=NOW_MS),
        "release": release_commit(Record(TABLE, OPERATION, "release"), SCHEMA, read_version=0, now_ms=NOW_MS),
        "release_timestamp_ntz": release_commit(Record(TABLE, OPERATION, "release"), NTZ, read_version=0, now_ms=NOW_MS),
    }


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.json").read_bytes()


@pytest.mark.parametrize("name", sorted(written()))
def test_what_is_written_is_the_golden_file(name: str) -> None:
    body = written()[name].replace(ENGINE.encode(), ENGINE_IN_GOLDEN.encode())
    if os.environ.get("UPDATE_GOLDEN"):
        (GOLDEN / f"{name}.json").write_bytes(body)
    assert body == golden(name)


def test_every_golden_file_is_used() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == {
        *written(),
        "future_record",
        "foreign_append",
        "empty",
        "torn",
        "deletion_vector",
        "change_data",
    }


@pytest.mark.parametrize("name", sorted(written()))
def test_one_action_per_line_and_nothing_nested_where_history_reads(name: str) -> None:
    lines = golden(name).decode().split("\n")
    assert lines[-1] == ""
    for line in lines[:-1]:
        ((kind, body),) = json.loads(line).items()
        if kind == "commitInfo":
            assert all(not isinstance(value, dict | list) for value in body["operationParameters"].values())
            assert all(isinstance(value, str) for value in body["operationMetrics"].values())
        if kind == "add":
            assert {"path", "partitionValues", "size", "modificationTime", "dataChange"} <= body.keys()


@pytest.mark.parametrize(
    "name", ["append", "append_two_files", "append_with_txn", "append_with_schema_change", "append_with_new_feature"]
)
def test_T15_T19_the_offset_is_in_the_commit(name: str) -> None:
    state = first_state(parse_commit(0, golden("create")))
    commit = parse_commit(1, golden(name))
    after = apply(state, commit)
    assert commit.record is not None
    assert commit.record.payload_sha256 == SHA256
    assert after.end == commit.record.end == commit.txns["trigger.offset"] == sum(file.rows for file in commit.adds)
    assert after.produced_at_us == NOW_US
    assert [file.produced_min_us for file in after.files] == [NOW_MS * 1000] * len(after.files), "statistics have milliseconds"


def test_golden_commits_fold_into_one_log() -> None:
    state = first_state(parse_commit(0, golden("create")))
    assert (state.end, state.earliest, state.guarded, state.files) == (0, 0, True, ())
    state = apply(state, parse_commit(1, golden("append_two_files")))
    assert [(file.start, file.end) for file in state.files] == [(0, 2), (2, 5)]
    state = apply(state, parse_commit(2, golden("turn")))
    assert state.turn is not None and state.turn.turn_ms == 400
    trimmed = apply(state, parse_commit(3, golden("trim")))
    assert (trimmed.earliest, trimmed.end, [file.start for file in trimmed.files]) == (3, 5, [2])
    state = apply(state, parse_commit(3, golden("compact")))
    assert [(file.start, file.end, file.level) for file in state.files] == [(0, 5, 1)]
    state = apply(state, parse_commit(4, golden("release")))
    assert not state.guarded and state.end == 5


def test_a_txn_with_odd_characters_comes_back_whole() -> None:
    assert parse_commit(1, golden("append_with_txn")).txns["query \u2028 ü"] == 7


def test_a_schema_change_keeps_all_else_of_the_metadata() -> None:
    before, changed = parse_commit(0, golden("create")).metadata, parse_commit(1, golden("append_with_schema_change")).metadata
    assert before is not None and changed is not None
    assert {**before.raw, "schemaString": ""} == {**changed.raw, "schemaString": ""}
    assert changed.schema.user.names == ["id", "name", "price"]
    assert changed.schema.user.field("price").nullable


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("empty", "it is empty"),
        ("torn", "can't be read"),
        ("future_record", "upgrade"),
    ],
)
def test_A22_a_torn_or_future_commit_is_refused(name: str, problem: str) -> None:
    with pytest.raises(OutboxDamaged, match=problem):
        parse_commit(1, golden(name))


def test_A22_a_foreign_commit_is_refused() -> None:
    state = first_state(parse_commit(0, golden("create")))
    with pytest.raises(OutboxDamaged, match="not written by pyspark-trigger"):
        apply(state, parse_commit(1, golden("foreign_append")))


@pytest.mark.parametrize(("name", "what"), [("deletion_vector", "a deletion vector"), ("change_data", "the action 'cdc'")])
def test_what_this_version_does_not_know_is_refused(name: str, what: str) -> None:
    state = first_state(parse_commit(0, golden("create")))
    with pytest.raises(UnsupportedTable, match=what):
        apply(state, parse_commit(1, golden(name)))
