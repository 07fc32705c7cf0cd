"""The one Spark session of a test run, built as users build theirs. The format is found by Spark's own discovery: nothing is registered."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

import pyspark_trigger as trigger

REPOSITORY = Path(__file__).resolve().parent.parent


def prepare_workers(environment: dict[str, str] | os._Environ[str]) -> None:
    """Spark's workers and planners run this Python, and find this package also where it is not installed."""
    environment["PYSPARK_PYTHON"] = environment["PYSPARK_DRIVER_PYTHON"] = sys.executable
    try:
        metadata.distribution("pyspark-trigger")
    except metadata.PackageNotFoundError:
        known = [part for part in environment.get("PYTHONPATH", "").split(os.pathsep) if part]
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(REPOSITORY), *known]))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Imported by several conftests and still one session: `getOrCreate` gives the one there is, and all end with the run."""
    prepare_workers(os.environ)
    config = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.ui.enabled": "false",
    }
    session = trigger.session("tests", master="local[2]", config=config)
    session.sparkContext.setLogLevel("OFF")  # tests that provoke failures would fill the report with Spark's stacks
    yield session
    session.stop()
