"""F6: every driver passes the one suite; a skip needs a capability that the driver does not declare."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from trigger_broker import connect
from trigger_broker.conformance import Scenario, run, scenarios

# What each driver skips, so that one that forgets a capability does not quietly skip what it should pass.
UNDECLARED = {
    "local:": {"retention", "groups", "dedup", "purge", "cross_host"},
    "none:": {"delivery", "retention", "groups", "dedup", "purge", "cross_host"},
}


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # Not tmp_path: a Unix socket's whole path is limited to some hundred characters.
    directory = Path(tempfile.mkdtemp(prefix="trg"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    yield directory
    left = sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))
    shutil.rmtree(directory)
    assert left == []


@pytest.mark.parametrize("url", UNDECLARED)
@pytest.mark.parametrize("scenario", scenarios(), ids=lambda scenario: scenario.name)
def test_F6_driver_conforms(url: str, scenario: Scenario, runtime: Path) -> None:
    outcome = run(scenario, lambda: connect(url))
    if scenario.needs & UNDECLARED[url]:
        assert outcome.status == "skipped"
        pytest.skip(outcome.reason)
    assert outcome.status == "passed", outcome.reason
