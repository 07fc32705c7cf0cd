"""A publisher or a subscriber of the demo, in a process of its own that may be killed at any line.

The subscriber keeps its position in a file, one line per batch: a line is written whole or not at all, so a position never lies.
"""

from __future__ import annotations

import json
import os
import sys
import time

import pyspark_trigger as trigger
from demo.__main__ import BATCHES, ROWS_PER_BATCH, TOPIC

PAUSE_S = 0.02
LIVE_MS_MAX = 1000.0
"""Older rows are history: their age says nothing of latency."""


def publish(path: str, name: str, first: int) -> None:
    for number in range(first, BATCHES):
        sent_us = time.time_ns() // 1000
        rows = [{"publisher": name, "batch": number, "sent_us": sent_us}] * ROWS_PER_BATCH
        trigger.publish(path, TOPIC, rows, app_id=f"publisher-{name}", version=number)
        time.sleep(PAUSE_S)


def subscribe(path: str, position_file: str) -> None:
    start = 0
    if os.path.exists(position_file):
        with open(position_file) as file:
            start = max((json.loads(line)["end"] for line in file), default=0)
    descriptor = os.open(position_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    subscriber = trigger.subscribe(path, TOPIC, start=start)
    hot = cold = 0
    for batch in subscriber:
        age_ms = (time.time_ns() // 1000 - (batch.column("sent_us")[-1].as_py() or 0)) / 1000
        entry = {
            "start": batch.column("_offset")[0].as_py(),
            "end": batch.column("_offset")[-1].as_py() + 1,
            "hot": subscriber.hot_rows - hot,
            "cold": subscriber.cold_rows - cold,
            "latency_ms": age_ms if age_ms < LIVE_MS_MAX else None,
        }
        hot, cold = subscriber.hot_rows, subscriber.cold_rows
        os.write(descriptor, json.dumps(entry).encode() + b"\n")


if __name__ == "__main__":
    if sys.argv[1] == "publisher":
        publish(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        subscribe(sys.argv[2], sys.argv[3])
