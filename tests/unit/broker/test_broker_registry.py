"""Brokers by URL: what is refused, what is imported, and what is never printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import trigger_broker
from trigger_broker import connect, redact, registry
from trigger_core.errors import BrokerError, InvalidOption

ROOT = Path(trigger_broker.__file__).parents[1]


@pytest.mark.parametrize("url", ["local:", "none:", "LOCAL:"])
def test_the_scheme_chooses_the_driver(url: str) -> None:
    with connect(url, {}) as broker:
        assert broker.kind == url[:-1].lower()


def test_drivers_are_protocol_implementations() -> None:
    for url in ("local:", "none:"):
        with connect(url) as broker:
            assert isinstance(broker, trigger_broker.Broker)
            assert not isinstance(broker, trigger_broker.GroupBroker)
            with broker.subscribe(trigger_broker.TopicRef("t", "t", "s")) as subscription:
                assert isinstance(subscription, trigger_broker.Subscription)


@pytest.mark.parametrize("url", ["", "local", "amqp://host", "://", "nats", "/tmp/socket"])
def test_an_unknown_broker_is_refused_with_the_known_ones(url: str) -> None:
    with pytest.raises(InvalidOption, match="local:, none:, nats://host:port"):
        connect(url)


def test_a_near_miss_is_named() -> None:
    with pytest.raises(InvalidOption, match="did you mean kafka"):
        connect("kafak://host:9092")


@pytest.mark.parametrize("url", ["local:/tmp/x", "none://host", "nats:host", "redis:"])
def test_a_url_of_the_wrong_shape_is_refused(url: str) -> None:
    with pytest.raises(InvalidOption):
        connect(url)


@pytest.mark.parametrize(
    "url",
    [
        "nats://alice:hunter2@host:4222",
        "nats://hunter2@host",
        "redis://:hunter2@host:6379/0",
        "kafka://a:hunter2@one:9092,b:hunter2@two:9092",
        "nats:alice:hunter2@host",
        "redis://host?password=hunter2",
        "nats://host?auth_token=hunter2",
        "kafka://host?sasl.Password=hunter2",
        "nats://alice:hunter2@[::1",
    ],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        connect(url)
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(caught.value)
    if "no URL" not in str(caught.value):
        for option in ("broker.user", "broker.password", "broker.token", "broker.credentials"):
            assert option in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://host:4222", "nats://host:4222"),
        ("nats://a:b@host:4222", "nats://***@host:4222"),
        ("redis://:b@c@host/0", "redis://***@host/0"),
        ("kafka://a:b@one,c:d@two", "kafka://***@two"),
        ("a:b@host", "a:***@host"),
        ("a@host", "***@host"),
        ("redis://host?db=1&password=x&tls=1", "redis://host?db=1&password=***&tls=1"),
        ("redis://host#token=x", "redis://host#token=***"),
    ],
)
def test_redact(url: str, shown: str) -> None:
    assert redact(url) == shown


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trigger_broker.driver_nats", None)  # how Python spells "can't be imported"
    with pytest.raises(BrokerError, match=r"pyspark-trigger\[nats\]"):
        connect("nats://host:4222")


@pytest.mark.parametrize("scheme", ["nats", "kafka", "redis"])
def test_every_server_scheme_has_an_extra_of_its_name(scheme: str) -> None:
    assert registry._DRIVERS[scheme].extra == scheme


def test_no_driver_is_imported_before_it_is_asked_for() -> None:
    script = "import sys, trigger_broker; print(sorted(m for m in sys.modules if m.startswith('trigger_broker.driver')))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_the_public_names_are_pinned() -> None:
    assert sorted(trigger_broker.__all__) == [
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
