"""`import pyspark_trigger as trigger`: an event log in a Delta table that pushes.

Spark imports every top-level module called `pyspark_*` and registers its `DefaultSource`, so importing this must be cheap and
must never fail: everything else is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from offsets import OffsetRange as OffsetRange
    from pyspark_trigger.publishing import publish as publish
    from pyspark_trigger.sessions import session as session
    from pyspark_trigger.source import DefaultSource as DefaultSource
    from pyspark_trigger.source import register as register
    from pyspark_trigger.subscribing import asubscribe as asubscribe
    from pyspark_trigger.subscribing import subscribe as subscribe
    from pyspark_trigger.topic import Topic as Topic
    from pyspark_trigger.topic import topics as topics
    from trigger_core.errors import TriggerError as TriggerError

_HOMES = {
    "DefaultSource": "pyspark_trigger.source",
    "OffsetRange": "offsets",
    "Topic": "pyspark_trigger.topic",
    "TriggerError": "trigger_core.errors",
    "asubscribe": "pyspark_trigger.subscribing",
    "publish": "pyspark_trigger.publishing",
    "register": "pyspark_trigger.source",
    "session": "pyspark_trigger.sessions",
    "subscribe": "pyspark_trigger.subscribing",
    "topics": "pyspark_trigger.topic",
}
__all__ = [
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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pyspark_trigger' has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
