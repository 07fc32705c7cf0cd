"""What a driver with a server is told: where it is, who we are, how long it keeps things. The one reader of `broker.*` options.

Secrets come from `broker.*` options or, where those are absent, from the environment; they are never shown.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from trigger_core.errors import InvalidOption

RETENTION_MS_DEFAULT = 3_600_000
RETENTION_BYTES_DEFAULT = 256 * 1024**2
CONNECT_TIMEOUT_MS_DEFAULT = 2_000
RETENTION_MS_MIN, RETENTION_MS_MAX = 1_000, 365 * 86_400_000
RETENTION_BYTES_MIN, RETENTION_BYTES_MAX = 1024**2, 2**50
CONNECT_TIMEOUT_MS_MIN, CONNECT_TIMEOUT_MS_MAX = 10, 60_000
SERVERS_MAX = 32
ENVIRONMENT = {
    "user": "TRIGGER_BROKER_USER",
    "password": "TRIGGER_BROKER_PASSWORD",
    "token": "TRIGGER_BROKER_TOKEN",
    "credentials": "TRIGGER_BROKER_CREDENTIALS",
}
_NAMES = (*ENVIRONMENT, "tls", "tls.ca", "tls.cert", "tls.key", "retentionms", "retentionbytes", "connecttimeoutms")
_SHOWN = {"retentionms": "retentionMs", "retentionbytes": "retentionBytes", "connecttimeoutms": "connectTimeoutMs"}


@dataclass(frozen=True)
class Tls:
    """TLS, verified always. `ca` is a file of trusted certificates, the system's if None; `cert` and `key` are the client's."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class ServerSettings:
    """Its repr shows no secret."""

    servers: tuple[tuple[str, int], ...]
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    credentials: str | None = field(default=None, repr=False)
    """Path of a credentials file."""
    tls: Tls | None = None
    retention_ms: int = RETENTION_MS_DEFAULT
    retention_bytes: int = RETENTION_BYTES_DEFAULT
    connect_timeout_ms: int = CONNECT_TIMEOUT_MS_DEFAULT
    passed_through: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The driver's own options, `<scheme>.*`, without the prefix."""


def read_settings(scheme: str, url: str, options: Mapping[str, str], default_port: int) -> ServerSettings:
    """From `broker` and `broker.*`, keys in lower case. Raises `InvalidOption` that names the option and never its value
    where that may be a secret."""
    given = {name.lower(): value for name, value in options.items()}
    prefix = f"{scheme}."
    passed = {name[len(prefix) :]: value for name, value in given.items() if name.startswith(prefix) and name != prefix}
    for name in given:
        if name not in _NAMES and not (name.startswith(prefix) and name != prefix):
            _refuse_unknown(name, prefix)
    secrets = {name: given.get(name) or os.environ.get(variable) or None for name, variable in ENVIRONMENT.items()}
    if secrets["password"] and not secrets["user"] and scheme != "redis":  # Redis has a password without a user
        raise InvalidOption("broker.password has no broker.user", "give both", option="broker.user")
    if secrets["credentials"] and not Path(secrets["credentials"]).is_file():
        raise InvalidOption("broker.credentials names no file", "give a credentials file's path", option="broker.credentials")
    return ServerSettings(
        _servers(url, scheme, default_port),
        secrets["user"],
        secrets["password"],
        secrets["token"],
        secrets["credentials"],
        _tls(given),
        _bounded(given, "retentionms", RETENTION_MS_DEFAULT, RETENTION_MS_MIN, RETENTION_MS_MAX),
        _bounded(given, "retentionbytes", RETENTION_BYTES_DEFAULT, RETENTION_BYTES_MIN, RETENTION_BYTES_MAX),
        _bounded(given, "connecttimeoutms", CONNECT_TIMEOUT_MS_DEFAULT, CONNECT_TIMEOUT_MS_MIN, CONNECT_TIMEOUT_MS_MAX),
        passed,
    )


def refuse_passed(settings: ServerSettings, scheme: str, broken: Mapping[str, str]) -> None:
    """Refuses by name the driver options that would break the contract; `broken` says why, and what to use instead."""
    for name, why in broken.items():
        if name in settings.passed_through:
            raise InvalidOption(f"option {scheme}.{name} can't be set: {why}", "leave it out", option=f"{scheme}.{name}")


def _servers(url: str, scheme: str, default_port: int) -> tuple[tuple[str, int], ...]:
    place = urlsplit(url)
    if place.path.strip("/") or place.query or place.fragment:
        raise InvalidOption(f"broker {url!r} has more than servers in it", f"use {scheme}://host:port", option="broker")
    found = []
    for server in place.netloc.split(","):
        match = re.fullmatch(r"(\[[0-9A-Fa-f:]+\]|[^:\[\]\s]+)(?::([0-9]{1,5}))?", server)
        port = int(match[2] or default_port) if match else 0
        if match is None or not 0 < port < 65536:
            raise InvalidOption(f"broker {url!r} names no server in {server!r}", f"use {scheme}://host:port", option="broker")
        found.append((match[1].strip("[]"), port))
    if len(found) > SERVERS_MAX:
        raise InvalidOption(f"broker names {len(found)} servers", f"give at most {SERVERS_MAX}", option="broker")
    return tuple(found)


def _tls(given: Mapping[str, str]) -> Tls | None:
    wanted = given.get("tls", "true" if any(name.startswith("tls.") for name in given) else "false").lower()
    if wanted not in ("true", "false"):
        raise InvalidOption(f"broker.tls is {given['tls']!r}", "give true or false", option="broker.tls")
    files = {name: given.get(f"tls.{name}") for name in ("ca", "cert", "key")}
    if wanted == "false":
        if any(files.values()):
            raise InvalidOption("broker.tls is false, and broker.tls.* are given", "leave one of them out", option="broker.tls")
        return None
    for name, path in files.items():
        if path is not None and not Path(path).is_file():
            raise InvalidOption(f"broker.tls.{name} names no file", "give the path of a PEM file", option=f"broker.tls.{name}")
    if (files["cert"] is None) != (files["key"] is None):
        raise InvalidOption("broker.tls.cert and broker.tls.key go together", "give both or neither", option="broker.tls.cert")
    return Tls(files["ca"], files["cert"], files["key"])


def _bounded(given: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    value = given.get(name)
    if value is None:
        return default
    if not re.fullmatch(r"[0-9]{1,18}", value) or not least <= int(value) <= most:
        shown = f"broker.{_SHOWN[name]}"
        raise InvalidOption(f"{shown} is {value!r}", f"give a whole number from {least} to {most}", option=shown)
    return int(value)


def _refuse_unknown(name: str, prefix: str) -> None:
    near = difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.6)
    cure = f"did you mean broker.{_SHOWN.get(near[0], near[0])}?" if near else f"the driver's own options are {prefix}*"
    raise InvalidOption(f"there is no option 'broker.{name}'", cure, option=f"broker.{name}")
