"""The commit file: the one module that writes them, and reads them back as values.

One action per line, exactly as the Delta protocol has it. Each commit of ours carries a record, one top-level key of
`commitInfo`: which table, which operation, and for an append the range, the time and the digest of what a wakeup may carry.
Pure: no I/O and no clock, so that every shape can be held against golden files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from importlib import metadata
from typing import Any

from trigger_core.errors import OutboxDamaged
from trigger_outbox.schema import OFFSET, PRODUCED_AT, TopicSchema

RECORD_VERSION = 1
FEATURE = "triggerOutbox"
OWN_PREFIX = "trigger."
TXN_OFFSET = "trigger.offset"
TXN_EARLIEST = "trigger.earliest"
TXN_PRODUCED_AT = "trigger.produced_at"
TXN_TURN = "trigger.turn"
TXN_DROPPED = "trigger.dropped"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def _engine() -> str:
    try:
        return f"pyspark-trigger/{metadata.version('pyspark-trigger')}"
    except metadata.PackageNotFoundError:
        return "pyspark-trigger/0"


ENGINE = _engine()


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file of the log. `start` and `end` come from its statistics; -1, -1 where it has none."""

    path: str
    size: int
    rows: int
    start: int
    end: int
    produced_min_us: int
    produced_max_us: int
    modified_ms: int

    @property
    def level(self) -> int:
        """How often its rows have been merged: the first folder of its path, `d0/…`."""
        head = self.path.partition("/")[0]
        return int(head[1:]) if head[:1] == "d" and head[1:].isdigit() else 0


@dataclass(frozen=True, slots=True)
class Record:
    """What we say of a commit in its `commitInfo`."""

    table: str
    operation: str
    kind: str
    """create · append · compact · trim · turn · drop · release"""
    start: int | None = None
    end: int | None = None
    produced_at_us: int | None = None
    payload_sha256: str | None = None
    turn_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = {"v": RECORD_VERSION, "table": self.table, "operation": self.operation, "kind": self.kind}
        if self.start is not None and self.end is not None:
            body |= {"start": self.start, "end": self.end, "rows": self.end - self.start, "produced_at": self.produced_at_us}
        if self.payload_sha256 is not None:
            body["payload_sha256"] = self.payload_sha256
        if self.turn_ms is not None:
            body["turn_ms"] = self.turn_ms
        return body


@dataclass(frozen=True, slots=True)
class Metadata:
    id: str
    schema: TopicSchema
    configuration: Mapping[str, str]
    raw: Mapping[str, Any] = field(compare=False, repr=False, hash=False, default_factory=dict)


@dataclass(frozen=True, slots=True)
class Protocol:
    reader: int
    writer: int
    reader_features: frozenset[str] = frozenset()
    writer_features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit file, parsed. `unknown` names what this version does not understand."""

    version: int
    record: Record | None
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txns: Mapping[str, int] = field(default_factory=dict)
    adds: tuple[DataFile, ...] = ()
    removes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def key_of(version: int) -> str:
    return f"_delta_log/{version:020}.json"


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def create_commit(record: Record, schema: TopicSchema, configuration: Mapping[str, str], now_ms: int) -> bytes:
    return _lines(
        _info(record, "CREATE TABLE", {}, now_ms, blind=True),
        {"protocol": _protocol_json(schema, guarded=True)},
        {
            "metaData": {
                "id": record.table,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": schema.delta_json,
                "partitionColumns": [],
                "configuration": dict(configuration),
                "createdTime": now_ms,
            }
        },
        _txn(TXN_OFFSET, 0, now_ms),
    )


def append_commit(
    record: Record,
    files: Iterable[DataFile],
    *,
    read_version: int,
    now_ms: int,
    txn: tuple[str, int] | None = None,
    metadata: Mapping[str, Any] | None = None,
    protocol: TopicSchema | None = None,
) -> bytes:
    """`metadata` is the old metaData object whole, with a new schemaString; `protocol` comes with a schema that needs another."""
    files = list(files)
    assert record.start is not None and record.end is not None and record.produced_at_us is not None
    metrics = {
        "numFiles": str(len(files)),
        "numOutputRows": str(record.end - record.start),
        "numOutputBytes": str(sum(file.size for file in files)),
    }
    actions = [
        _info(record, "WRITE", {"mode": "Append", "partitionBy": "[]"}, now_ms, read_version, blind=True, metrics=metrics),
        _txn(TXN_OFFSET, record.end, now_ms),
        _txn(TXN_PRODUCED_AT, record.produced_at_us, now_ms),
    ]
    if protocol is not None:
        actions.append({"protocol": _protocol_json(protocol, guarded=True)})
    if metadata is not None:
        actions.append({"metaData": dict(metadata)})
    if txn is not None:
        actions.append(_txn(*txn, now_ms))
    return _lines(*actions, *(_add(file, data_change=True) for file in files))


def compact_commit(
    record: Record, added: Iterable[DataFile], removed: Iterable[DataFile], *, read_version: int, now_ms: int
) -> bytes:
    parameters = {"predicate": "[]", "zOrderBy": "[]", "clusterBy": "[]", "auto": False}
    return _lines(
        _info(record, "OPTIMIZE", parameters, now_ms, read_version, blind=False, isolation="SnapshotIsolation"),
        *(_add(file, data_change=False) for file in added),
        *(_remove(file, now_ms, data_change=False) for file in removed),
    )


def trim_commit(record: Record, earliest: int, removed: Iterable[DataFile], *, read_version: int, now_ms: int) -> bytes:
    return _lines(
        _info(record, "DELETE", {"predicate": json.dumps([f"{OFFSET} < {earliest}"])}, now_ms, read_version, blind=False),
        _txn(TXN_EARLIEST, earliest, now_ms),
        *(_remove(file, now_ms, data_change=True) for file in removed),
    )


def turn_commit(record: Record, *, read_version: int, now_ms: int) -> bytes:
    assert record.turn_ms is not None
    info = _info(record, "WRITE", {"mode": "Append", "partitionBy": "[]"}, now_ms, read_version, blind=True)
    return _lines(info, _txn(TXN_TURN, record.turn_ms, now_ms))


def drop_commit(record: Record, *, read_version: int, now_ms: int) -> bytes:
    return _lines(_info(record, "DROP TABLE", {}, now_ms, read_version, blind=False), _txn(TXN_DROPPED, 1, now_ms))


def release_commit(record: Record, schema: TopicSchema, *, read_version: int, now_ms: int) -> bytes:
    info = _info(record, "DROP FEATURE", {"featureName": FEATURE}, now_ms, read_version, blind=False)
    return _lines(info, {"protocol": _protocol_json(schema, guarded=False)})


def _info(
    record: Record,
    operation: str,
    parameters: Mapping[str, Any],
    now_ms: int,
    read_version: int | None = None,
    *,
    blind: bool,
    isolation: str = "Serializable",
    metrics: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    info: dict[str, Any] = {"timestamp": now_ms, "operation": operation, "operationParameters": dict(parameters)}
    if read_version is not None:
        info |= {"readVersion": read_version, "isolationLevel": isolation}
    info |= {"isBlindAppend": blind, "operationMetrics": dict(metrics or {}), "engineInfo": ENGINE, "txnId": record.operation}
    return {"commitInfo": info | {"trigger": record.to_json()}}


def _protocol_json(schema: TopicSchema, *, guarded: bool) -> dict[str, Any]:
    writer = ["appendOnly", "invariants", *([FEATURE] if guarded else [])]
    if schema.has_timestamp_ntz:
        return {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": ["timestampNtz"],
            "writerFeatures": [*writer, "timestampNtz"],
        }
    if not guarded:
        return {"minReaderVersion": 1, "minWriterVersion": 2}
    return {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": writer}


def _txn(app_id: str, version: int, now_ms: int) -> dict[str, Any]:
    return {"txn": {"appId": app_id, "version": version, "lastUpdated": now_ms}}


def _add(file: DataFile, *, data_change: bool) -> dict[str, Any]:
    stats = {
        "numRecords": file.rows,
        "minValues": {OFFSET: file.start, PRODUCED_AT: iso_ms(file.produced_min_us)},
        "maxValues": {OFFSET: file.end - 1, PRODUCED_AT: iso_ms(file.produced_max_us)},
        "nullCount": {OFFSET: 0, PRODUCED_AT: 0},
    }
    return {
        "add": {
            "path": file.path,
            "partitionValues": {},
            "size": file.size,
            "modificationTime": file.modified_ms,
            "dataChange": data_change,
            "stats": json.dumps(stats, separators=(",", ":")),
        }
    }


def _remove(file: DataFile, now_ms: int, *, data_change: bool) -> dict[str, Any]:
    return {
        "remove": {
            "path": file.path,
            "deletionTimestamp": now_ms,
            "dataChange": data_change,
            "extendedFileMetadata": True,
            "partitionValues": {},
            "size": file.size,
        }
    }


def _lines(*actions: Mapping[str, Any]) -> bytes:
    return "".join(json.dumps(action, separators=(",", ":"), ensure_ascii=False) + "\n" for action in actions).encode()


def iso_ms(time_us: int) -> str:
    """Delta's statistics have milliseconds, cut off: a look-up by time must allow for one more."""
    moment = _EPOCH + timedelta(milliseconds=time_us // 1000)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03}Z"


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def parse_commit(version: int, body: bytes) -> Commit:
    """Any commit file as a value. An empty or unparsable one is `OutboxDamaged`: a torn write, or not Delta."""
    try:
        # Lines end with \n alone: a name or an application id may hold what else `splitlines` takes for an end.
        actions = [json.loads(line) for line in body.decode().split("\n") if line.strip()]
        if not actions:
            raise ValueError("it is empty")
        return _fold_actions(version, actions)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OutboxDamaged(
            f"commit {version} of {len(body)} bytes can't be read: {error}",
            "restore the file from a backup, or drop the topic; nothing was written",
            version=version,
        ) from error


def _fold_actions(version: int, actions: Iterable[Mapping[str, Any]]) -> Commit:
    record: Record | None = None
    protocol: Protocol | None = None
    table: Metadata | None = None
    txns: dict[str, int] = {}
    adds: list[DataFile] = []
    removes: list[str] = []
    unknown: list[str] = []
    for action in actions:
        ((name, body),) = action.items()
        if name == "commitInfo":
            record = parse_record(body.get("trigger"), body)
        elif name == "protocol":
            protocol = Protocol(
                body["minReaderVersion"],
                body["minWriterVersion"],
                frozenset(body.get("readerFeatures") or ()),
                frozenset(body.get("writerFeatures") or ()),
            )
        elif name == "metaData":
            table = Metadata(body["id"], TopicSchema(body["schemaString"]), dict(body.get("configuration") or {}), body)
            if body.get("partitionColumns"):
                unknown.append("partition columns")
        elif name == "txn":
            txns[body["appId"]] = int(body["version"])
        elif name == "add":
            adds.append(parse_add(body))
            if body.get("deletionVector"):
                unknown.append("a deletion vector")
        elif name == "remove":
            removes.append(body["path"])
        else:
            unknown.append(f"the action {name!r}")
    return Commit(version, record, protocol, table, txns, tuple(adds), tuple(removes), tuple(unknown))


def parse_record(body: Mapping[str, Any] | None, info: Mapping[str, Any]) -> Record | None:
    if body is None:
        return None
    if body["v"] != RECORD_VERSION:
        raise ValueError(f"its record has version {body['v']}, this is {ENGINE} and knows {RECORD_VERSION}: upgrade")
    return Record(
        table=body["table"],
        operation=body["operation"],
        kind=body["kind"],
        start=body.get("start"),
        end=body.get("end"),
        produced_at_us=body.get("produced_at"),
        payload_sha256=body.get("payload_sha256"),
        turn_ms=body.get("turn_ms"),
    )


def parse_add(body: Mapping[str, Any]) -> DataFile:
    stats = json.loads(body.get("stats") or "{}")
    low, high = stats.get("minValues") or {}, stats.get("maxValues") or {}
    known = OFFSET in low and OFFSET in high and "numRecords" in stats
    return DataFile(
        path=body["path"],
        size=int(body["size"]),
        rows=int(stats["numRecords"]) if known else -1,
        start=int(low[OFFSET]) if known else -1,
        end=int(high[OFFSET]) + 1 if known else -1,
        produced_min_us=_us(low[PRODUCED_AT]) if known and PRODUCED_AT in low else 0,
        produced_max_us=_us(high[PRODUCED_AT]) if known and PRODUCED_AT in high else 2**62,
        modified_ms=int(body["modificationTime"]),
    )


def _us(text: str) -> int:
    moment = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return (moment - _EPOCH) // timedelta(microseconds=1)
