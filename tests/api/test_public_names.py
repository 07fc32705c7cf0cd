"""What `import pyspark_trigger` offers, and what it costs: a change here is a change of the public API."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import pyspark_trigger as trigger
from tests.api.worker import DEADLINE_S, ROOT

NAMES = [
    "DefaultSource",
    "OffsetRange",
    "Topic",
    "TriggerError",
    "asubscribe",
    "publish",
    "register",
    "session",
    "subscribe",
    "topics",
]
TOPIC_METHODS = [
    "append",
    "compact",
    "create",
    "describe",
    "drop",
    "earliest",
    "head",
    "read",
    "release",
    "trim",
    "vacuum",
    "verify",
]


def test_public_names() -> None:
    assert sorted(trigger.__all__) == NAMES
    assert set(NAMES) <= set(dir(trigger))
    for name in NAMES:
        assert getattr(trigger, name) is not None


def test_topic_methods() -> None:
    found = {name for name, _ in inspect.getmembers(trigger.Topic, inspect.isfunction) if not name.startswith("_")}
    assert set(TOPIC_METHODS) <= found


def parameters(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_signatures() -> None:
    assert parameters(trigger.publish) == ["path", "topic", "data", "broker", "app_id", "version", "options"]
    wanted = ["path", "topic", "start", "end", "broker", "predicate", "consumer", "timeout", "storage"]
    assert parameters(trigger.subscribe) == wanted
    assert parameters(trigger.asubscribe) == wanted
    assert parameters(trigger.Topic) == ["path", "name", "broker", "storage"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        trigger.nonsense  # noqa: B018


def test_publish_and_subscribe_need_no_spark(path: str) -> None:
    """The whole Python API works where pyspark can't be imported."""
    program = f"""
import sys
sys.modules["pyspark"] = None
import pyspark_trigger as trigger
start, end = trigger.publish({path!r}, "t", [{{"n": 1}}, {{"n": 2}}])
assert (start, end) == (0, 2)
with trigger.subscribe({path!r}, "t", start="earliest", end=2) as feed:
    assert sum(batch.num_rows for batch in feed) == 2
assert trigger.Topic({path!r}, "t").verify().ok
assert [each.name for each in trigger.topics({path!r})] == ["t"]
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr
