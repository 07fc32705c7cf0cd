"""A folder for topics, and a place of its own where processes of one test meet: what is left there at the end is a leak."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.worker import Worker


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "topics")


@pytest.fixture(autouse=True)
def runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """`local:` uses this directory here and in every worker. Short, because a socket's path is limited."""
    directory = tempfile.mkdtemp(prefix="trg-")
    monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def workers(runtime_dir: str) -> Iterator[type[Worker]]:
    """`Worker`, with every process that was started ended after the test."""
    Worker.started.clear()
    try:
        yield Worker
    finally:
        for worker in Worker.started:
            worker.end()
        Worker.started.clear()


def sockets_in(directory: str) -> list[str]:
    return [os.path.join(folder, name) for folder, _, names in os.walk(directory) for name in names]
