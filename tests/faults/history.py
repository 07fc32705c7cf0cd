"""Recorded histories and their checker: what every process says it did, held against what the log says in the end.

A history is linearisable if each acknowledged append is in the log once, whole, where its writer was told, and if an append that
began after another was acknowledged (or read) lies behind it. Clocks are one: CLOCK_MONOTONIC of this host, in ns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from offsets import OffsetRange
from trigger_outbox import Outbox

SCHEMA = pa.schema([pa.field("writer", pa.string()), pa.field("batch", pa.int64()), pa.field("row", pa.int64())])


def rows_of(writer: str, batch: int, rows: int) -> pa.Table:
    """A batch whose every row says where it belongs."""
    return pa.table({"writer": [writer] * rows, "batch": [batch] * rows, "row": list(range(rows))}, schema=SCHEMA)


def digest(table: pa.Table) -> str:
    """Of the offsets and the content, whatever the chunks."""
    columns = [table.column(name).to_pylist() for name in ("_offset", *SCHEMA.names)]
    return hashlib.sha256(json.dumps(columns).encode()).hexdigest()


@dataclass(frozen=True)
class Run:
    """One batch as it lies in the log."""

    writer: str
    batch: int
    start: int
    end: int


@dataclass(frozen=True)
class Log:
    """All that can be read of a topic, from `earliest` on."""

    table: pa.Table
    earliest: int
    runs: tuple[Run, ...]

    def slice(self, start: int, end: int) -> pa.Table:
        return self.table.slice(start - self.earliest, end - start)

    @property
    def batches(self) -> list[tuple[str, int]]:
        return [(run.writer, run.batch) for run in self.runs]


def read_log(outbox: Outbox) -> Log:
    """Reads the topic whole with a fresh state, and audits it: dense, unique, ordered, sums right."""
    state = outbox.follower.reopen()
    audit = outbox.verify()
    assert audit.ok, audit.problems
    table = pa.Table.from_batches(outbox.read(OffsetRange(state.earliest, state.end)), state.metadata.schema.arrow)
    assert table.column("_offset").to_pylist() == list(range(state.earliest, state.end))
    return Log(table, state.earliest, tuple(_runs(table)))


def _runs(table: pa.Table) -> Iterable[Run]:
    """Cuts the log into batches; one that is torn, mixed or out of order is an error. The first may be trimmed."""
    columns = (table.column(name).to_pylist() for name in ("_offset", *SCHEMA.names))
    current: list[Any] | None = None
    for offset, writer, batch, row in zip(*columns, strict=True):
        if current is not None and current[:2] == [writer, batch] and row == current[4]:
            current[3], current[4] = offset + 1, row + 1
            continue
        if current is not None:
            yield Run(*current[:4])
        assert row == 0 or current is None, f"offset {offset} is row {row} of {writer}'s batch {batch} without those before it"
        current = [writer, batch, offset, offset + 1, row + 1]
    if current is not None:
        yield Run(*current[:4])


def read_events(records: Iterable[Path]) -> dict[str, list[dict[str, Any]]]:
    """By name of the process; one that was killed and started again has one file."""
    return {path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in records if path.exists()}


def check_history(log: Log, events: dict[str, list[dict[str, Any]]], *, batches: dict[str, int], rows: int) -> None:
    """Raises AssertionError with the first contradiction. `batches`: how many each writer was to write."""
    check_once(log, batches, rows)
    where = {(run.writer, run.batch): run for run in log.runs}
    known: list[tuple[int, int, str]] = []  # (from when, the end that was known then, by whom)
    appends: list[tuple[int, int, str]] = []  # (began, start, whose)
    heads: list[tuple[int, int, str]] = []
    for name, story in events.items():
        began: dict[int, int] = {}
        position = 0
        for event in story:
            if event["event"] == "began":
                began[event["batch"]] = event["at"]
            elif event["event"] == "acked":
                run = where[(name, event["batch"])]
                if event["range"] is not None:
                    told = tuple(event["range"])
                    there = (run.start, run.end)
                    assert told == there, f"{name} was told {told} for batch {run.batch}, it is at {there}"
                    appends.append((began[run.batch], run.start, f"{name}/{run.batch}"))
                known.append((event["at"], run.end, f"{name}/{run.batch}"))
            elif event["event"] == "head":
                heads.append((event["asked"], event["head"], name))
                known.append((event["at"], event["head"], name))
            elif event["event"] == "read":
                start, end = event["range"]
                assert start == position, f"reader {name} went from {position} to {start}: missed or repeated"
                assert event["digest"] == digest(log.slice(start, end)), f"what reader {name} saw at {start} to {end} has moved"
                position = end
    _check_order(known, appends, "lies before what had been acknowledged or read when it began")
    _check_order(known, heads, "is older than what had been acknowledged or read when it was asked")


def check_once(log: Log, batches: dict[str, int], rows: int) -> None:
    """Every batch of every writer, once, whole, and each writer's in its own order."""
    found = log.batches
    assert len(found) == len(set(found)), f"twice in the log: {sorted(each for each in set(found) if found.count(each) > 1)[:5]}"
    for run in log.runs:
        assert run.end - run.start == rows, f"batch {run.batch} of {run.writer} has {run.end - run.start} rows of {rows}"
    for writer, count in batches.items():
        own = [batch for name, batch in found if name == writer]
        assert own == list(range(count)), f"{writer} wrote 0 to {count}, the log has {own}"


def _check_order(known: list[tuple[int, int, str]], later: list[tuple[int, int, str]], what: str) -> None:
    """Real time: whatever was known before something began is not beyond where that begins."""
    known = sorted(known)
    highest, by, index = 0, "", 0
    for moment, start, whose in sorted(later):
        while index < len(known) and known[index][0] < moment:
            if known[index][1] > highest:
                highest, by = known[index][1], known[index][2]
            index += 1
        assert start >= highest, f"{whose} at {start} {what}: {by} was up to {highest}"
