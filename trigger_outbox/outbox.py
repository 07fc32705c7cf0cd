"""`Outbox`: one topic's log, with all that can be done to it. The face of this package."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from offsets import OffsetRange
from trigger_core.names import check_name
from trigger_outbox import lifecycle, maintain, staging
from trigger_outbox.append import Appended, Appender, Batch
from trigger_outbox.commit import Commit
from trigger_outbox.follow import Follower
from trigger_outbox.lifecycle import OUTBOX, Description
from trigger_outbox.read import offset_at, read_range
from trigger_outbox.state import LogState
from trigger_outbox.storage import Store, open_store
from trigger_outbox.trim import trim
from trigger_outbox.verify import Audit, verify


class Outbox:
    """A topic that exists. Reading may be shared between threads; appending is for one thread at a time."""

    def __init__(self, root: Store, topic: str, follower: Follower) -> None:
        self.root = root
        self.topic = topic
        self.home = root.child(topic)
        self.follower = follower
        self.appender = Appender(self.home, follower)

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], topic: str, storage: Mapping[str, str] | None = None, *, table_id: str | None = None
    ) -> Outbox:
        """Raises `TopicNotFound`, and `TopicRecreated` if it is not the table `table_id`."""
        root = open_store(path, storage)
        follower = Follower(root.child(check_name(topic)).child(OUTBOX), topic, table_id=table_id)
        follower.reopen()
        return cls(root, topic, follower)

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], topic: str, schema: pa.Schema, storage: Mapping[str, str] | None = None
    ) -> Outbox:
        """Idempotent; `SchemaConflict` if it exists with other columns."""
        root = open_store(path, storage)
        return cls(root, topic, lifecycle.create(root, topic, schema))

    @property
    def state(self) -> LogState:
        return self.follower.state

    def refresh(self) -> list[Commit]:
        return self.follower.refresh()

    def append(self, batch: Batch, *, upkeep: bool = True) -> Appended:
        """Commits `batch`; with `upkeep`, does its share of maintenance after that (the sink does it after the wakeup)."""
        done = self.appender.append(batch)
        if upkeep and done.range:
            self.keep_up(done.version)
        return done

    def keep_up(self, version: int) -> maintain.Upkeep:
        return maintain.keep_up(self.follower, version)

    def read(self, wanted: OffsetRange, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        return read_range(self.follower, wanted, columns)

    def offset_at(self, time_us: int) -> int:
        self.refresh()
        return offset_at(self.follower, time_us)

    def describe(self) -> Description:
        return lifecycle.describe(self.follower, self.root.url)

    def compact(self, *, files_min: int | None = None) -> int:
        self.refresh()
        return maintain.compact(self.follower, files_min=files_min)

    def checkpoint(self) -> bool:
        return maintain.checkpoint(self.follower.store)

    def clean_log(self) -> int:
        return maintain.clean_log(self.follower.store)

    def vacuum(self, *, retention_hours: float | None = None, dry_run: bool = False) -> list[str]:
        if not dry_run:
            staging.sweep_old(self.home)
        return maintain.vacuum(self.follower, retention_hours=retention_hours, dry_run=dry_run)

    def trim(self, before: int) -> OffsetRange:
        return trim(self.follower, before)

    def verify(self) -> Audit:
        return verify(self.follower)

    def release(self) -> None:
        lifecycle.release(self.follower)


def drop_topic(path: str | os.PathLike[str], topic: str, storage: Mapping[str, str] | None = None) -> bool:
    return lifecycle.drop(open_store(path, storage), topic)


def topic_names(path: str | os.PathLike[str], storage: Mapping[str, str] | None = None) -> list[str]:
    return lifecycle.topic_names(open_store(path, storage))
