"""Options: every one is read in one place, in any case, with its unit; nothing is ignored silently."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trigger_core.errors import InvalidName, InvalidOffset, InvalidOption, TriggerError
from trigger_core.options import LATER, SinkOptions, SourceOptions, options_table

ROOT = Path(__file__).parents[3]
PLACE = {"path": "/data", "topic": "orders"}


def stream(**given: str) -> SourceOptions:
    return SourceOptions.from_spark({**PLACE, **given}, streaming=True)


def batch(**given: str) -> SourceOptions:
    return SourceOptions.from_spark({**PLACE, **given}, streaming=False)


def sink(**given: str) -> SinkOptions:
    return SinkOptions.from_spark({**PLACE, **given}, streaming=False)


def stream_sink(**given: str) -> SinkOptions:
    return SinkOptions.from_spark({**PLACE, **given}, streaming=True)


def test_defaults_of_the_source() -> None:
    options = stream()
    assert (options.path, options.topic, options.broker) == ("/data", "orders", "local:")
    assert (options.poll_interval_ms, options.wakeup_wait_ms, options.cache_bytes) == (1000, 100, 64 * 1024**2)
    assert options.starting_offsets is None
    assert options.starting_timestamp_us is None
    assert (options.fail_on_data_loss, options.recovery, options.columns) == (True, "strict", None)


def test_defaults_of_the_sink() -> None:
    options = sink()
    assert (options.wakeup_payload_bytes, options.inline_bytes, options.publish_timeout_ms) == (256 * 1024, 32 * 1024, 100)
    assert options.merge_schema is False
    assert options.txn is None


def test_keys_in_any_case_values_keep_theirs() -> None:
    """B19."""
    given = {"PATH": "/Data", "Topic": "Orders", "STARTINGOFFSETS": "Earliest", "COLUMNS": "Id,Name"}
    options = SourceOptions.from_spark(given, streaming=True)
    assert (options.path, options.topic, options.starting_offsets, options.columns) == (
        "/Data",
        "Orders",
        "earliest",
        ("Id", "Name"),
    )


def test_one_option_in_two_spellings_is_refused() -> None:
    with pytest.raises(InvalidOption, match="differ by case only"):
        SourceOptions.from_spark({**PLACE, "Topic": "other"}, streaming=True)


@pytest.mark.parametrize("name", ["path", "topic"])
def test_a_missing_place_is_named(name: str) -> None:
    with pytest.raises(InvalidOption, match=f"'{name}' is missing"):
        SourceOptions.from_spark({key: value for key, value in PLACE.items() if key != name}, streaming=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("1024", 1024), ("64m", 64 * 1024**2), ("64MB", 64 * 1024**2), ("2 GiB", 2 * 1024**3), ("8k", 8192), ("5b", 5)],
)
def test_sizes(text: str, expected: int) -> None:
    assert stream(cacheBytes=text).cache_bytes == expected


@pytest.mark.parametrize("text", ["", "m", "-1", "1.5m", "64x", "64 m m", "٣", "9" * 5000, "2000000g"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(InvalidOption, match="cacheBytes"):
        stream(cacheBytes=text)


@pytest.mark.parametrize(
    ("text", "expected"), [("250", 250), ("250ms", 250), ("5s", 5000), ("15m", 900_000), ("1 h", 3_600_000), ("1D", 86_400_000)]
)
def test_durations(text: str, expected: int) -> None:
    assert stream(minOffsetsPerTrigger="1", maxTriggerDelay=text).max_trigger_delay_ms == expected


@pytest.mark.parametrize("text", ["", "s", "-5s", "1.5s", "5 weeks", "9" * 5000, "366d"])
def test_bad_durations(text: str) -> None:
    with pytest.raises(InvalidOption, match="maxTriggerDelay"):
        stream(minOffsetsPerTrigger="1", maxTriggerDelay=text)


def test_an_interval_of_nothing_would_spin() -> None:
    with pytest.raises(InvalidOption, match="pollIntervalMs"):
        stream(pollIntervalMs="0")


@pytest.mark.parametrize(
    ("text", "expected"), [("earliest", "earliest"), ("LATEST", "latest"), ("0", 0), ("9223372036854775807", 2**63 - 1)]
)
def test_starting_offsets(text: str, expected: str | int) -> None:
    assert stream(startingOffsets=text).starting_offsets == expected


@pytest.mark.parametrize("text", ["-1", "9223372036854775808", "18446744073709551616", "9" * 5000])
def test_an_offset_out_of_range(text: str) -> None:
    """T13."""
    with pytest.raises(InvalidOffset, match="startingOffsets"):
        stream(startingOffsets=text)


@pytest.mark.parametrize("text", ["", "erliest", "1.0", "0x10", '{"t":{"0":1}}'])
def test_a_start_that_is_none(text: str) -> None:
    with pytest.raises(InvalidOption, match="startingOffsets"):
        stream(startingOffsets=text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1795017432714", 1_795_017_432_714_000),
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01Z", 1_000_000),
        ("1970-01-01 00:00:01", 1_000_000),
        ("1970-01-01T02:00+02:00", 0),
        ("1970-01-01T00:00:00.5Z", 500_000),
        ("2026-11-18T12:00:00.000001Z", 1_795_003_200_000_001),
        ("2026-11-18T12:00:00.123457Z", 1_795_003_200_123_457),
        ("1969-12-31T23:59:59.999999Z", -1),
    ],
)
def test_moments_are_exact_to_the_microsecond(text: str, expected: int) -> None:
    assert stream(startingTimestamp=text).starting_timestamp_us == expected


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "2026-11-18T25:00Z", "2026-11-18T12:00:00.1234567Z", "9" * 5000])
def test_bad_moments(text: str) -> None:
    with pytest.raises(InvalidOption, match="startingTimestamp"):
        stream(startingTimestamp=text)


@pytest.mark.parametrize("text", ["a,,b", "a,a", ""])
def test_bad_columns(text: str) -> None:
    with pytest.raises(InvalidOption, match="columns"):
        stream(columns=text)


@pytest.mark.parametrize("text", ["yes", "1", ""])
def test_flags_are_true_or_false(text: str) -> None:
    with pytest.raises(InvalidOption, match="mergeSchema"):
        sink(mergeSchema=text)
    assert sink(mergeSchema="TRUE").merge_schema is True


@pytest.mark.parametrize(
    "name", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxBytesPerTrigger", "minPartitions", "maxRecordsPerPartition"]
)
def test_a_limit_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(InvalidOption, match=name):
        stream(**{name: "0"})


def test_a_payload_larger_than_a_wakeup_may_be_is_refused() -> None:
    assert sink(wakeupPayloadBytes="4m").wakeup_payload_bytes == 4 * 1024**2
    with pytest.raises(InvalidOption, match="at most 4194304 bytes"):
        sink(wakeupPayloadBytes="5m")


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("startingOfsets", "startingOffsets"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("topics", "topic"),
        ("paths", "path"),
    ],
)
def test_an_unknown_option_names_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(InvalidOption, match=f"no option '{wrong}'.*did you mean '{right}'"):
        stream(**{wrong: "1"})


def test_an_unknown_option_never_shows_its_value() -> None:
    with pytest.raises(InvalidOption) as caught:
        stream(password="hunter2")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("given_options", "named"),
    [
        ({"startingOffsets": "1", "startingTimestamp": "1"}, "startingTimestamp"),
        ({"minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"}, "minOffsetsPerTrigger 11"),
        ({"maxTriggerDelay": "5s"}, "maxTriggerDelay"),
        ({"endingOffsets": "10"}, "endingOffsets"),
        ({"endingTimestamp": "10"}, "endingTimestamp"),
        ({"failOnDataLoss": "false"}, "failOnDataLoss"),
    ],
)
def test_contradictions_of_a_stream(given_options: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        stream(**given_options)


@pytest.mark.parametrize(
    ("given_options", "named"),
    [
        ({"endingOffsets": "1", "endingTimestamp": "1"}, "endingTimestamp"),
        ({"endingOffsets": "earliest"}, "endingOffsets"),
        ({"maxOffsetsPerTrigger": "10"}, "maxOffsetsPerTrigger"),
        ({"wakeupWaitMs": "10"}, "wakeupWaitMs"),
    ],
)
def test_contradictions_of_a_batch(given_options: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        batch(**given_options)


def test_txn_is_a_pair() -> None:
    """A14, the option's half."""
    assert sink(txnAppId="job", txnVersion="7").txn == ("job", 7)
    with pytest.raises(InvalidOption, match="txnVersion is missing"):
        sink(txnAppId="job")
    with pytest.raises(InvalidOption, match="txnAppId is missing"):
        sink(txnVersion="7")
    with pytest.raises(InvalidOption, match=r"begins with 'trigger\.'"):
        sink(txnAppId="trigger.offset", txnVersion="7")
    with pytest.raises(InvalidOption, match="batch jobs only"):
        stream_sink(txnAppId="job", txnVersion="7")


@pytest.mark.parametrize("name", ["consumer", "predicate", "tenant", "partitions", "erased"])
def test_options_of_the_source_that_are_not_there_yet(name: str) -> None:
    with pytest.raises(InvalidOption, match=f"'{name}' is not available yet in version 0.1.0"):
        stream(**{name: "x"})


@pytest.mark.parametrize(
    "name", ["tenant", "partitionBy", "liveKey", "liveDelete", "retentionMs", "retentionBytes", "retentionRows"]
)
def test_options_of_the_sink_that_are_not_there_yet(name: str) -> None:
    with pytest.raises(InvalidOption, match=f"'{name}' is not available yet in version 0.1.0"):
        sink(**{name: "x"})


@pytest.mark.parametrize(("name", "value"), [("recovery", "skip"), ("recovery", "Reset"), ("startingOffsets", "snapshot")])
def test_values_that_are_not_there_yet(name: str, value: str) -> None:
    with pytest.raises(InvalidOption, match=f"{name}={value.lower()} is not available yet"):
        stream(**{name: value})


def test_what_spark_itself_passes_to_a_streaming_sink() -> None:
    assert stream_sink(checkpointlocation="/checkpoint", queryname="q").path == "/data"
    with pytest.raises(InvalidOption, match="checkpointLocation"):
        sink(checkpointlocation="/checkpoint")


def test_prefixed_options_are_collected() -> None:
    options = SourceOptions.from_spark({**PLACE, "Broker.User": "me", "storage.REGION": "eu", "storage.a.b": "c"}, streaming=True)
    assert dict(options.broker_options) == {"user": "me"}
    assert dict(options.storage) == {"region": "eu", "a.b": "c"}
    with pytest.raises(InvalidOption, match="names nothing"):
        SourceOptions.from_spark({**PLACE, "broker.": "x"}, streaming=True)


@pytest.mark.parametrize("kind", [SourceOptions, SinkOptions])
def test_the_repr_shows_no_secret(kind: type[SourceOptions] | type[SinkOptions]) -> None:
    secrets = {
        "broker": "nats://u:hunter2@host?token=hunter2",
        "broker.password": "hunter2",
        "storage.secret_access_key": "hunter2",
    }
    shown = repr(kind.from_spark({**PLACE, **secrets}, streaming=True))
    assert "hunter2" not in shown
    assert "orders" in shown


def test_credentials_in_the_path_are_refused_unseen() -> None:
    with pytest.raises(InvalidOption, match="credentials") as caught:
        SourceOptions.from_spark({"path": "s3://key:hunter2@bucket/x", "topic": "t"}, streaming=True)
    assert "hunter2" not in str(caught.value)
    azure = "abfss://container@account.dfs.core.windows.net/x"
    assert SourceOptions.from_spark({"path": azure, "topic": "t"}, streaming=True).path == azure


@pytest.mark.parametrize("name", ["a/b", ".hidden", "..", "a..b", ""])
def test_a_topic_that_could_not_be_a_folder(name: str) -> None:
    with pytest.raises(InvalidName):
        SourceOptions.from_spark({"path": "/data", "topic": name}, streaming=True)


def test_they_are_frozen_and_cross_processes() -> None:
    options = stream(**{"broker.user": "me"})
    assert pickle.loads(pickle.dumps(options)) == options
    with pytest.raises(FrozenInstanceError):
        options.topic = "other"  # type: ignore[misc]


NAMES = [item.metadata["name"] for kind in (SourceOptions, SinkOptions) for item in fields(kind) if "name" in item.metadata]


@given(st.sampled_from(NAMES), st.text(max_size=30), st.booleans())
def test_any_value_is_read_or_refused_with_our_error(name: str, value: str, streaming: bool) -> None:
    kind: Any
    for kind in (SourceOptions, SinkOptions):
        refused: TriggerError | None = None
        try:
            kind.from_spark({**PLACE, name: value}, streaming=streaming)
        except TriggerError as error:
            refused = error
        assert refused is None or refused.cure


def test_the_readme_has_the_table() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert options_table() in readme, "README.md's table of options is stale: paste the output of options_table()"


def test_the_version_that_lacks_options_is_this_one() -> None:
    assert f'version = "{LATER}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
