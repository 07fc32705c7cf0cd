"""From a broker's bytes to one entry, decoded or malformed on its own: one bad message never costs its neighbours."""

from __future__ import annotations

from trigger_broker.protocol import Fetched, Malformed, Received
from trigger_core.errors import MalformedWakeup
from trigger_core.wakeup import decode


def read_entry(raw: bytes, topic_id: str, native_id: str, deliveries: int = 1) -> Received:
    """What arrived on `topic_id`; never raises for what is in `raw`. A wakeup of another topic is malformed here."""
    try:
        wakeup = decode(raw)
    except MalformedWakeup as error:
        return Malformed(raw, error.problem, native_id, deliveries)
    if wakeup.topic_id != topic_id:
        return Malformed(raw, f"a wakeup of topic {wakeup.topic_id} arrived on {topic_id}", native_id, deliveries)
    return Fetched(wakeup, native_id, deliveries)
