"""Fixtures of the fault tests: processes that end with their test, and chance that can be repeated."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from tests.faults.processes import Crew


@pytest.fixture
def crew() -> Iterator[Crew]:
    with Crew() as crew:
        yield crew


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Seeded by the test's parameter, or by TRIGGER_SEED; a failure shows which."""
    seed = int(os.environ.get("TRIGGER_SEED", getattr(request, "param", 1)))
    print(f"seed: run again with TRIGGER_SEED={seed}")
    return random.Random(seed)
