"""A Spark driver in a process of its own: run as a script with a job and its folder, killed by the tests.

    driver.py write  <folder>                 topic `in` → topic `out`, until it is killed or `out` has all
    driver.py read   <folder>                 topic `in` → one file per batch under `batches`, likewise
    driver.py master <folder> <master>        the same rows through another master, or through Spark Connect
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pyspark_trigger as trigger

ROWS = 400
ROWS_PER_BATCH = 5
MANY_TASKS = 200
END_S = 300


def main(job: str, folder: Path, master: str = "local[2]") -> None:
    if job == "master":
        through(folder, master)
        return
    spark = trigger.session(job, master=master, delta=False, config={"spark.sql.warehouse.dir": str(folder / "warehouse")})
    spark.sparkContext.setLogLevel("OFF")
    source = {"path": str(folder / "topics"), "topic": "in", "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(ROWS_PER_BATCH)}
    frame = spark.readStream.format("trigger").options(**source).load()
    if job == "write":
        sink = frame.select("id").writeStream.format("trigger").options(path=str(folder / "topics"), topic="out", inlineBytes="0")
    else:
        (folder / "batches").mkdir(exist_ok=True)
        sink = frame.writeStream.foreachBatch(lambda batch, number: keep(folder / "batches" / str(number), batch))
    query = sink.option("checkpointLocation", str(folder / f"checkpoint-{job}")).trigger(availableNow=True).start()
    assert query.awaitTermination(END_S)
    spark.stop()


def keep(path: Path, frame: Any) -> None:
    """One batch in one file, put in place whole: a batch that is run again writes the same name again."""
    rows = [[row["_offset"], row["id"]] for row in frame.collect()]
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(rows))
    temporary.rename(path)


def through(folder: Path, master: str) -> None:
    """Writes and reads, as batches and as streams, and prints what it read."""
    spark = connected() if master == "connect" else clustered(folder, master)
    options = {"path": str(folder / "topics"), "topic": "out"}
    frame = spark.range(0, 1000, 1, MANY_TASKS if master != "connect" else 8).selectExpr("id", "repeat('x', 200) AS filler")
    frame.write.format("trigger").options(**options).mode("append").save()
    more = spark.readStream.format("trigger").options(**options | {"startingOffsets": "earliest"}).load()
    checkpoint = str(folder / "checkpoint")
    copy = more.selectExpr("id", "_offset AS original").writeStream.format("trigger").options(**options | {"topic": "copy"})
    query = copy.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(END_S)
    rows = spark.read.format("trigger").options(**options | {"topic": "copy", "minPartitions": "4"}).load().orderBy("_offset").collect()
    print(json.dumps([[row["_offset"], row["original"], row["id"]] for row in rows]))
    spark.stop()


def clustered(folder: Path, master: str) -> Any:
    config = {
        "spark.driver.maxResultSize": "1m",  # a commit message carries at most 32 KiB of rows: the rest is staged
        "spark.executorEnv.PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "spark.executorEnv.PYSPARK_PYTHON": sys.executable,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    spark = trigger.session(master=master, delta=False, config=config)
    spark.sparkContext.setLogLevel("OFF")
    return spark


def connected() -> Any:
    from pyspark.sql import SparkSession

    return SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false").getOrCreate()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
