"""Spark's offset: one text for one meaning, strict reading, and the range between two of them."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from offsets import OFFSET_MAX, InitKind, OffsetRange, StreamOffset, TopicPosition, check_topic, range_between
from offsets.offset import TEXT_CHARS_MAX
from trigger_core.errors import InvalidName, InvalidOffset, TopicRecreated, TriggerError, UnsupportedOffset

DETERMINISTIC = settings(deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])

KINDS: list[InitKind] = ["latest", "earliest", "number", "timestamp"]
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,12}", fullmatch=True)


@st.composite
def positions(draw: st.DrawFn) -> TopicPosition:
    topic_id, position = draw(st.text(min_size=1, max_size=8)), draw(st.integers(0, OFFSET_MAX))
    form = draw(st.sampled_from(["plain", "init", "from"]))
    if form == "init":
        return TopicPosition(topic_id, position, init=draw(st.sampled_from(KINDS)))
    return TopicPosition(topic_id, position, from_=draw(st.integers(0, position)) if form == "from" else None)


OFFSETS = st.dictionaries(NAMES, positions(), min_size=1, max_size=4).map(lambda topics: StreamOffset(tuple(topics.items())))
KEYS = ["v", "topics", "t", "id", "next", "from", "init"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=12,
)


def parsed_or_refused(value: object) -> StreamOffset | None:
    try:
        return StreamOffset.parse(value)
    except (InvalidOffset, UnsupportedOffset):
        return None


def plain(position: int, topic_id: str = "x") -> StreamOffset:
    return StreamOffset.at("t", topic_id, position)


@DETERMINISTIC
@given(OFFSETS)
def test_what_is_written_is_read_back_from_text_and_from_dict(offset: StreamOffset) -> None:
    assert StreamOffset.parse(offset.text()) == StreamOffset.parse(offset.to_dict()) == StreamOffset.parse(offset) == offset
    assert pickle.loads(pickle.dumps(offset)) == offset
    assert hash(StreamOffset.parse(offset.text())) == hash(offset)


@DETERMINISTIC
@given(OFFSETS)
def test_one_meaning_has_one_text_whatever_the_key_order_and_spaces(offset: StreamOffset) -> None:
    shuffled = {name: dict(reversed(position.to_dict().items())) for name, position in reversed(offset.topics)}
    assert StreamOffset.parse(json.dumps({"v": 1, "topics": shuffled}, indent=2)).text() == offset.text()
    assert json.dumps(offset.to_dict(), sort_keys=True) == json.dumps(offset.to_dict()), "Spark writes a dict in its own order"


@DETERMINISTIC
@given(JSON)
def test_b11_whatever_json_comes_is_an_offset_or_refused_by_name(value: object) -> None:
    for form in (value, json.dumps(value)):
        offset = parsed_or_refused(form)
        assert offset is None or StreamOffset.parse(offset.text()) == offset


@DETERMINISTIC
@given(st.text(max_size=40))
def test_b11_whatever_text_comes_is_refused(text: str) -> None:
    with pytest.raises((InvalidOffset, UnsupportedOffset)):
        StreamOffset.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        '"latest"',
        "{}",
        '{"v":1}',
        '{"topics":{"t":{"id":"x","next":1}}}',
        '{"topics":{"t":{"id":"x","next":1}},"v":"1"}',
        '{"topics":{"t":{"id":"x","next":1}},"v":true}',
        '{"topics":{"t":{"id":"x","next":1}},"v":0}',
        '{"topics":{"t":{"id":"x","next":1}},"v":1,"w":1}',
        '{"topics":{},"v":1}',
        '{"topics":[],"v":1}',
        '{"topics":{"t":5},"v":1}',
        '{"topics":{"../t":{"id":"x","next":1}},"v":1}',
        '{"topics":{"t":{"id":"x"}},"v":1}',
        '{"topics":{"t":{"next":1}},"v":1}',
        '{"topics":{"t":{"id":"","next":1}},"v":1}',
        '{"topics":{"t":{"id":7,"next":1}},"v":1}',
        '{"topics":{"t":{"id":"x","next":1,"extra":1}},"v":1}',
        '{"topics":{"t":{"id":"x","next":1.0}},"v":1}',
        '{"topics":{"t":{"id":"x","next":true}},"v":1}',
        '{"topics":{"t":{"id":"x","next":-1}},"v":1}',
        '{"topics":{"t":{"id":"x","next":1,"init":"never"}},"v":1}',
        '{"topics":{"t":{"id":"x","next":1,"init":null}},"v":1}',
        '{"topics":{"t":{"id":"x","next":1,"init":[]}},"v":1}',
        '{"topics":{"t":{"id":"x","next":1,"from":null}},"v":1}',
        '{"topics":{"t":{"id":"x","next":1,"from":2}},"v":1}',
        '{"topics":{"t":{"id":"x","next":1,"from":-1}},"v":1}',
        '{"topics":{"t":{"id":"x","next":1,"from":0,"init":"earliest"}},"v":1}',
        '{"topics":{"t":{"id":"x","next":1,"next":2}},"v":1}',
        '{"topics":{"t":{"id":"x","next":1}},"v":1',
        pytest.param("[" * 100_000, id="nested too deep"),
        pytest.param("1" * 10_000, id="too many digits"),
    ],
)
def test_b11_garbled_and_foreign_offsets_are_refused(text: str) -> None:
    with pytest.raises(InvalidOffset) as error:
        StreamOffset.parse(text)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("number", ["9223372036854775808", "18446744073709551616", "1e30"])
@pytest.mark.parametrize("field", ["next", "from"])
def test_t13_a_stored_number_of_two_to_the_63_is_refused(number: str, field: str) -> None:
    fields = {"id": '"x"', "next": "5"} | {field: number}
    position = ",".join(f'"{name}":{value}' for name, value in fields.items())
    with pytest.raises(InvalidOffset, match=field):
        StreamOffset.parse(f'{{"topics":{{"t":{{{position}}}}},"v":1}}')


def test_b11_an_offset_too_long_to_be_one_is_not_even_parsed() -> None:
    with pytest.raises(InvalidOffset, match="characters"):
        StreamOffset.parse(" " * (TEXT_CHARS_MAX + 1))


def test_b11_a_dict_with_keys_that_are_no_text_is_refused() -> None:
    with pytest.raises(InvalidOffset):
        StreamOffset.parse({1: 2, "v": 1})


def test_b11_a_newer_version_says_what_to_do() -> None:
    with pytest.raises(UnsupportedOffset, match=r"version 2, .* up to 1 — upgrade pyspark-trigger, or use a new") as error:
        StreamOffset.parse('{"anything":[],"v":2}')
    assert error.value.facts == {"version": 2, "supported": 1}


def test_our_own_mistakes_do_not_pass() -> None:
    with pytest.raises(InvalidName):
        StreamOffset.at("..", "x", 1)
    with pytest.raises(AssertionError, match="twice"):
        StreamOffset((("t", TopicPosition("x", 1)), ("t", TopicPosition("x", 2))))


@pytest.mark.parametrize("kind", KINDS)
def test_an_initial_offset_carries_its_mark(kind: InitKind) -> None:
    assert StreamOffset.initial("t", "x", 5, kind).to_dict() == {"topics": {"t": {"id": "x", "init": kind, "next": 5}}, "v": 1}


def test_b22_an_initial_latest_advances_to_a_pin_where_it_was() -> None:
    initial = StreamOffset.initial("t", "x", 100, "latest")
    assert initial.advance("t", 100) == initial.advance("t", 170) == initial.pin("t") == plain(100)
    assert initial.text() != plain(100).text(), "Spark runs batch 0 because the text differs"


@pytest.mark.parametrize("kind", ["earliest", "number", "timestamp"])
def test_b22_any_other_initial_offset_remembers_where_it_began(kind: InitKind) -> None:
    initial = StreamOffset.initial("t", "x", 10, kind)
    assert initial.advance("t", 30).position("t") == TopicPosition("x", 30, from_=10)
    assert initial.advance("t", 10).position("t") == TopicPosition("x", 10, from_=10), "an initial offset is never stored"


def test_b8_with_nothing_new_the_offset_is_the_same_text() -> None:
    for offset in (plain(30), StreamOffset((("t", TopicPosition("x", 30, from_=0)),))):
        assert offset.advance("t", 30).text() == offset.text()
        assert offset.advance("t", 31) == plain(31)


@pytest.mark.parametrize("offset", [plain(30), StreamOffset.initial("t", "x", 30, "latest")])
def test_no_position_goes_back(offset: StreamOffset) -> None:
    with pytest.raises(InvalidOffset, match="30 can't go back to 29") as error:
        offset.advance("t", 29)
    assert error.value.facts == {"start": 30, "end": 29}


def test_other_topics_stay_where_they_are() -> None:
    both = StreamOffset((("u", TopicPosition("y", 7)), ("t", TopicPosition("x", 1))))
    assert both.advance("t", 5).topics == (("t", TopicPosition("x", 5)), ("u", TopicPosition("y", 7)))


@DETERMINISTIC
@given(st.integers(0, OFFSET_MAX), st.integers(0, OFFSET_MAX))
def test_b18_between_two_plain_offsets_are_the_rows_from_one_to_the_other(start: int, end: int) -> None:
    if start <= end:
        assert range_between(plain(start), plain(end), "t") == OffsetRange(start, end)
        return
    with pytest.raises(InvalidOffset, match=f"start {start} is beyond end {end}") as error:
        range_between(plain(start), plain(end), "t")
    assert error.value.facts == {"start": start, "end": end}


@DETERMINISTIC
@given(st.integers(0, OFFSET_MAX), st.integers(0, OFFSET_MAX), st.integers(0, OFFSET_MAX), st.sampled_from(KINDS))
def test_b22_an_initial_start_serves_what_the_end_says(moved: int, one: int, two: int, kind: InitKind) -> None:
    first, last = sorted((one, two))
    initial = StreamOffset.initial("t", "x", moved, kind)
    assert not range_between(initial, plain(last), "t")
    end = StreamOffset((("t", TopicPosition("x", last, from_=first)),))
    assert range_between(initial, end, "t") == OffsetRange(first, last)
    assert not range_between(initial, initial, "t")


def test_the_from_of_batch_0_does_not_reach_into_batch_1() -> None:
    start = StreamOffset((("t", TopicPosition("x", 30, from_=0)),))
    assert range_between(start, plain(50), "t") == OffsetRange(30, 50)


def test_a_batch_can_not_end_at_an_initial_offset() -> None:
    with pytest.raises(InvalidOffset, match="from 3 can't end at an initial offset, 9"):
        range_between(plain(3), StreamOffset.initial("t", "x", 9, "latest"), "t")


def test_b23_a_checkpoint_at_900_first_started_at_0_needs_nothing_below_900() -> None:
    """After a trim to 800 the stored initial offset lies in what is gone; it is never looked at again."""
    assert range_between(plain(900), plain(900).advance("t", 950), "t") == OffsetRange(900, 950)


@pytest.mark.parametrize("start", [plain(3, "old"), StreamOffset.initial("t", "old", 3, "latest")])
def test_b12_offsets_of_two_tables_have_no_range(start: StreamOffset) -> None:
    with pytest.raises(TopicRecreated, match="dropped and created again"):
        range_between(start, plain(9, "new"), "t")


def test_b11_b12_a_checkpoint_is_of_this_topic_and_this_table() -> None:
    assert check_topic(plain(3), "t", "x") == TopicPosition("x", 3)
    with pytest.raises(InvalidOffset, match=r"of topic 't', this query reads 'orders'.*checkpointLocation"):
        check_topic(plain(3), "orders", "x")
    with pytest.raises(TopicRecreated, match="has id 'y', the checkpoint was made with 'x'") as error:
        check_topic(plain(3), "t", "y")
    assert error.value.facts == {"topic": "t", "stored": "x", "current": "y"}
    both = StreamOffset((("t", TopicPosition("x", 1)), ("u", TopicPosition("y", 7))))
    with pytest.raises(InvalidOffset, match="of topics 't', 'u', this query reads 't' alone"):
        check_topic(both, "t", "x")


def test_b12_errors_cross_processes() -> None:
    with pytest.raises(TriggerError) as error:
        check_topic(plain(3), "t", "y")
    again = pickle.loads(pickle.dumps(error.value))
    assert (type(again), str(again), again.facts) == (TopicRecreated, str(error.value), error.value.facts)
