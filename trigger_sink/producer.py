"""A producer: appends to the outbox, then wakes readers, then keeps the log in order. What the Spark sink and `publish` share.

    append (durable) ──► wake (bounded, never raised) ──► upkeep (bounded)

A SIGKILL after the append loses only the wakeup: the next one, or the readers' poll, makes up for it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from offsets import OffsetRange
from trigger_broker import TopicRef
from trigger_core.errors import TopicNotFound
from trigger_outbox import Appended, Batch, Outbox
from trigger_sink.wake import Waker

PUBLISH_TIMEOUT_MS_DEFAULT = 100
PRODUCERS_MAX = 64
log = logging.getLogger("pyspark_trigger")


@dataclass(frozen=True)
class Target:
    """Where a producer writes. `storage` and `broker_options` may hold secrets: never shown."""

    path: str
    topic: str
    broker: str = "local:"
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)
    broker_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    publish_timeout_ms: int = PUBLISH_TIMEOUT_MS_DEFAULT

    @property
    def key(self) -> tuple[object, ...]:
        """For caches: two targets with one key may share a producer."""
        options = tuple(sorted(self.storage.items())), tuple(sorted(self.broker_options.items()))
        return (os.getpid(), self.path, self.topic, self.broker, options, self.publish_timeout_ms)


class Producer:
    """Writes to one topic, which it creates from the first batch's columns if it is missing. Thread-safe."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.waker = Waker(target.broker, target.broker_options, target.publish_timeout_ms)
        self._outbox: Outbox | None = None
        self._lock = threading.RLock()

    def append(self, batch: Batch) -> Appended:
        """Commits, wakes, keeps up. Raises with nothing written, or `CommitStateUnknown`."""
        with self._lock:
            return self._append(batch)

    def _append(self, batch: Batch) -> Appended:
        outbox = self.outbox(batch.schema)
        done = outbox.append(batch, upkeep=False)
        self._wake(outbox, done)
        if done.range:
            upkeep = outbox.keep_up(done.version)
            if upkeep.merged:
                log.info("topic %s: merged %d files in %.3f s", outbox.topic, upkeep.merged, upkeep.seconds)
        return done

    def outbox(self, schema: pa.Schema | None = None) -> Outbox:
        """The topic's log; with a schema, made if it is missing: every column nullable, as Delta does for a DataFrame."""
        if self._outbox is None:
            target = self.target
            try:
                self._outbox = Outbox.open(target.path, target.topic, target.storage)
            except TopicNotFound as error:
                if schema is None or error.facts.get("dropped"):
                    raise
                nullable = pa.schema([column.with_nullable(True) for column in schema])
                self._outbox = Outbox.create(target.path, target.topic, nullable, target.storage)
        return self._outbox

    def _wake(self, outbox: Outbox, done: Appended) -> None:
        topic = TopicRef(done.table_id, outbox.topic, done.schema.fingerprint)
        if done.range:
            self.waker.wake(topic, done.version, done.range, done.payload)
        elif done.repeated and outbox.state.range:
            # The batch was committed by a run that may have died before its wakeup: point at the head once more.
            end = outbox.state.end
            self.waker.wake(topic, outbox.state.version, OffsetRange(end - 1, end), None)

    def close(self) -> None:
        self.waker.close()


_producers: OrderedDict[tuple[object, ...], Producer] = OrderedDict()
_producers_lock = threading.RLock()


def shared_producer(target: Target) -> Producer:
    """The process's producer for this target, kept between calls and batches: its followed state and connections pay."""
    with _producers_lock:
        found = _producers.pop(target.key, None) or Producer(target)
        _producers[target.key] = found
        while len(_producers) > PRODUCERS_MAX:
            _producers.popitem(last=False)[1].close()
        return found


def forget_producer(target: Target) -> None:
    """After a failure, or when the topic is another than the kept one knew: the next call starts from the log."""
    with _producers_lock:
        found = _producers.pop(target.key, None)
    if found is not None:
        found.close()
