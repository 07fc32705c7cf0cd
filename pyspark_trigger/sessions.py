"""`session`: a Spark session that has all this product needs, in one line, for notebooks and scripts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
_CHECKPOINTS_4_0 = "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
LOW_LATENCY = {"spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINTS}


def session(
    name: str = "pyspark-trigger",
    *,
    master: str = "local[*]",
    low_latency: bool = False,
    delta: bool = True,
    config: Mapping[str, str] | None = None,
) -> Any:
    """A session on `master` with this Python for its workers and, with `delta`, delta-spark's jar for SQL over the topics.

    `low_latency` replaces Spark's checkpoint file manager by one that starts no process per file: see docs/low-latency.md for
    what that gives up. `config` is added last and wins.
    """
    import pyspark
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name).master(master)
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    if low_latency:
        settings |= LOW_LATENCY
        if pyspark.__version__.startswith("4.0."):
            settings["spark.sql.streaming.checkpointFileManagerClass"] = _CHECKPOINTS_4_0
    if delta:
        settings |= {"spark.sql.extensions": DELTA_EXTENSION, "spark.sql.catalog.spark_catalog": DELTA_CATALOG}
    for key, value in {**settings, **(config or {})}.items():
        builder = builder.config(key, value)
    if delta:
        from delta import configure_spark_with_delta_pip

        builder = configure_spark_with_delta_pip(builder)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
