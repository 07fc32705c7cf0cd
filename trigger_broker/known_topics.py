"""The schemas a connection has ensured: how a driver without a server notices a conflict."""

from __future__ import annotations

from threading import Lock

from trigger_broker.protocol import TopicRef
from trigger_core.errors import SchemaConflict

KNOWN_TOPICS_MAX = 4096


class KnownTopics:
    """Remembers the latest `KNOWN_TOPICS_MAX`; a forgotten one only means a conflict that goes unnoticed here."""

    def __init__(self) -> None:
        self._schemas: dict[str, str] = {}
        self._lock = Lock()

    def ensure(self, topic: TopicRef) -> None:
        with self._lock:
            known = self._schemas.pop(topic.topic_id, topic.schema)
            self._schemas[topic.topic_id] = known
            if len(self._schemas) > KNOWN_TOPICS_MAX:
                del self._schemas[next(iter(self._schemas))]
        if known != topic.schema:
            raise SchemaConflict(
                f"topic {topic.name!r} is known with schema {known}, not {topic.schema}",
                "drop_topic first if its schema has evolved",
                topic=topic.name,
                known=known,
                asked=topic.schema,
            )

    def forget(self, topic_id: str) -> None:
        with self._lock:
            self._schemas.pop(topic_id, None)
