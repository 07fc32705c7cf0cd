"""`apply` as a pure fold: random legal histories against a model, and every illegal commit refused with the state as it was."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offsets import OffsetRange
from tests.unit.outbox.commits import (
    NOW_MS,
    NOW_US,
    OPERATION,
    SCHEMA,
    TABLE,
    after,
    append,
    compact,
    create,
    data_file,
    first,
    trim,
)
from trigger_core.errors import OutboxDamaged, TopicNotFound, TopicRecreated, TriggerError, UnsupportedTable
from trigger_outbox.commit import DataFile, Record, append_commit, drop_commit, parse_commit, release_commit, turn_commit
from trigger_outbox.state import LogState, apply, first_state, turn_of

DETERMINISTIC = settings(
    deadline=None, derandomize=True, database=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow]
)

APPEND = st.tuples(st.just("append"), st.lists(st.integers(1, 9), min_size=1, max_size=3), st.sampled_from([None, "a", "b"]))
COMPACT = st.tuples(st.just("compact"), st.integers(0, 9), st.integers(2, 9))
TRIM = st.tuples(st.just("trim"), st.floats(0, 1), st.none())
TURN = st.tuples(st.just("turn"), st.integers(1, 10_000), st.none())
WIDEN = st.tuples(st.just("widen"), st.integers(1, 9), st.none())
HISTORIES = st.lists(st.one_of(APPEND, APPEND, COMPACT, TRIM, TURN, WIDEN), max_size=25)


class Model:
    """What the log should be, kept row by row."""

    def __init__(self) -> None:
        self.state = first()
        self.rows: dict[str, range] = {}
        self.end = self.earliest = 0
        self.time_us = 0
        self.txns: dict[str, int] = {}
        self.names = ["id", "name"]

    def step(self, kind: str, first_argument: Any, second_argument: Any) -> None:
        body = getattr(self, kind)(first_argument, second_argument)
        if body is None:
            return
        before = copy.deepcopy(self.state)
        commit = after(self.state, body)
        state = apply(self.state, commit)
        assert self.state == before, "the fold changed its input"
        assert apply(before, commit) == state, "the fold is not a function"
        self.state = state
        self.agree()

    def agree(self) -> None:
        state = self.state.check()
        assert (state.end, state.earliest, state.produced_at_us) == (self.end, self.earliest, self.time_us)
        assert state.range == OffsetRange(self.earliest, self.end)
        assert {file.path: range(file.start, file.end) for file in state.files} == self.rows
        assert [file.start for file in state.files] == sorted(file.start for file in state.files)
        assert dict(state.txns) == self.txns
        assert state.metadata.schema.user.names == self.names
        held = sorted(offset for rows in self.rows.values() for offset in rows)
        assert held == list(range(self.end - len(held), self.end)), "dense and unique"

    def append(self, counts: list[int], app: str | None) -> bytes:
        self.time_us = NOW_US + self.state.version
        files = []
        for count in counts:
            files.append(data_file(self.end, self.end + count, time_us=self.time_us))
            self.rows[files[-1].path] = range(self.end, self.end + count)
            self.end += count
        if app is not None:
            self.txns[app] = self.txns.get(app, -1) + 1
        record = Record(TABLE, f"op{self.state.version}", "append", self.end - sum(counts), self.end, self.time_us)
        txn = None if app is None else (app, self.txns[app])
        return append_commit(record, files, read_version=self.state.version, now_ms=NOW_MS, txn=txn)

    def widen(self, count: int, _: None) -> bytes:
        self.names = [*self.names, f"c{self.state.version}"]
        schema = self.state.metadata.schema.merged(pa.schema([pa.field(self.names[-1], pa.int32())]))
        self.time_us = NOW_US + self.state.version
        file = data_file(self.end, self.end + count, time_us=self.time_us)
        self.rows[file.path] = range(self.end, self.end + count)
        self.end += count
        record = Record(TABLE, OPERATION, "append", file.start, file.end, self.time_us)
        metadata = {**self.state.metadata.raw, "schemaString": schema.delta_json}
        return append_commit(record, [file], read_version=self.state.version, now_ms=NOW_MS, metadata=metadata)

    def compact(self, at: int, count: int) -> bytes | None:
        chosen = list(self.state.files[at : at + count])
        if len(chosen) < 2:
            return None
        merged = data_file(chosen[0].start, chosen[-1].end, level=1, name=f"merged{self.state.version}")
        for file in chosen:
            del self.rows[file.path]
        self.rows[merged.path] = range(merged.start, merged.end)
        return compact([merged], chosen)

    def trim(self, share: float, _: None) -> bytes:
        self.earliest += int(share * (self.end - self.earliest))
        gone = [file for file in self.state.files if file.end <= self.earliest]
        for file in gone:
            del self.rows[file.path]
        return trim(self.earliest, gone)

    def turn(self, turn_ms: int, _: None) -> bytes:
        record = Record(TABLE, f"turn{self.state.version}", "turn", turn_ms=turn_ms)
        return turn_commit(record, read_version=self.state.version, now_ms=NOW_MS)


@DETERMINISTIC
@given(HISTORIES)
def test_a_legal_history_folds_to_what_its_commits_say(history: list[tuple[str, Any, Any]]) -> None:
    model = Model()
    for step in history:
        model.step(*step)


@DETERMINISTIC
@given(HISTORIES, st.integers(0, 60), st.integers(0, 60))
def test_overlapping_files_are_those_that_hold_a_wanted_row(history: list[tuple[str, Any, Any]], one: int, other: int) -> None:
    model = Model()
    for step in history:
        model.step(*step)
    wanted = OffsetRange(min(one, other), max(one, other))
    found = {file.path for file in model.state.overlapping(wanted)}
    assert found == {path for path, rows in model.rows.items() if set(rows) & set(range(wanted.start, wanted.end))}


@DETERMINISTIC
@given(st.binary(max_size=200))
def test_A22_garbage_is_damage_and_nothing_else(body: bytes) -> None:
    with pytest.raises(OutboxDamaged):
        parse_commit(1, body)


@DETERMINISTIC
@given(st.integers(0, 10_000))
def test_A22_a_commit_cut_anywhere_is_refused_or_short_of_a_whole_line(cut: int) -> None:
    """A torn file is refused when it is parsed or when it is folded: a line that is missing contradicts the record."""
    state, body = first(), append(0, 2, 3)
    with pytest.raises(TriggerError):
        apply(state, after(state, body[: cut % (len(body) - 1)]))


# ── illegal commits: a legal log, one change, and the error it must raise ────────────────────────────────────────────────────


def edited(body: bytes, edit: Callable[[dict[str, Any]], object]) -> bytes:
    """Every action of a commit, changed in place."""
    actions = [json.loads(line) for line in body.decode().split("\n") if line]
    for action in actions:
        edit(action)
    return "".join(json.dumps(action) + "\n" for action in actions).encode()


def setting(kind: str, *path: str, value: object) -> Callable[[dict[str, Any]], object]:
    def edit(action: dict[str, Any]) -> None:
        if kind in action:
            target = action[kind]
            for key in path[:-1]:
                target = target[key]
            target[path[-1]] = value

    return edit


def moving_txn(app: str, version: int) -> Callable[[dict[str, Any]], object]:
    def edit(action: dict[str, Any]) -> None:
        if "txn" in action and action["txn"]["appId"] == app:
            action["txn"]["version"] = version

    return edit


def filled() -> LogState:
    """Five rows in two files."""
    state = first()
    return apply(state, after(state, append(0, 2, 3, txn=("app", 1))))


def without(body: bytes, text: str) -> bytes:
    return b"".join(line + b"\n" for line in body.split(b"\n") if line and text.encode() not in line)


NEXT = append(5, 4, read_version=1)
OLD = [data_file(0, 2), data_file(2, 5)]
METADATA = next(line for line in create().split(b"\n") if line.startswith(b'{"metaData"'))
PROTOCOL = next(line for line in create().split(b"\n") if line.startswith(b'{"protocol"'))


def with_configuration(key: str, value: str) -> bytes:
    return NEXT + edited(METADATA, setting("metaData", "configuration", value={key: value}))


def with_schema(text: str) -> bytes:
    return NEXT + edited(METADATA, setting("metaData", "schemaString", value=text))


def with_features(**fields: object) -> bytes:
    return NEXT + edited(PROTOCOL, lambda action: action["protocol"].update(fields))


def no_statistics(action: dict[str, Any]) -> None:
    if "add" in action:
        del action["add"]["stats"]


DAMAGED = {
    "starts too low": append(4, 4),
    "starts too high": append(6, 4),
    "ends where the txn does not": edited(NEXT, moving_txn("trigger.offset", 8)),
    "has no trigger.offset": without(NEXT, '"trigger.offset"'),
    "has no trigger.produced_at": without(NEXT, '"trigger.produced_at"'),
    "has no rows": edited(NEXT, setting("commitInfo", "trigger", "end", value=5)),
    "has no end": edited(NEXT, setting("commitInfo", "trigger", "end", value=None)),
    "has no files": without(NEXT, '{"add"'),
    "has a file too many": NEXT + next(line for line in NEXT.split(b"\n") if line.startswith(b'{"add"')),
    "has a file without statistics": edited(NEXT, no_statistics),
    "has a file of other offsets": edited(
        NEXT,
        setting(
            "add",
            "stats",
            value=json.dumps(
                {
                    "numRecords": 4,
                    "minValues": {"_offset": 1},
                    "maxValues": {"_offset": 4},
                    "nullCount": {},
                }
            ),
        ),
    ),
    "goes back in time": append(5, 4, time_us=NOW_US - 1),
    "is foreign": edited(NEXT, lambda action: action.get("commitInfo", {}).pop("trigger", None)),
    "removes a file while it appends": NEXT + next(line for line in trim(0, OLD).split(b"\n") if line.startswith(b'{"remove"')),
    "moves the offset in a turn": edited(
        turn_commit(Record(TABLE, OPERATION, "turn", turn_ms=9), read_version=1, now_ms=NOW_MS)
        + b'{"txn":{"appId":"trigger.offset","version":9}}\n',
        lambda action: None,
    ),
    "compacts files into fewer rows": compact([data_file(0, 4, level=1)], OLD),
    "compacts files into other offsets": compact([data_file(0, 4, level=1), data_file(0, 1, level=1)], OLD),
    "compacts a file that is not there": compact([data_file(0, 5, level=1)], [*OLD, data_file(5, 6)]),
    "compacts nothing into something": compact([data_file(0, 5, level=1)], []),
    "compacts beyond the end": compact([data_file(2, 7, level=1)], [OLD[0], OLD[1]]),
    "trims back": trim(-1, []),
    "trims beyond the end": trim(6, OLD),
    "trims rows that it does not say": trim(1, OLD[:1]),
    "trims from the middle": trim(2, OLD[1:]),
}
UNSUPPORTED = {
    "unknown action": NEXT + b'{"domainMetadata":{"domain":"x","configuration":"","removed":false}}\n',
    "checkpoint metadata": NEXT + b'{"checkpointMetadata":{"version":1}}\n',
    "partition columns": NEXT + edited(METADATA, setting("metaData", "partitionColumns", value=["id"])),
    "deletion vectors": with_features(writerFeatures=["triggerOutbox", "deletionVectors"]),
    "unknown reader feature": with_features(
        minReaderVersion=3, readerFeatures=["columnMapping"], writerFeatures=["triggerOutbox"]
    ),
    "newer writer": with_features(minWriterVersion=8),
    "newer reader": with_features(minReaderVersion=4),
    "change data feed": with_configuration("delta.enableChangeDataFeed", "true"),
    "row tracking": with_configuration("delta.enableRowTracking", "true"),
    "in-commit timestamps": with_configuration("delta.enableInCommitTimestamps", "true"),
    "column mapping": with_configuration("delta.columnMapping.mode", "name"),
    "a constraint": with_configuration("delta.constraints.positive", "id > 0"),
    "txn expiry": with_configuration("delta.setTransactionRetentionDuration", "interval 7 days"),
    "a generated column": with_schema(
        SCHEMA.delta_json.replace('"metadata":{}', '"metadata":{"delta.generationExpression":"1"}')
    ),
    "an identity column": with_schema(SCHEMA.delta_json.replace('"metadata":{}', '"metadata":{"delta.identity.start":1}')),
    "other engine columns": with_schema(SCHEMA.delta_json.replace('"_offset"', '"offset"')),
    "an unreadable schema": with_schema("{}"),
    "an unknown type": with_schema(SCHEMA.delta_json.replace('"string"', '"geometry"')),
}


def refused(body: bytes, kind: type[TriggerError]) -> TriggerError:
    state = filled()
    before = copy.deepcopy(state)
    commit = after(state, body)
    with pytest.raises(kind) as caught:
        apply(state, commit)
    assert state == before
    assert "\n" not in str(caught.value)
    return caught.value


def test_the_log_that_illegal_commits_are_tried_on_takes_a_legal_one() -> None:
    state = filled()
    assert apply(state, after(state, NEXT)).end == 9
    assert apply(state, after(state, with_configuration("delta.appendOnly", "false"))).end == 9


@pytest.mark.parametrize("what", DAMAGED)
def test_A22_a_commit_that_contradicts_the_log_is_damage(what: str) -> None:
    error = refused(DAMAGED[what], OutboxDamaged)
    assert error.facts["version"] == 2


@pytest.mark.parametrize("what", UNSUPPORTED)
def test_a_feature_that_is_not_known_stops_the_fold(what: str) -> None:
    refused(UNSUPPORTED[what], UnsupportedTable)


@pytest.mark.parametrize("version", [0, 1, 3, 100])
def test_A22_versions_have_no_hole(version: int) -> None:
    with pytest.raises(OutboxDamaged, match="does not follow version 1"):
        apply(filled(), parse_commit(version, NEXT))


@pytest.mark.parametrize("change", [
    setting("commitInfo", "trigger", "table", value="another"),
    lambda action: None,
])  # fmt: skip
def test_A21_a_commit_of_another_table_is_told_apart(change: Callable[[dict[str, Any]], object]) -> None:
    foreign = edited(METADATA, setting("metaData", "id", value="another"))
    error = refused(edited(NEXT, change) + foreign, TopicRecreated)
    assert "created anew" in error.problem + error.cure


def test_a_drop_ends_the_topic_for_whoever_follows_it() -> None:
    error = refused(drop_commit(Record(TABLE, OPERATION, "drop"), read_version=1, now_ms=NOW_MS), TopicNotFound)
    assert error.facts["dropped"] is True


def test_a_turn_stays_until_its_writers_append_is_seen() -> None:
    state = first()
    asked = Record(TABLE, turn_of("slow"), "turn", turn_ms=400)
    state = apply(state, after(state, turn_commit(asked, read_version=0, now_ms=NOW_MS)))
    assert state.turn == asked
    state = apply(state, after(state, append(0, 1, operation="other")))
    assert state.turn == asked
    state = apply(state, after(state, append(1, 1, operation="slow")))
    assert state.turn is None


def test_release_takes_the_guard_off_and_leaves_the_rest() -> None:
    state = filled()
    body = release_commit(Record(TABLE, OPERATION, "release"), SCHEMA, read_version=1, now_ms=NOW_MS)
    released = apply(state, after(state, body))
    assert state.guarded and not released.guarded
    assert (released.end, released.files) == (state.end, state.files)


def test_own_app_ids_are_not_the_users() -> None:
    assert dict(filled().txns) == {"app": 1}


@pytest.mark.parametrize(
    "body",
    [
        append(0, 2),
        without(create(), '"trigger.offset"'),
        without(create(), '{"protocol"'),
        without(create(), '{"metaData"'),
        without(create(), '{"commitInfo"'),
        edited(create(), moving_txn("trigger.offset", 1)),
    ],
)
def test_F2_a_log_begins_with_a_whole_creation(body: bytes) -> None:
    with pytest.raises(OutboxDamaged):
        first_state(parse_commit(0, body))


# ── the sum check of an opened log ───────────────────────────────────────────────────────────────────────────────────────────


def test_A22_an_opened_log_must_add_up() -> None:
    state = filled()
    assert state.check() is state
    files = state.files
    broken: dict[str, LogState] = {
        "4 but trigger.offset says that 6": replace(state, end=6),
        "should be 5 rows, its files have 8": replace(state, files=(*files, data_file(2, 5, name="again"))),
        "highest offset on disk is 1": replace(state, files=files[:1]),
        "trigger.earliest is 6": replace(state, earliest=6),
        "trigger.earliest is 1, outside of 2 to 5": replace(state, files=files[1:], earliest=1),
        "has no statistics": replace(state, files=(*files, DataFile("x", 1, -1, -1, -1, 0, 0, 0))),
    }
    for problem, log in broken.items():
        with pytest.raises(OutboxDamaged, match=problem):
            log.check()


def test_T19_a_fully_trimmed_log_keeps_its_next_offset() -> None:
    state = filled()
    state = apply(state, after(state, trim(5, OLD)))
    assert (state.end, state.earliest, state.files) == (5, 5, ())
    assert state.check().end == 5
    assert apply(state, after(state, append(5, 1))).end == 6
