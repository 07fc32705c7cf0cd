"""The wakeup codec: whatever was encoded decodes to the same, and nothing else decodes."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trigger_core.errors import MalformedWakeup
from trigger_core.wakeup import (
    FORMAT_VERSION,
    HEADER_BYTES_MAX,
    INTEGER_MAX,
    PARTITION_MAX,
    PARTITIONS_COUNT_MAX,
    PAYLOAD_BYTES_MAX,
    TRACE_BYTES_MAX,
    TRACE_COUNT_MAX,
    WAKEUP_BYTES_MAX,
    Wakeup,
    decode,
    encode,
)

PAYLOAD = b"some rows"
WAKEUP = Wakeup(12, "9f3c", 100, 103, "fp-1", (0, 7), {"traceparent": "00-ab-cd-01"}, PAYLOAD)
HEADER: dict[str, Any] = {
    "version": 12,
    "topic": "9f3c",
    "start": 100,
    "end": 103,
    "schema": "fp-1",
    "partitions": [0, 7],
    "trace": {"traceparent": "00-ab-cd-01"},
    "payload": {"bytes": len(PAYLOAD), "sha256": hashlib.sha256(PAYLOAD).hexdigest()},
}

tokens = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
ranges = st.tuples(st.integers(0, INTEGER_MAX), st.integers(0, INTEGER_MAX)).map(sorted)


@st.composite
def wakeups(draw: st.DrawFn) -> Wakeup:
    start, end = draw(ranges)
    return Wakeup(
        version=draw(st.integers(0, INTEGER_MAX)),
        topic_id=draw(tokens),
        start=start,
        end=end,
        schema=draw(tokens),
        partitions=draw(st.none() | st.lists(st.integers(0, PARTITION_MAX), max_size=20).map(tuple)),
        trace=draw(st.dictionaries(texts, texts, max_size=TRACE_COUNT_MAX)),
        payload=draw(st.none() | st.binary(max_size=2000)),
    )


def framed(header: bytes, payload: bytes = PAYLOAD, *, magic: bytes = b"TRG1", version: int = FORMAT_VERSION) -> bytes:
    return struct.pack(">4sBI", magic, version, len(header)) + header + payload


def with_fields(**changed: object) -> bytes:
    return framed(json.dumps({**HEADER, **changed}).encode())


def reason_for(raw: bytes) -> str:
    with pytest.raises(MalformedWakeup) as caught:
        decode(raw)
    return str(caught.value.facts["reason"])


@settings(derandomize=True, deadline=None)
@given(wakeups())
def test_round_trip(wakeup: Wakeup) -> None:
    raw = encode(wakeup)
    decoded = decode(raw)
    assert decoded == wakeup
    assert encode(decoded) == raw
    assert len(raw) <= WAKEUP_BYTES_MAX


@settings(derandomize=True, deadline=None)
@given(wakeups(), st.data())
def test_every_truncation_is_refused(wakeup: Wakeup, data: st.DataObject) -> None:
    raw = encode(wakeup)
    assert reason_for(raw[: data.draw(st.integers(0, len(raw) - 1))]) == "truncated"


@settings(derandomize=True, deadline=None)
@given(st.data())
def test_a_flipped_bit_never_decodes_to_other_rows(data: st.DataObject) -> None:
    raw = bytearray(encode(WAKEUP))
    position = data.draw(st.integers(0, len(raw) - 1))
    raw[position] ^= 1 << data.draw(st.integers(0, 7))
    try:
        decoded = decode(bytes(raw))
    except MalformedWakeup:
        return
    assert decoded.payload == PAYLOAD


@settings(derandomize=True, deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_arbitrary_bytes_raise_nothing_else(raw: bytes, marked: bool) -> None:
    with pytest.raises(MalformedWakeup):
        decode(b"TRG1\x01" + raw if marked else raw)


def test_the_bytes_are_pinned() -> None:
    header = json.dumps(HEADER, sort_keys=True, separators=(",", ":")).encode()
    assert encode(WAKEUP) == framed(header)
    assert decode(framed(header)) == WAKEUP


def test_the_largest_valid_wakeup_fits() -> None:
    escaped = "\x01" * (TRACE_BYTES_MAX - TRACE_COUNT_MAX * 2)
    trace = {f"{n:02}": "" for n in range(TRACE_COUNT_MAX - 1)} | {"15": escaped}
    largest = Wakeup(
        INTEGER_MAX,
        "t" * 128,
        INTEGER_MAX,
        INTEGER_MAX,
        "s" * 128,
        (PARTITION_MAX,) * PARTITIONS_COUNT_MAX,
        trace,
        bytes(PAYLOAD_BYTES_MAX),
    )
    raw = encode(largest)
    assert decode(raw) == largest
    assert len(raw) <= WAKEUP_BYTES_MAX


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "truncated"),
        (b"TR", "truncated"),
        (b"TRG1", "truncated"),
        (b"TRG1\x01\x00\x00\x00", "truncated"),
        (b"PK\x03\x04 some archive", "magic"),
        (b"x", "magic"),
        (pickle.dumps({"not": "ours"}), "magic"),
        (framed(json.dumps(HEADER).encode(), magic=b"TRG2"), "magic"),
        (framed(json.dumps(HEADER).encode(), version=FORMAT_VERSION + 1), "version"),
        (framed(json.dumps(HEADER).encode(), version=0), "version"),
        (framed(json.dumps(HEADER).encode(), PAYLOAD[:-1]), "truncated"),
        (framed(json.dumps(HEADER).encode(), PAYLOAD + b"!"), "trailing"),
        (framed(json.dumps({**HEADER, "payload": None}).encode(), b"!"), "trailing"),
        (framed(json.dumps(HEADER).encode(), PAYLOAD[::-1]), "digest"),
        (framed(b"{", b""), "header"),
        (framed(b"", b""), "header"),
        (framed(b"[]", b""), "header"),
        (framed(b"null", b""), "header"),
        (framed(b"\xff\xfe", b""), "header"),
        (framed(b'{"version":1,"version":2}', b""), "header"),
        (framed(b"{}", b""), "field"),
        (bytes(WAKEUP_BYTES_MAX + 1), "oversize"),
    ],
    ids=lambda value: value if isinstance(value, str) else f"{len(value)}-bytes",
)
def test_malformed_bytes_are_refused_with_a_reason(raw: bytes, reason: str) -> None:
    assert reason_for(raw) == reason


@pytest.mark.parametrize(
    "changed",
    [
        {"version": -1},
        {"version": True},
        {"version": "12"},
        {"version": 12.0},
        {"version": None},
        {"topic": ""},
        {"topic": "a/b"},
        {"topic": "t" * 129},
        {"topic": "t\n"},
        {"topic": 7},
        {"start": 104},
        {"start": -1, "end": 0},
        {"end": 2**63},
        {"end": 10**300},
        {"schema": None},
        {"schema": "a b"},
        {"partitions": 3},
        {"partitions": {}},
        {"partitions": [-1]},
        {"partitions": [1.5]},
        {"partitions": [True]},
        {"partitions": [PARTITION_MAX + 1]},
        {"partitions": [0] * (PARTITIONS_COUNT_MAX + 1)},
        {"trace": None},
        {"trace": []},
        {"trace": {"a": 1}},
        {"trace": {"a": "\ud800"}},
        {"trace": {"a": "x" * TRACE_BYTES_MAX}},
        {"trace": {str(n): "" for n in range(TRACE_COUNT_MAX + 1)}},
        {"payload": 9},
        {"payload": {}},
        {"payload": {"bytes": len(PAYLOAD), "sha256": 1}},
        {"payload": {"bytes": "9", "sha256": ""}},
        {"payload": {"bytes": True, "sha256": ""}},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_a_field_of_the_wrong_type_or_range_is_refused(changed: dict[str, object]) -> None:
    assert reason_for(with_fields(**changed)) == "field"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        # Lengths that promise gigabytes, in a message of some bytes: nothing may be set aside for them.
        (b"TRG1\x01\xff\xff\xff\xff{}", "oversize"),
        (struct.pack(">4sBI", b"TRG1", FORMAT_VERSION, HEADER_BYTES_MAX + 1) + b"{}", "oversize"),
        (struct.pack(">4sBI", b"TRG1", FORMAT_VERSION, HEADER_BYTES_MAX) + b"{}", "truncated"),
        (with_fields(payload={"bytes": 2**62, "sha256": "0" * 64}), "field"),
        (with_fields(payload={"bytes": PAYLOAD_BYTES_MAX, "sha256": "0" * 64}), "truncated"),
        # Text that costs more to parse than to send.
        (framed(b"[" * HEADER_BYTES_MAX, b""), "header"),
        (framed(b'{"a":' * (HEADER_BYTES_MAX // 5), b""), "header"),
    ],
    ids=["header-4GiB", "header-over", "header-missing", "payload-4EiB", "payload-missing", "nested-lists", "nested-objects"],
)
def test_a_bomb_is_refused_before_it_costs_anything(raw: bytes, reason: str) -> None:
    assert reason_for(raw) == reason


def test_a_number_of_many_digits_is_refused() -> None:
    header = json.dumps(HEADER).replace('"version": 12', '"version": ' + "9" * 60_000).encode()
    assert reason_for(framed(header)) in {"header", "field"}


def test_a_future_version_says_what_to_do() -> None:
    with pytest.raises(MalformedWakeup, match="upgrade pyspark-trigger"):
        decode(framed(b"whatever a later release writes", version=FORMAT_VERSION + 1))


def test_an_unknown_field_is_ignored() -> None:
    assert decode(with_fields(hint="from a later release")) == WAKEUP


def test_the_id_names_the_range() -> None:
    assert WAKEUP.id == "9f3c:100-103"


def test_without_payload_is_the_same_news() -> None:
    pointer = WAKEUP.without_payload()
    assert pointer.payload is None
    assert pointer.payload_sha256 is None
    assert pointer.id == WAKEUP.id
    assert decode(encode(pointer)) == pointer
    assert pointer.without_payload() is pointer


def test_an_empty_payload_is_not_a_pointer() -> None:
    empty = Wakeup(1, "t", 0, 0, "s", payload=b"")
    assert decode(encode(empty)).payload == b""


def test_the_digest_is_of_the_payload() -> None:
    assert decode(encode(WAKEUP)).payload_sha256 == hashlib.sha256(PAYLOAD).hexdigest()


def test_rows_are_not_printed() -> None:
    assert "some rows" not in repr(WAKEUP)


def test_a_wakeup_is_a_value() -> None:
    trace = {"traceparent": "00"}
    wakeup = Wakeup(1, "t", 0, 1, "s", trace=trace)
    trace["traceparent"] = "changed"
    assert wakeup.trace == {"traceparent": "00"}
    assert hash(wakeup) == hash(Wakeup(1, "t", 0, 1, "s", trace={"traceparent": "00"}))
    assert pickle.loads(pickle.dumps(wakeup)) == wakeup


def test_what_breaks_a_bound_cannot_be_built() -> None:
    with pytest.raises(MalformedWakeup, match="beyond end"):
        Wakeup(1, "t", 2, 1, "s")
    with pytest.raises(MalformedWakeup, match="over"):
        Wakeup(1, "t", 0, 1, "s", payload=bytes(PAYLOAD_BYTES_MAX + 1))
    with pytest.raises(MalformedWakeup, match="not bytes"):
        Wakeup(1, "t", 0, 1, "s", payload=bytearray(b"x"))  # type: ignore[arg-type]
