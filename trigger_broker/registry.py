"""From a broker's URL to its driver, imported only when asked for: nobody pays for a client library they don't use.

Owns what is common to all URLs: which schemes exist, and that a URL holds no secret, because Spark prints options.
A driver module has `open_broker(url, options) -> Broker`, which does no I/O.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from trigger_broker.protocol import Broker
from trigger_core.errors import BrokerError, InvalidOption


@dataclass(frozen=True)
class _Driver:
    module: str
    extra: str | None
    """What to install for its client library; None where the standard library is enough."""


_DRIVERS = {
    "local": _Driver("trigger_broker.driver_local", None),
    "none": _Driver("trigger_broker.driver_none", None),
    "nats": _Driver("trigger_broker.driver_nats", "nats"),
    "kafka": _Driver("trigger_broker.driver_kafka", "kafka"),
    "redis": _Driver("trigger_broker.driver_redis", "redis"),
}
_SPELLINGS = "local:, none:, nats://host:port, kafka://host:port or redis://host:port"
_CREDENTIALS_CURE = (
    "leave it out of the URL, which Spark prints; use broker.user, broker.password, broker.token or broker.credentials"
)
_SECRET_KEYS = re.compile(r"user|pass|token|secret|cred|auth|key", re.IGNORECASE)


def connect(url: str, options: Mapping[str, str] | None = None) -> Broker:
    """The broker at `url`; `options` are the user's `broker.*` options, which `local:` and `none:` have no use for.

    Does no I/O, so a server that is down shows at first use. Raises `InvalidOption` for a URL that can't be meant or that
    carries credentials, `BrokerError` when the driver's client library is missing.
    """
    scheme, separator, rest = url.partition(":")
    scheme = scheme.lower()
    if not separator or scheme not in _DRIVERS:
        near = difflib.get_close_matches(scheme, _DRIVERS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InvalidOption(f"broker {redact(url)!r} is none that exists", f"{hint}use {_SPELLINGS}", option="broker")
    driver = _DRIVERS[scheme]
    _refuse_credentials(url)
    if driver.extra is None and rest:
        raise InvalidOption(f"broker {redact(url)!r} has something after {scheme}:", f"use {scheme}: alone", option="broker")
    if driver.extra is not None and not rest.startswith("//"):
        raise InvalidOption(f"broker {redact(url)!r} names no server", f"use {scheme}://host:port", option="broker")
    try:
        module = importlib.import_module(driver.module)
    except ImportError as error:
        cure = f"pip install 'pyspark-trigger[{driver.extra}]' on the driver and on every worker"
        if driver.extra is None:
            cure = "this system lacks what it needs; use a broker with a server, or none:"
        raise BrokerError(f"the driver for {scheme}: could not be imported ({error})", cure, scheme=scheme) from error
    broker: Broker = module.open_broker(url, dict(options or {}))
    return broker


def redact(url: str) -> str:
    """`url`, fit to be printed: without what stands before an `@`, and without the values of tell-tale parameters."""
    shown = re.sub(r"^([A-Za-z0-9+.-]*:(?://)?)?.*@", r"\1***@", url, flags=re.DOTALL)
    return re.sub(r"([?&;#])([^=&;#]*)=([^&;#]*)", _redact_parameter, shown)


def _redact_parameter(match: re.Match[str]) -> str:
    mark, key, value = match.groups()
    return f"{mark}{key}={'***' if _SECRET_KEYS.search(key) else value}"


def _refuse_credentials(url: str) -> None:
    try:
        parts = urlsplit(url)
        parameters = [key for key, _ in parse_qsl(parts.query, keep_blank_values=True)]
    except ValueError as error:
        raise InvalidOption(f"broker {redact(url)!r} is no URL", f"use {_SPELLINGS}", option="broker") from error
    if "@" in url or any(_SECRET_KEYS.search(key) for key in parameters):
        raise InvalidOption(f"broker {redact(url)!r} carries credentials", _CREDENTIALS_CURE, option="broker")
