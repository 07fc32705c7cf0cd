"""The offset in Spark's checkpoint: a map from topic to position, and what a pair of offsets means. No I/O, no clock.

Four forms are written, keys sorted and without spaces. Spark compares the text of two offsets, so one meaning has one text:

    initialOffset                {"topics":{"t":{"id":"x","init":"latest","next":100}},"v":1}
    offsets/0 of latest, a pin   {"topics":{"t":{"id":"x","next":100}},"v":1}
    offsets/0 of any other start {"topics":{"t":{"from":0,"id":"x","next":30}},"v":1}
    offsets/1 and on             {"topics":{"t":{"id":"x","next":200}},"v":1}

`next` is the next row to read, `id` the topic's table, so that a recreated topic is noticed. Spark asks for the initial offset
twice in batch 0, and again when batch 0 is run again after a crash, and by then `latest` has moved. So an initial offset
is marked `init` and its number is never the start of a read: the *end* of batch 0 says where the batch began, in `from`.

    init latest ──advance──► pin ─────advance──► plain
    init other ───advance──► with from ─advance─► plain
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, cast, get_args

from offsets.excerpt import excerpt
from offsets.ranges import OffsetRange, check_offset
from trigger_core.errors import InvalidName, InvalidOffset, TopicRecreated, UnsupportedOffset
from trigger_core.names import check_name

VERSION = 1
TEXT_CHARS_MAX = 1 << 20
"""Longest offset text that is parsed: some thousands of topics."""

InitKind = Literal["latest", "earliest", "number", "timestamp"]
"""How the query was told to start. Only `latest` differs: its batch 0 reads nothing and pins the position."""

_INIT_KINDS: tuple[str, ...] = get_args(InitKind)
_CHECKPOINT_CURE = "give this query the checkpointLocation it was started with, or a new one"
_RECREATED_CURE = "the topic was dropped and created again; start with a new checkpointLocation"


@dataclass(frozen=True)
class TopicPosition:
    """Where a query stands in one topic. `init` and `from_` exclude each other; see the module's four forms."""

    id: str
    next: int
    init: InitKind | None = None
    from_: int | None = None

    def __post_init__(self) -> None:
        _check_id_text(self.id)
        check_offset(self.next, "next")
        if self.init is not None and self.init not in _INIT_KINDS:
            raise InvalidOffset(f"init {excerpt(self.init)} is none of {', '.join(_INIT_KINDS)}", _CHECKPOINT_CURE)
        if self.from_ is not None:
            if self.init is not None:
                raise InvalidOffset("an offset has both init and from", _CHECKPOINT_CURE)
            OffsetRange(check_offset(self.from_, "from"), self.next)

    def pin(self) -> TopicPosition:
        """The same position, no longer initial."""
        return TopicPosition(self.id, self.next)

    def advance(self, end: int) -> TopicPosition:
        """The end of a batch that starts here and may read up to `end`; never marked `init`.

        An initial `latest` is pinned where it is, whatever `end` says: rows since then belong to batch 1. Any other initial
        position keeps its number in `from`, even with nothing new, because Spark stores the end of batch 0 in any case.
        With nothing new, a position that is not initial is returned unchanged. A lower `end` raises `InvalidOffset`.
        """
        check_offset(end, "end")
        if end < self.next:
            raise InvalidOffset(
                f"position {self.next} can't go back to {end}",
                _CHECKPOINT_CURE,
                start=self.next,
                end=end,
            )
        if self.init == "latest":
            return self.pin()
        if self.init is not None:
            return TopicPosition(self.id, end, from_=self.next)
        return self if end == self.next else TopicPosition(self.id, end)

    def to_dict(self) -> dict[str, object]:
        fields = {"from": self.from_, "id": self.id, "init": self.init, "next": self.next}
        return {name: value for name, value in fields.items() if value is not None}


@dataclass(frozen=True)
class StreamOffset:
    """Positions by topic, sorted by name. Immutable, hashable, pickles; equal when the meaning is, whatever text it came from."""

    topics: tuple[tuple[str, TopicPosition], ...]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.topics]
        if not names:
            raise InvalidOffset("the offset names no topic", _CHECKPOINT_CURE)
        assert len(set(names)) == len(names), "a topic stands twice in one offset"
        for name in names:
            check_name(name)
        object.__setattr__(self, "topics", tuple(sorted(self.topics, key=lambda item: item[0])))

    @staticmethod
    def at(topic: str, topic_id: str, position: int) -> StreamOffset:
        """A plain position in one topic."""
        return StreamOffset(((topic, TopicPosition(topic_id, position)),))

    @staticmethod
    def initial(topic: str, topic_id: str, position: int, kind: InitKind) -> StreamOffset:
        """What `initialOffset` returns: a mark that the query is new, and where it would start now."""
        return StreamOffset(((topic, TopicPosition(topic_id, position, init=kind)),))

    @staticmethod
    def parse(value: object) -> StreamOffset:
        """Reads the text, or the dict that Spark made of it.

        `InvalidOffset`: not JSON, not of this product, a number that is none. `UnsupportedOffset`: a newer version wrote it.
        """
        if isinstance(value, StreamOffset):
            return value
        fields = _object(_load(value) if isinstance(value, str) else value, "offset")
        _check_version(fields)
        _check_fields(fields, required=("topics", "v"), optional=())
        topics = _object(fields["topics"], "topics")
        return StreamOffset(tuple((_topic_name(name), _position(position)) for name, position in topics.items()))

    def to_dict(self) -> dict[str, object]:
        """For Spark, which writes dicts in their own order: the keys are sorted at every level."""
        return {"topics": {name: position.to_dict() for name, position in self.topics}, "v": VERSION}

    def text(self) -> str:
        """The one canonical text of this offset."""
        return json.dumps(self.to_dict(), separators=(",", ":"))

    def position(self, topic: str) -> TopicPosition:
        """Raises `InvalidOffset` when this offset is of other topics."""
        for name, position in self.topics:
            if name == topic:
                return position
        raise InvalidOffset(
            f"the checkpoint is of topic {self._names()}, this query reads {topic!r}",
            _CHECKPOINT_CURE,
            topic=topic,
        )

    def pin(self, topic: str) -> StreamOffset:
        return self._with(topic, self.position(topic).pin())

    def advance(self, topic: str, end: int) -> StreamOffset:
        """`TopicPosition.advance` of one topic; the others stay as they are."""
        return self._with(topic, self.position(topic).advance(end))

    def _with(self, topic: str, position: TopicPosition) -> StreamOffset:
        return StreamOffset(tuple((name, position if name == topic else held) for name, held in self.topics))

    def _names(self) -> str:
        return ", ".join(repr(name) for name, _ in self.topics)


def range_between(start: StreamOffset, end: StreamOffset, topic: str) -> OffsetRange:
    """The rows of the batch that Spark runs from `start` to `end`.

    A start marked `init` serves `[end.from, end.next)`, or nothing without `from`: its own number may have moved since.
    Otherwise `[start.next, end.next)`; a start beyond the end is `InvalidOffset`, another table's id `TopicRecreated`.
    """
    first, last = start.position(topic), end.position(topic)
    _check_id(topic, first.id, last.id)
    if first.init is not None:
        return OffsetRange(last.next if last.from_ is None else last.from_, last.next)
    if last.init is not None:
        raise InvalidOffset(
            f"a batch from {first.next} can't end at an initial offset, {last.next}",
            _CHECKPOINT_CURE,
            start=first.next,
            end=last.next,
        )
    if first.next > last.next:
        raise InvalidOffset(
            f"topic {topic!r}: start {first.next} is beyond end {last.next}",
            _CHECKPOINT_CURE,
            start=first.next,
            end=last.next,
        )
    return OffsetRange(first.next, last.next)


def check_topic(offset: StreamOffset, topic: str, topic_id: str) -> TopicPosition:
    """The position in `topic`, if the checkpoint is of that topic alone (`InvalidOffset`) and that table (`TopicRecreated`)."""
    position = offset.position(topic)
    if len(offset.topics) > 1:
        # This version reads one topic a query; the rows of the others would be passed over in silence.
        raise InvalidOffset(
            f"the checkpoint is of topics {offset._names()}, this query reads {topic!r} alone",
            _CHECKPOINT_CURE,
            topic=topic,
        )
    _check_id(topic, position.id, topic_id)
    return position


def _check_id_text(value: object) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidOffset(f"topic id {excerpt(value)} is not a text", _CHECKPOINT_CURE)


def _check_id(topic: str, stored: str, current: str) -> None:
    if stored != current:
        raise TopicRecreated(
            f"topic {topic!r} has id {excerpt(current)}, the checkpoint was made with {excerpt(stored)}",
            _RECREATED_CURE,
            topic=topic,
            stored=stored,
            current=current,
        )


def _load(text: str) -> object:
    if len(text) > TEXT_CHARS_MAX:
        raise InvalidOffset(f"the offset has {len(text)} characters, the most is {TEXT_CHARS_MAX}", _CHECKPOINT_CURE)
    try:
        return json.loads(text, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise InvalidOffset(f"the offset is not JSON: {excerpt(text)}", _CHECKPOINT_CURE) from error


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key stands twice")
    return fields


def _object(value: object, name: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidOffset(f"{name} {excerpt(value)} is not of this product", _CHECKPOINT_CURE)
    return cast("Mapping[str, object]", value)


def _check_version(fields: Mapping[str, object]) -> None:
    version = fields.get("v")
    if isinstance(version, bool) or not isinstance(version, int) or version < VERSION:
        raise InvalidOffset(f"offset {excerpt(fields)} is not of this product", _CHECKPOINT_CURE)
    if version > VERSION:
        raise UnsupportedOffset(
            f"the offset has version {excerpt(version)}, this version of pyspark-trigger reads up to {VERSION}",
            "upgrade pyspark-trigger, or use a new checkpointLocation",
            version=version,
            supported=VERSION,
        )


def _check_fields(fields: Mapping[str, object], required: Iterable[str], optional: Iterable[str]) -> None:
    absent = sorted(set(required) - set(fields))
    foreign = sorted(set(fields) - set(required) - set(optional))
    if absent or foreign:
        raise InvalidOffset(
            f"offset {excerpt(fields)} lacks {excerpt(absent)} and has unknown {excerpt(foreign)}", _CHECKPOINT_CURE
        )


def _topic_name(name: str) -> str:
    try:
        return check_name(name)
    except InvalidName as error:
        raise InvalidOffset(f"the offset names a topic {excerpt(name)}", _CHECKPOINT_CURE) from error


def _position(value: object) -> TopicPosition:
    fields = _object(value, "position")
    _check_fields(fields, required=("id", "next"), optional=("init", "from"))
    if None in fields.values():
        raise InvalidOffset(f"position {excerpt(fields)} has a null", _CHECKPOINT_CURE)
    return TopicPosition(
        cast("str", fields["id"]),  # all four are checked by the position itself
        cast("int", fields["next"]),
        init=cast("InitKind | None", fields.get("init")),
        from_=cast("int | None", fields.get("from")),
    )
