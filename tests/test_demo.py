"""The demo is the first thing anybody runs: it must come to its end, and its audit must hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_demo_audits_itself() -> None:
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-m", "demo"], cwd=root, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "missing 0, repeated 0, in order True, log whole" in done.stdout
    assert "killed with SIGKILL" in done.stdout
