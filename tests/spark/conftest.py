"""Every test here runs real Spark on real Delta in one session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.lab import Lab
from tests.spark_session import spark as spark


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.spark)
            # Spark's own Python warns of sockets it leaves to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture
def lab(spark: Any, tmp_path: Path) -> Any:
    with Lab(spark, tmp_path) as made:
        yield made
