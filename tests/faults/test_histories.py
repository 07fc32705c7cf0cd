"""B10: random histories. The seed of a failure is in its output; TRIGGER_SEED runs it again."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from tests.faults.history import Log, Run, check_history, digest, rows_of
from tests.faults.processes import Crew
from tests.faults.random_history import ROWS, Size, run_history
from tests.server_s3 import S3Server
from trigger_outbox.encode import stamp
from trigger_outbox.schema import topic_schema


@pytest.mark.parametrize("chance", [101, 102, 103], indirect=True)
def test_B10_random_histories_are_linearisable(tmp_path: Path, crew: Crew, chance: random.Random) -> None:
    run_history(tmp_path, str(tmp_path / "topics"), {}, crew, chance, Size())


@pytest.mark.parametrize("chance", [104], indirect=True)
def test_B10_random_histories_on_an_object_store_are_linearisable(
    tmp_path: Path, s3_server: S3Server, s3_url: str, crew: Crew, chance: random.Random
) -> None:
    run_history(tmp_path, s3_url, s3_server.storage_options, crew, chance, Size(writers=2, readers=1, batches=12, faults=5))


# ── the checker itself: a history with a flaw must not pass ──────────────────────────────────────────────────────────────────


def log_of(*batches: tuple[str, int]) -> Log:
    tables = [
        stamp(rows_of(writer, batch, ROWS), ROWS * index, 0, topic_schema(rows_of("", 0, 0).schema))
        for index, (writer, batch) in enumerate(batches)
    ]
    table = pa.concat_tables(tables)
    runs = tuple(Run(writer, batch, ROWS * index, ROWS * (index + 1)) for index, (writer, batch) in enumerate(batches))
    return Log(table, 0, runs)


def appended(batch: int, start: int, began: int, acked: int) -> list[dict[str, object]]:
    return [
        {"event": "began", "at": began, "batch": batch},
        {"event": "acked", "at": acked, "batch": batch, "range": [start, start + ROWS], "repeated": False},
    ]


def test_B10_the_checker_accepts_what_is_right() -> None:
    log = log_of(("a", 0), ("b", 0), ("a", 1))
    read = {"event": "read", "at": 90, "range": [0, 9], "digest": digest(log.slice(0, 9))}
    events = {"a": appended(0, 0, 1, 20) + appended(1, 6, 21, 30), "b": appended(0, 3, 2, 25), "r": [read]}
    check_history(log, events, batches={"a": 2, "b": 1}, rows=ROWS)


@pytest.mark.parametrize(
    ("batches", "events", "said"),
    [
        ([("a", 0), ("a", 0)], {"a": appended(0, 0, 1, 2)}, "twice in the log"),
        ([("a", 1)], {}, "the log has"),
        ([("b", 0), ("a", 0)], {"a": appended(0, 0, 1, 2)}, "was told"),
        ([("a", 0), ("b", 0)], {"a": appended(0, 0, 5, 6), "b": appended(0, 3, 1, 2)}, "lies before"),
        ([("a", 0)], {"a": appended(0, 0, 1, 2), "r": [{"event": "head", "at": 9, "asked": 8, "head": 0}]}, "is older"),
        ([("a", 0)], {"r": [{"event": "read", "at": 9, "range": [0, 3], "digest": "other"}]}, "has moved"),
        ([("a", 0)], {"r": [{"event": "read", "at": 9, "range": [1, 3], "digest": ""}]}, "missed or repeated"),
    ],
)
def test_B10_the_checker_finds_what_is_wrong(
    batches: list[tuple[str, int]], events: dict[str, list[dict[str, object]]], said: str
) -> None:
    counts = {name: 1 for name, _ in batches}
    with pytest.raises(AssertionError, match=said):
        check_history(log_of(*batches), events, batches=counts, rows=ROWS)
