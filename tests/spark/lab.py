"""A folder with topics and checkpoints, and streams over them that a test can drain or watch."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import pyspark_trigger as trigger
from trigger_broker import Fetched, Subscription, TopicRef, connect
from trigger_core.wakeup import Wakeup
from trigger_outbox import Outbox

DEADLINE_S = 120.0
"""For anything that must happen on a slow and busy machine."""
LOOK_S = 0.5
NEVER_MS = str(10 * 60 * 1000)
"""A poll interval that no test lives to see: what arrives, arrives by wakeup."""


class Seen:
    """What a stream has delivered, batch by batch; the function that `foreachBatch` calls."""

    def __init__(self, before: Callable[[Any, int], None] | None = None) -> None:
        self.batches: list[tuple[int, list[Any]]] = []
        self._before = before
        self._news = threading.Condition()

    def __call__(self, frame: Any, batch: int) -> None:
        if self._before is not None:
            self._before(frame, batch)
        rows = frame.collect()
        with self._news:
            self.batches.append((batch, rows))
            self._news.notify_all()

    @property
    def rows(self) -> list[Any]:
        return [row for _, rows in self.batches for row in rows]

    @property
    def offsets(self) -> list[int]:
        return [row["_offset"] for row in self.rows]

    @property
    def sizes(self) -> list[int]:
        """Rows of each batch that had any."""
        return [len(rows) for _, rows in self.batches if rows]

    def wait(self, query: Any, rows: int) -> None:
        """Until so many rows have come."""
        self.wait_until(query, lambda: len(self.rows) >= rows, f"{rows} rows")

    def wait_until(self, query: Any, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        with self._news:
            while not condition():
                if query.exception() is not None:
                    pytest.fail(f"the query failed while {what} were awaited: {query.exception()}")
                if time.monotonic() > deadline:
                    pytest.fail(f"no {what} within {DEADLINE_S} s, only {len(self.rows)} rows: {query.lastProgress}")
                self._news.wait(LOOK_S)


class Lab:
    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.path = str(folder / "topics")
        self._queries: list[Any] = []
        self._open: list[Any] = []

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        for query in self._queries:
            query.stop()
        for each in reversed(self._open):
            each.close()

    # Topics, without Spark

    def topic(self, name: str = "t", broker: str = "local:") -> trigger.Topic:
        return trigger.Topic(self.path, name, broker=broker)

    def publish(self, start: int, end: int, name: str = "t", **options: Any) -> None:
        """Rows `{"id": n}` for n from start to end, in one commit; `id` equals `_offset` where a test publishes in order."""
        trigger.publish(self.path, name, [{"id": n} for n in range(start, end)], **options)

    def ref(self, name: str = "t") -> TopicRef:
        state = Outbox.open(self.path, name).state
        return TopicRef(state.table_id, name, state.metadata.schema.fingerprint)

    def listen(self, name: str = "t") -> Subscription:
        broker = connect("local:")
        self._open.append(broker)
        return broker.subscribe(self.ref(name))

    def staged(self, name: str = "t") -> list[Path]:
        return [path for path in (self.folder / "topics" / name / "staging").rglob("*") if path.is_file()]

    # Spark

    def source(self, name: str = "t", **options: Any) -> dict[str, str]:
        return {"path": self.path, "topic": name} | {key: str(value) for key, value in options.items()}

    def read(self, name: str = "t", **options: Any) -> Any:
        return self.spark.read.format("trigger").options(**self.source(name, **options)).load()

    def stream(self, name: str = "t", **options: Any) -> Any:
        return self.spark.readStream.format("trigger").options(**self.source(name, **options)).load()

    def write(self, frame: Any, name: str = "t", mode: str = "append", **options: Any) -> None:
        frame.write.format("trigger").options(**self.source(name, **options)).mode(mode).save()

    @contextmanager
    def setting(self, name: str, value: str) -> Iterator[None]:
        """A setting of the session, for a block of code."""
        self.spark.conf.set(name, value)
        try:
            yield
        finally:
            self.spark.conf.unset(name)

    def checkpoint(self, name: str = "checkpoint") -> Path:
        return self.folder / "checkpoints" / name

    def drain(
        self, frame: Any, checkpoint: str = "checkpoint", *, seen: Seen | None = None, once: bool = False, output: str = "append"
    ) -> Seen:
        """Runs a stream to the head it sees at its start, and returns what came."""
        seen = Seen() if seen is None else seen
        kind: dict[str, Any] = {"once": True} if once else {"availableNow": True}
        writer = frame.writeStream.foreachBatch(seen).outputMode(output)
        self._finish(writer.option("checkpointLocation", str(self.checkpoint(checkpoint))).trigger(**kind).start())
        return seen

    def watch(self, frame: Any, checkpoint: str = "checkpoint", *, seen: Seen | None = None) -> tuple[Any, Seen]:
        """Starts a stream that runs until the test ends."""
        seen = Seen() if seen is None else seen
        query = frame.writeStream.foreachBatch(seen).option("checkpointLocation", str(self.checkpoint(checkpoint))).start()
        self._queries.append(query)
        return query, seen

    def pour(self, frame: Any, name: str = "t", checkpoint: str = "writer", *, output: str = "append", **options: Any) -> None:
        """Runs a stream into a topic, to the head that it sees at its start."""
        writer = frame.writeStream.format("trigger").options(**self.source(name, **options)).outputMode(output)
        self._finish(writer.option("checkpointLocation", str(self.checkpoint(checkpoint))).trigger(availableNow=True).start())

    def _finish(self, query: Any) -> None:
        self._queries.append(query)
        if not query.awaitTermination(DEADLINE_S):
            pytest.fail(f"the query did not end within {DEADLINE_S} s: {query.lastProgress}")

    # Spark's checkpoint

    def positions(self, checkpoint: str = "checkpoint", name: str = "t") -> list[dict[str, Any]]:
        """The position in the topic that each file of `offsets` holds."""
        folder = self.checkpoint(checkpoint) / "offsets"
        files = sorted((path for path in folder.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        return [json.loads(path.read_text().splitlines()[2])["topics"][name] for path in files]

    def forget(self, log: str, batch: int, checkpoint: str = "checkpoint") -> None:
        """Deletes `offsets/N` or `commits/N`, as a crash before it was written."""
        folder = self.checkpoint(checkpoint) / log
        (folder / str(batch)).unlink()
        (folder / f".{batch}.crc").unlink(missing_ok=True)

    def last(self, log: str, checkpoint: str = "checkpoint") -> int:
        return max(int(path.name) for path in (self.checkpoint(checkpoint) / log).iterdir() if path.name.isdigit())

    def rewrite_offset(self, batch: int, text: str, checkpoint: str = "checkpoint") -> None:
        path = self.checkpoint(checkpoint) / "offsets" / str(batch)
        lines = path.read_text().splitlines()
        path.write_text("\n".join([*lines[:2], text]))
        path.with_name(f".{batch}.crc").unlink(missing_ok=True)


def wakeups(subscription: Subscription, until: Callable[[list[Wakeup]], bool]) -> list[Wakeup]:
    """What comes in until the condition holds."""
    deadline = time.monotonic() + DEADLINE_S
    found: list[Wakeup] = []
    while not until(found):
        if time.monotonic() > deadline:
            pytest.fail(f"the wakeups did not come: {found}")
        found += [entry.wakeup for entry in subscription.receive(1000) if isinstance(entry, Fetched)]
    return found


def refused(action: Callable[[], Any], code: str, *words: str) -> str:
    """The action fails, and one line of Spark's traceback says it all: the code, the thing, the cure. Returns that line."""
    with pytest.raises(Exception, match=re.escape(f"[{code}]")) as caught:
        action()
    line = next(line for line in str(caught.value).splitlines() if f"[{code}]" in line)
    for word in (*words, " — "):
        assert word in line, f"{word!r} is not in {line!r}"
    return line


def consecutive(start: int, end: int) -> list[int]:
    return list(range(start, end))


def ids(rows: Iterable[Any]) -> list[int]:
    return [row["id"] for row in rows]
