"""Every option of the source and the sink: the one place where option strings are read.

`SourceOptions` and `SinkOptions` are typed and frozen; `from_spark` reads what a user gave, in any case, refuses what it does not
know with the nearest name it does, and what contradicts itself. The README's table is rendered from the fields here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

from trigger_core.errors import InvalidOffset, InvalidOption
from trigger_core.names import check_name
from trigger_core.wakeup import PAYLOAD_BYTES_MAX

LATER = "0.1.0"
"""The version in which the options marked `later` are not there yet."""
OFFSET_MAX = 2**63 - 1
DURATION_MS_MAX = 365 * 86_400_000
SIZE_BYTES_MAX = 2**50
DIGITS_MAX = 19
"""A number of more digits is beyond 2^63; Python refuses to read very long ones with an error that names no option."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_DRIVERS = ("nats", "kafka", "redis")
"""Their client libraries' own options: `nats.*` is short for `broker.nats.*`."""
_PREFIXES = ("broker.", "storage.", *(f"{driver}." for driver in _DRIVERS))
_SIZE = re.compile(r"(\d+)\s*([kmg]?)(?:i?b)?", re.IGNORECASE)
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h|d)?", re.IGNORECASE)
_TIME = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(?::(\d\d)(?:\.(\d{1,6}))?)?\s?([Zz]|[+-]\d\d:\d\d)?)?", re.ASCII)
_DURATION_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE_BYTES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
Options = TypeVar("Options", "SourceOptions", "SinkOptions")


def _option(
    name: str,
    default: Any,
    parse: Callable[[str, str], Any],
    meaning: str,
    *,
    shown: str = "",
    later: bool = False,
    only: str = "",
    printed: bool = True,
) -> Any:
    """A field that is a user's option. `only`: "stream" or "batch". `printed`: whether the repr may show it."""
    metadata = {"name": name, "parse": parse, "meaning": meaning, "shown": shown, "later": later, "only": only}
    return field(default=default, repr=printed, metadata=metadata)


def _text(name: str, value: str) -> str:
    if not value:
        raise InvalidOption(f"{name} is empty", "give it a value, or leave it out", option=name)
    return value


def _path(name: str, value: str) -> str:
    if re.match(r"[A-Za-z0-9+.-]+://[^/@]*:[^/@]*@", value):
        raise InvalidOption(
            "the path has credentials in it, and Spark prints options",
            "pass them as storage.* or in the environment",
            option=name,
        )
    return _text(name, value)


def _flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise InvalidOption(f"{name} is {value!r}", "give true or false", option=name)
    return value.lower() == "true"


def _whole(value: str) -> int | None:
    """The number that `value` spells in ASCII digits, None if it is none or absurdly long."""
    digits = value.lstrip("0") or "0"
    return int(digits) if re.fullmatch(r"[0-9]+", value) and len(digits) <= DIGITS_MAX else None


def _count(name: str, value: str) -> int:
    count = _whole(value)
    if count is None or not 1 <= count <= OFFSET_MAX:
        raise InvalidOption(f"{name} is {value!r}", "give a whole number of at least 1", option=name)
    return count


def _number(name: str, value: str) -> int:
    number = _whole(value)
    if number is None or number > OFFSET_MAX:
        raise InvalidOption(f"{name} is {value!r}", "give a whole number from 0 to 2^63 - 1", option=name)
    return number


def _size(name: str, value: str, bytes_max: int = SIZE_BYTES_MAX) -> int:
    match = _SIZE.fullmatch(value.strip())
    number = _whole(match[1]) if match else None
    if match is None or number is None:
        raise InvalidOption(f"{name} is {value!r}", "give bytes, or a size such as 256k, 64m, 1g", option=name)
    size = number * _SIZE_BYTES[match[2].lower()]
    if size > bytes_max:
        raise InvalidOption(f"{name} is {value!r}", f"give at most {bytes_max} bytes", option=name)
    return size


def _positive_size(name: str, value: str) -> int:
    size = _size(name, value)
    if size == 0:
        raise InvalidOption(f"{name} is {value!r}", "give at least 1 byte", option=name)
    return size


def _payload_size(name: str, value: str) -> int:
    return _size(name, value, PAYLOAD_BYTES_MAX)


def _milliseconds(name: str, value: str) -> int:
    match = _DURATION.fullmatch(value.strip())
    number = _whole(match[1]) if match else None
    if match is None or number is None:
        raise InvalidOption(f"{name} is {value!r}", "give milliseconds, or a duration such as 500ms, 15s, 5m", option=name)
    duration_ms = number * _DURATION_MS[(match[2] or "ms").lower()]
    if duration_ms > DURATION_MS_MAX:
        raise InvalidOption(f"{name} is {value!r}", "give at most 365d", option=name)
    return duration_ms


def _interval(name: str, value: str) -> int:
    interval_ms = _milliseconds(name, value)
    if interval_ms == 0:
        raise InvalidOption(f"{name} is {value!r}, which never rests", "give at least 1 ms", option=name)
    return interval_ms


def _start(name: str, value: str) -> str | int:
    if value.lower() in ("earliest", "latest"):
        return value.lower()
    if value.lower() == "snapshot":
        raise InvalidOption(
            f"{name}=snapshot is not available yet in version {LATER}", "give earliest, latest or an offset", option=name
        )
    if re.fullmatch(r"[+-]?[0-9]+", value):
        offset = _whole(value)
        if offset is None or offset > OFFSET_MAX:
            raise InvalidOffset(f"{name} {value[:40]} is out of range", "give a number from 0 to 2^63 - 1", option=name)
        return offset
    raise InvalidOption(f"{name} is {value!r}", "give earliest, latest or an offset", option=name)


def _moment(name: str, value: str) -> int:
    """Microseconds: from epoch milliseconds, as Kafka has them, or an ISO time, UTC if it has no zone."""
    milliseconds = _whole(value)
    if milliseconds is not None and milliseconds * 1000 <= OFFSET_MAX:
        return milliseconds * 1000
    match = _TIME.fullmatch(value.strip())
    try:
        if match is None:
            raise ValueError(value)
        day, clock, seconds, fraction, zone = match.groups()
        # Spelt out in full: Python 3.10 reads neither a Z nor a fraction of other than 3 or 6 digits.
        zone = "+00:00" if zone in (None, "Z", "z") else zone
        moment = datetime.fromisoformat(f"{day}T{clock or '00:00'}:{seconds or '00'}.{(fraction or '').ljust(6, '0')}{zone}")
    except ValueError:
        raise InvalidOption(
            f"{name} is {value!r}", "give epoch milliseconds or a time such as 2026-11-18T12:00:00Z", option=name
        ) from None
    # In whole numbers: a float of seconds is off by a microsecond at today's dates.
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _columns(name: str, value: str) -> tuple[str, ...]:
    columns = tuple(column.strip() for column in value.split(","))
    if not all(columns) or len(set(columns)) != len(columns):
        raise InvalidOption(f"{name} is {value!r}", "give names separated by commas, each once", option=name)
    return columns


def _recovery(name: str, value: str) -> str:
    if value.lower() in ("skip", "reset"):
        raise InvalidOption(f"{name}={value.lower()} is not available yet in version {LATER}", "leave it out", option=name)
    if value.lower() != "strict":
        raise InvalidOption(f"{name} is {value!r}", "give strict", option=name)
    return value.lower()


def _topic(name: str, value: str) -> str:
    return check_name(value, "topic")


def _secret_mapping() -> Any:
    return field(default_factory=dict, repr=False)  # may hold keys and passwords


@dataclass(frozen=True)
class SourceOptions:
    """Its repr shows no secret: not `broker.*`, not `storage.*`, not the broker's URL, which the registry has not checked yet."""

    path: str = _option(
        "path", "", _path, "where the topic lives: a folder, or a URL such as `s3://bucket/prefix`", shown="required"
    )
    topic: str = _option("topic", "", _topic, "the topic's name", shown="required")
    broker: str = _option(
        "broker", "local:", _text, "how readers are woken: `local:` or `none:`; its settings are `broker.*`", printed=False
    )
    starting_offsets: str | int | None = _option(
        "startingOffsets", None, _start, "`earliest`, `latest` or an offset", shown="`latest` (stream), `earliest` (batch)"
    )
    ending_offsets: str | int | None = _option("endingOffsets", None, _start, "exclusive", shown="`latest`", only="batch")
    starting_timestamp_us: int | None = _option("startingTimestamp", None, _moment, "first offset with `_produced_at` ≥ t")
    ending_timestamp_us: int | None = _option("endingTimestamp", None, _moment, "exclusive, by `_produced_at`", only="batch")
    max_offsets: int | None = _option("maxOffsetsPerTrigger", None, _count, "most rows of a batch", only="stream")
    min_offsets: int | None = _option("minOffsetsPerTrigger", None, _count, "wait for so many rows", only="stream")
    max_trigger_delay_ms: int | None = _option(
        "maxTriggerDelay", None, _milliseconds, "… but no longer than this", shown="15m", only="stream"
    )
    max_bytes: int | None = _option(
        "maxBytesPerTrigger", None, _positive_size, "most bytes of a batch, by whole files", only="stream"
    )
    min_partitions: int | None = _option("minPartitions", None, _count, "least tasks of a replay", shown="by size")
    max_records_per_partition: int | None = _option(
        "maxRecordsPerPartition", None, _count, "most rows of a task", shown="by size"
    )
    columns: tuple[str, ...] | None = _option("columns", None, _columns, "only these, separated by commas", shown="all")
    fail_on_data_loss: bool = _option("failOnDataLoss", True, _flag, "stop if Delta lost rows that were not read")
    recovery: str = _option("recovery", "strict", _recovery, "what to do then: `strict`")
    push_filters: bool = _option(
        "pushFilters", False, _flag, "skip files by filters on `_offset` and `_produced_at`", only="batch"
    )
    poll_interval_ms: int = _option("pollIntervalMs", 1000, _interval, "how often the log is asked when no wakeup comes")
    wakeup_wait_ms: int = _option("wakeupWaitMs", 100, _milliseconds, "how long a trigger waits for news", only="stream")
    cache_bytes: int = _option(
        "cacheBytes", 64 * 1024**2, _size, "most bytes of fresh rows held in memory", shown="64m", only="stream"
    )
    erased: str | None = _option("erased", None, _text, "", later=True)
    consumer: str | None = _option("consumer", None, _text, "", later=True)
    predicate: str | None = _option("predicate", None, _text, "", later=True)
    tenant: str | None = _option("tenant", None, _text, "", later=True)
    partitions: str | None = _option("partitions", None, _text, "", later=True)
    broker_options: Mapping[str, str] = _secret_mapping()
    storage: Mapping[str, str] = _secret_mapping()

    @classmethod
    def from_spark(cls, given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
        """Reads a user's options. Raises `InvalidOption`, `InvalidOffset` or `InvalidName`, naming the option and the cure."""
        options = _read(cls, given, "stream" if streaming else "batch")
        if options.starting_offsets is not None and options.starting_timestamp_us is not None:
            raise InvalidOption("startingOffsets and startingTimestamp both say where to start", "give one of them")
        if options.ending_offsets is not None and options.ending_timestamp_us is not None:
            raise InvalidOption("endingOffsets and endingTimestamp both say where to end", "give one of them")
        if options.ending_offsets == "earliest":
            raise InvalidOption(
                "endingOffsets is 'earliest', which reads nothing", "give latest or an offset", option="endingOffsets"
            )
        if not options.fail_on_data_loss:
            raise InvalidOption(
                f"failOnDataLoss=false needs a recovery other than strict, not available yet in version {LATER}", "leave it out"
            )
        if options.min_offsets and options.max_offsets and options.min_offsets > options.max_offsets:
            raise InvalidOption(
                f"minOffsetsPerTrigger {options.min_offsets} is beyond maxOffsetsPerTrigger {options.max_offsets}",
                "lower the first or raise the second",
            )
        if options.max_trigger_delay_ms is not None and options.min_offsets is None:
            raise InvalidOption("maxTriggerDelay means nothing without minOffsetsPerTrigger", "give both, or neither")
        return options


@dataclass(frozen=True)
class SinkOptions:
    """Its repr shows no secret, as that of `SourceOptions`."""

    path: str = _option(
        "path", "", _path, "where the topic lives: a folder, or a URL such as `s3://bucket/prefix`", shown="required"
    )
    topic: str = _option("topic", "", _topic, "the topic's name; created if it is missing", shown="required")
    broker: str = _option(
        "broker", "local:", _text, "how readers are woken: `local:` or `none:`; its settings are `broker.*`", printed=False
    )
    wakeup_payload_bytes: int = _option(
        "wakeupPayloadBytes", 256 * 1024, _payload_size, "rows up to this size travel in the wakeup", shown="256k"
    )
    inline_bytes: int = _option(
        "inlineBytes", 32 * 1024, _size, "task output up to this size travels in Spark's message", shown="32k"
    )
    publish_timeout_ms: int = _option("publishTimeoutMs", 100, _milliseconds, "longest wait for the broker, after the commit")
    txn_app_id: str | None = _option(
        "txnAppId", None, _text, "with `txnVersion`: an idempotent batch write, as in Delta", only="batch"
    )
    txn_version: int | None = _option(
        "txnVersion", None, _number, "written once per `txnAppId`, if higher than the last", only="batch"
    )
    merge_schema: bool = _option("mergeSchema", False, _flag, "new columns are added; else a changed schema is an error")
    # Spark hands these two to every stream's sink.
    checkpoint_location: str | None = _option("checkpointLocation", None, _text, "Spark's own", only="stream")
    query_name: str | None = _option("queryName", None, _text, "Spark's own", only="stream")
    tenant: str | None = _option("tenant", None, _text, "", later=True)
    partition_by: str | None = _option("partitionBy", None, _text, "", later=True)
    live_key: str | None = _option("liveKey", None, _text, "", later=True)
    live_delete: str | None = _option("liveDelete", None, _text, "", later=True)
    retention_ms: str | None = _option("retentionMs", None, _text, "", later=True)
    retention_bytes: str | None = _option("retentionBytes", None, _text, "", later=True)
    retention_rows: str | None = _option("retentionRows", None, _text, "", later=True)
    broker_options: Mapping[str, str] = _secret_mapping()
    storage: Mapping[str, str] = _secret_mapping()

    @classmethod
    def from_spark(cls, given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
        """Reads a user's options. Raises `InvalidOption` or `InvalidName`, naming the option and the cure."""
        options = _read(cls, given, "stream" if streaming else "batch")
        if (options.txn_app_id is None) != (options.txn_version is None):
            missing = "txnAppId" if options.txn_app_id is None else "txnVersion"
            raise InvalidOption(
                f"{missing} is missing: txnAppId and txnVersion go together", "give both or neither", option=missing
            )
        if options.txn_app_id is not None and options.txn_app_id.startswith("trigger."):
            raise InvalidOption(
                f"txnAppId {options.txn_app_id!r} begins with 'trigger.', which is the engine's own",
                "choose another id",
                option="txnAppId",
            )
        return options

    @property
    def txn(self) -> tuple[str, int] | None:
        return None if self.txn_app_id is None or self.txn_version is None else (self.txn_app_id, self.txn_version)


def _read(kind: type[Options], given: Mapping[str, str], mode: str) -> Options:
    known = {item.metadata["name"].lower(): item for item in fields(kind) if "name" in item.metadata}
    values: dict[str, Any] = {"broker_options": {}, "storage": {}}
    seen: dict[str, str] = {}
    for name, value in given.items():
        lowered = name.lower()
        if lowered in seen:
            raise InvalidOption(f"options {seen[lowered]!r} and {name!r} differ by case only", "give one of them", option=name)
        if lowered in _PREFIXES:
            raise InvalidOption(f"option {name!r} names nothing after its dot", "give the rest of the name", option=name)
        seen[lowered] = name
        if lowered.startswith(_PREFIXES):
            prefix, _, rest = lowered.partition(".")
            values["storage" if prefix == "storage" else "broker_options"][lowered if prefix in _DRIVERS else rest] = str(value)
        elif lowered in known:
            item = known[lowered]
            _refuse_misplaced(item.metadata, mode)
            values[item.name] = item.metadata["parse"](item.metadata["name"], str(value))
        else:
            _refuse_unknown(name, [item.metadata["name"] for item in known.values()])
    for name in ("path", "topic"):
        if name not in values:
            raise InvalidOption(f"option {name!r} is missing", f'add .option("{name}", …)', option=name)
    return kind(**values)


def _refuse_misplaced(metadata: Mapping[str, Any], mode: str) -> None:
    name = metadata["name"]
    if metadata["later"]:
        raise InvalidOption(f"option {name!r} is not available yet in version {LATER}", "leave it out", option=name)
    if metadata["only"] not in ("", mode):
        other = {"stream": "streams", "batch": "batch jobs"}[metadata["only"]]
        raise InvalidOption(f"option {name!r} is for {other} only", "leave it out", option=name, misplaced=True)


def _refuse_unknown(name: str, known: list[str]) -> None:
    near = difflib.get_close_matches(name.lower(), [each.lower() for each in known], n=1, cutoff=0.5)
    hint = next((each for each in known if near and each.lower() == near[0]), None)
    raise InvalidOption(
        f"there is no option {name!r}", f"did you mean {hint!r}?" if hint else "see the README's table", option=name
    )


def options_table() -> str:
    """The README's table of options, in Markdown."""
    rows: dict[str, tuple[str, str, str, str]] = {}
    for kind, side in ((SourceOptions, "source"), (SinkOptions, "sink")):
        for item in fields(kind):
            metadata = item.metadata
            if "name" not in metadata or metadata["later"] or metadata["meaning"] == "Spark's own":
                continue
            name = metadata["name"]
            where = f"{metadata['only']} {side}".strip()
            if name in rows:
                rows[name] = (name, "both", rows[name][2], rows[name][3])
            else:
                rows[name] = (name, where, metadata["shown"] or _shown(item.default), metadata["meaning"])
    lines = ["| option | side | default | meaning |", "|---|---|---|---|"]
    lines += [f"| `{name}` | {side} | {default} | {meaning} |" for name, side, default, meaning in rows.values()]
    lines.append("| `storage.*` | both | – | handed to obstore and delta-rs |")
    return "\n".join(lines) + "\n"


def _shown(default: Any) -> str:
    if default is None:
        return "–"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"
