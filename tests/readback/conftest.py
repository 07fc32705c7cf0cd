"""Every kind of commit, read by the engines that users have: delta-rs and delta-spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark_session import spark as spark


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and "engine_spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)
            # Spark's own Python warns of sockets it leaves to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="session")
def engine_spark(spark: Any) -> Any:
    """The shared session, told that these tables are small."""
    spark.conf.set("spark.databricks.delta.snapshotPartitions", "1")
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
    spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    return spark
