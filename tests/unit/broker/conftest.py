"""A runtime directory of the test's own, and the proof that nothing stays in it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Not tmp_path: a Unix socket's whole path is limited to some hundred characters.
    directory = Path(tempfile.mkdtemp(prefix="trg"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    yield directory
    left = sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))
    shutil.rmtree(directory)
    assert left == [], "close left files behind"
