"""Brokers: they carry wakeups from the sink to the sources. The protocol, the registry, one module per driver, and the
conformance suite that each driver passes. A broker makes it fast; it never makes it correct."""

from trigger_broker.protocol import (
    Broker,
    Capability,
    ConsumerPosition,
    Delivery,
    Fetched,
    GroupBroker,
    Malformed,
    PurgingBroker,
    Received,
    Subscription,
    SubscriptionCounts,
    TopicRef,
)
from trigger_broker.registry import connect, redact

__all__ = [
    "Broker",
    "Capability",
    "ConsumerPosition",
    "Delivery",
    "Fetched",
    "GroupBroker",
    "Malformed",
    "PurgingBroker",
    "Received",
    "Subscription",
    "SubscriptionCounts",
    "TopicRef",
    "connect",
    "redact",
]
