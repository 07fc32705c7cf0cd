"""Offsets as they lie in checkpoints: a text that was once written stays readable, and stays the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from offsets import StreamOffset, TopicPosition
from trigger_core.errors import InvalidOffset, UnsupportedOffset

GOLDEN = Path(__file__).parents[2] / "golden" / "offsets"

OURS = {
    "initial_latest": TopicPosition("x", 100, init="latest"),
    "batch_0_of_latest": TopicPosition("x", 100),
    "batch_0_of_earliest": TopicPosition("x", 30, from_=0),
    "batch_1": TopicPosition("x", 200),
}


def golden(name: str) -> str:
    return (GOLDEN / f"{name}.json").read_text(encoding="utf-8").removesuffix("\n")


@pytest.mark.parametrize("name", OURS)
def test_our_offsets_are_read_and_written_byte_for_byte(name: str) -> None:
    offset = StreamOffset.parse(golden(name))
    assert offset == StreamOffset((("t", OURS[name]),))
    assert offset.text() == golden(name)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"topics":{"t":{"id":"x","next":100,"init":"latest"}},"v":1}', "initial_latest"),
        ('{"v": 1, "topics": {"t": {"next": 30, "from": 0, "id": "x"}}}', "batch_0_of_earliest"),
    ],
)
def test_another_key_order_is_the_same_offset(text: str, name: str) -> None:
    assert StreamOffset.parse(text).text() == golden(name)


def test_b11_a_future_offset_is_refused_with_what_to_do() -> None:
    with pytest.raises(UnsupportedOffset, match="upgrade pyspark-trigger, or use a new checkpointLocation"):
        StreamOffset.parse(golden("future_version"))


@pytest.mark.parametrize("name", ["foreign_kafka", "foreign_delta", "foreign_rate"])
def test_b11_another_sources_offset_is_refused_with_what_to_do(name: str) -> None:
    with pytest.raises(InvalidOffset, match=r"not of this product — give this query the checkpointLocation it was started with"):
        StreamOffset.parse(golden(name))


def test_every_golden_file_is_used() -> None:
    used = {*OURS, "future_version", "foreign_kafka", "foreign_delta", "foreign_rate"}
    assert {path.stem for path in GOLDEN.iterdir()} == used
