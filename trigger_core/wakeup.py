"""The wakeup and its bytes: a hint that commit `version` of a topic may be read, with the rows when they are few.

Owns the wire form, which every broker carries unchanged:

    TRG1 | format version: u8 | header length: u32, big endian | header: JSON, UTF-8 | payload: raw bytes

Decoding trusts nothing: lengths are checked before anything is sliced, the payload against its length and sha256, every
field by type and range. The payload itself (Arrow IPC) is never opened here; whoever opens it first compares
`payload_sha256` with the commit's. Never pickle.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from trigger_core.errors import MalformedWakeup

MAGIC = b"TRG1"
FORMAT_VERSION = 1
_PREFIX = struct.Struct(">4sBI")

INTEGER_MAX = 2**63 - 1
PARTITION_MAX = 2**31 - 1
PARTITIONS_COUNT_MAX = 1024
TRACE_COUNT_MAX = 16
TRACE_BYTES_MAX = 8 * 1024
# Trace text may grow sixfold as JSON escapes and partitions take 11 characters each: every valid wakeup's header fits.
HEADER_BYTES_MAX = 64 * 1024
# As much as one hot input partition may carry.
PAYLOAD_BYTES_MAX = 4 * 1024 * 1024
WAKEUP_BYTES_MAX = _PREFIX.size + HEADER_BYTES_MAX + PAYLOAD_BYTES_MAX

_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class Wakeup:
    """One commit's news: `[start, end)` of `topic_id` landed in Delta version `version`.

    `partitions` are the touched ones, None when unknown or too many to list. `trace` is W3C trace context. `payload` is
    the rows as Arrow IPC, None for a pointer. Whatever breaks a bound raises `MalformedWakeup`, here as in `decode`.
    """

    version: int
    topic_id: str
    start: int
    end: int
    schema: str
    partitions: tuple[int, ...] | None = None
    trace: dict[str, str] = field(default_factory=dict, hash=False)
    # Rows don't belong in a log line.
    payload: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        _check_integer("version", self.version, INTEGER_MAX)
        _check_token("topic_id", self.topic_id)
        _check_integer("start", self.start, INTEGER_MAX)
        _check_integer("end", self.end, INTEGER_MAX)
        if self.start > self.end:
            raise _malformed("field", f"start {self.start} is beyond end {self.end}")
        _check_token("schema", self.schema)
        _check_partitions(self.partitions)
        _check_trace(self.trace)
        # A copy: what was checked must stay what is sent.
        object.__setattr__(self, "trace", dict(self.trace))
        if self.payload is not None:
            if not isinstance(self.payload, bytes):
                raise _malformed("field", f"payload is {type(self.payload).__name__}, not bytes")
            if len(self.payload) > PAYLOAD_BYTES_MAX:
                raise _malformed("oversize", f"payload of {len(self.payload)} bytes is over {PAYLOAD_BYTES_MAX}")

    @property
    def id(self) -> str:
        """The same for every attempt to send the same range, so that brokers can drop duplicates."""
        return f"{self.topic_id}:{self.start}-{self.end}"

    @cached_property
    def payload_sha256(self) -> str | None:
        """Hex digest of the payload; `decode` has computed it already, so that comparing it with the commit's is free."""
        return None if self.payload is None else hashlib.sha256(self.payload).hexdigest()

    def without_payload(self) -> Wakeup:
        """The pointer: the same news, the rows to be read from Delta."""
        return self if self.payload is None else replace(self, payload=None)


def encode(wakeup: Wakeup) -> bytes:
    """The canonical bytes of `wakeup`; never fails for one that could be built."""
    payload = None
    if wakeup.payload is not None:
        payload = {"bytes": len(wakeup.payload), "sha256": wakeup.payload_sha256}
    fields = {
        "version": wakeup.version,
        "topic": wakeup.topic_id,
        "start": wakeup.start,
        "end": wakeup.end,
        "schema": wakeup.schema,
        "partitions": wakeup.partitions,
        "trace": wakeup.trace,
        "payload": payload,
    }
    header = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    assert len(header) <= HEADER_BYTES_MAX, "the bounds on the fields no longer imply the bound on the header"
    return b"".join((_PREFIX.pack(MAGIC, FORMAT_VERSION, len(header)), header, wakeup.payload or b""))


def decode(raw: bytes) -> Wakeup:
    """The wakeup in `raw`, every byte of it accounted for; else `MalformedWakeup`, whose `facts["reason"]` is one of
    `magic`, `version`, `truncated`, `trailing`, `oversize`, `header`, `field`, `digest`.

    Unknown header fields are ignored: a later release may add a hint without a new format version.
    """
    if len(raw) > WAKEUP_BYTES_MAX:
        raise _malformed("oversize", f"{len(raw)} bytes are over {WAKEUP_BYTES_MAX}")
    if not MAGIC.startswith(raw[: len(MAGIC)]):
        raise _malformed("magic", f"starts with {raw[: len(MAGIC)]!r}, not {MAGIC!r}")
    if len(raw) < _PREFIX.size:
        raise _malformed("truncated", f"{len(raw)} bytes, the prefix alone has {_PREFIX.size}")
    _, format_version, header_bytes = _PREFIX.unpack_from(raw)
    if format_version != FORMAT_VERSION:
        raise _malformed(
            "version",
            f"format version {format_version}, this release knows {FORMAT_VERSION}",
            "upgrade pyspark-trigger on the reading side",
        )
    if header_bytes > HEADER_BYTES_MAX:
        raise _malformed("oversize", f"a header of {header_bytes} bytes is over {HEADER_BYTES_MAX}")
    payload_start = _PREFIX.size + header_bytes
    if len(raw) < payload_start:
        raise _malformed("truncated", f"{len(raw)} bytes, prefix and header have {payload_start}")
    header = _parse_header(raw[_PREFIX.size : payload_start])
    payload, sha256 = _take_payload(header.get("payload"), raw, payload_start)
    partitions = header.get("partitions")
    wakeup = Wakeup(
        version=header.get("version"),  # type: ignore[arg-type]  # __post_init__ checks what JSON made of it
        topic_id=header.get("topic"),  # type: ignore[arg-type]
        start=header.get("start"),  # type: ignore[arg-type]
        end=header.get("end"),  # type: ignore[arg-type]
        schema=header.get("schema"),  # type: ignore[arg-type]
        partitions=tuple(partitions) if isinstance(partitions, list) else partitions,  # type: ignore[arg-type]
        trace=header.get("trace"),  # type: ignore[arg-type]
        payload=payload,
    )
    if wakeup.payload_sha256 != sha256:
        raise _malformed("digest", "the payload is not the one its header describes")
    return wakeup


def _parse_header(text: bytes) -> dict[str, object]:
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _malformed("header", f"the header is no JSON of ours ({type(error).__name__})") from error
    if not isinstance(header, dict):
        raise _malformed("header", f"the header is a {type(header).__name__}, not an object")
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two values for one key would let two readers see two wakeups."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _take_payload(described: object, raw: bytes, payload_start: int) -> tuple[bytes | None, str | None]:
    found = len(raw) - payload_start
    if described is None:
        if found:
            raise _malformed("trailing", f"{found} bytes follow a wakeup without payload")
        return None, None
    if not isinstance(described, dict):
        raise _malformed("field", f"payload is described by a {type(described).__name__}")
    size, sha256 = described.get("bytes"), described.get("sha256")
    _check_integer("payload.bytes", size, PAYLOAD_BYTES_MAX)
    if not isinstance(sha256, str):
        raise _malformed("field", "payload.sha256 is no text")
    if found != size:
        raise _malformed("truncated" if found < size else "trailing", f"{found} payload bytes where the header says {size}")  # type: ignore[operator]
    return raw[payload_start:], sha256


def _check_integer(name: str, value: object, most: int) -> None:
    # bool is an int to isinstance, and `true` in a header is no offset.
    if type(value) is not int or not 0 <= value <= most:
        raise _malformed("field", f"{name} is {_shown(value)}, not a whole number from 0 to {most}")


def _check_token(name: str, value: object) -> None:
    if not isinstance(value, str) or not _TOKEN.fullmatch(value):
        raise _malformed("field", f"{name} is {_shown(value)}, not 1 to 128 of A-Z a-z 0-9 . _ -")


def _check_partitions(partitions: object) -> None:
    if partitions is None:
        return
    if not isinstance(partitions, tuple):
        raise _malformed("field", f"partitions are a {type(partitions).__name__}, not a tuple")
    if len(partitions) > PARTITIONS_COUNT_MAX:
        raise _malformed(
            "field", f"{len(partitions)} partitions are over {PARTITIONS_COUNT_MAX}", "send None: any partition may be touched"
        )
    for partition in partitions:
        _check_integer("a partition", partition, PARTITION_MAX)


def _check_trace(trace: object) -> None:
    if not isinstance(trace, dict) or len(trace) > TRACE_COUNT_MAX:
        raise _malformed("field", f"trace is {_shown(trace)}, not a dict of at most {TRACE_COUNT_MAX} texts")
    size = 0
    for text in (*trace.keys(), *trace.values()):
        if not isinstance(text, str):
            raise _malformed("field", f"trace holds {_shown(text)}, not text")
        try:
            size += len(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise _malformed("field", "trace holds text that is no Unicode") from error
    if size > TRACE_BYTES_MAX:
        raise _malformed("field", f"trace of {size} bytes is over {TRACE_BYTES_MAX}")


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _malformed(reason: str, problem: str, cure: str = "nothing is lost: the rows are read from Delta") -> MalformedWakeup:
    return MalformedWakeup(f"no valid wakeup: {problem}", cure, reason=reason)
