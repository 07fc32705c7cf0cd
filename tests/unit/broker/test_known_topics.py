from __future__ import annotations

import pytest

from trigger_broker.known_topics import KNOWN_TOPICS_MAX, KnownTopics
from trigger_broker.protocol import TopicRef
from trigger_core.errors import SchemaConflict


def test_F1_a_conflict_names_both_schemas_and_changes_nothing() -> None:
    topics = KnownTopics()
    topics.ensure(TopicRef("id", "orders", "one"))
    with pytest.raises(SchemaConflict, match="'orders' is known with schema one, not two"):
        topics.ensure(TopicRef("id", "orders", "two"))
    topics.ensure(TopicRef("id", "orders", "one"))


def test_a_recreated_topic_is_another_topic() -> None:
    topics = KnownTopics()
    topics.ensure(TopicRef("id", "orders", "one"))
    topics.ensure(TopicRef("other", "orders", "two"))


def test_a_forgotten_topic_may_have_any_schema() -> None:
    topics = KnownTopics()
    topics.ensure(TopicRef("id", "orders", "one"))
    topics.forget("id")
    topics.forget("id")
    topics.ensure(TopicRef("id", "orders", "two"))


def test_memory_is_bounded_and_the_latest_are_kept() -> None:
    topics = KnownTopics()
    for number in range(KNOWN_TOPICS_MAX + 10):
        topics.ensure(TopicRef(str(number), "t", "one"))
    assert len(topics._schemas) == KNOWN_TOPICS_MAX
    with pytest.raises(SchemaConflict):
        topics.ensure(TopicRef(str(KNOWN_TOPICS_MAX + 9), "t", "two"))
