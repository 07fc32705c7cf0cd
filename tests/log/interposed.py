"""A real store with a word in between: a test says what happens before or after a call, or instead of it.

Storage is a boundary of the product, so it may fail here in ways that a real store fails once a year.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from trigger_core.errors import StoreUnavailable
from trigger_outbox.append import Appender
from trigger_outbox.follow import Follower
from trigger_outbox.outbox import Outbox
from trigger_outbox.storage import Entry, Store

Call = Callable[[str, bytes], None]


@dataclass
class Interposed:
    """Delegates to `real`. `create` and `put` may be replaced: they get the key and the bytes."""

    real: Store
    on_create: Call | None = None
    on_put: Call | None = None
    on_get: Callable[[str], bytes | None] | None = None
    created: list[str] = field(default_factory=list)
    url: str = field(init=False)
    options: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.url, self.options = self.real.url, self.real.options

    @property
    def is_local(self) -> bool:
        return self.real.is_local

    def child(self, prefix: str) -> Interposed:
        def below(call: Call | None) -> Call | None:
            return None if call is None else lambda key, data: call(f"{prefix}/{key}", data)

        return Interposed(self.real.child(prefix), below(self.on_create), below(self.on_put))

    def get(self, key: str) -> bytes | None:
        return self.on_get(key) if self.on_get is not None else self.real.get(key)

    def size(self, key: str) -> int | None:
        return self.real.size(key)

    def put(self, key: str, data: bytes | memoryview | pa.Buffer) -> None:
        if self.on_put is not None:
            self.on_put(key, memoryview(data).tobytes())
        else:
            self.real.put(key, data)

    def create(self, key: str, data: bytes) -> None:
        self.created.append(key)
        if self.on_create is not None:
            self.on_create(key, data)
        else:
            self.real.create(key, data)

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        return self.real.list(prefix, after)

    def folders(self) -> Sequence[str]:
        return self.real.folders()

    def delete(self, keys: Iterable[str]) -> int:
        return self.real.delete(keys)

    def open(self, key: str) -> pa.NativeFile:
        return self.real.open(key)


def interposed(outbox: Outbox) -> tuple[Appender, Interposed]:
    """Another writer of the same topic, whose log is behind an `Interposed` store. As if on another host: the writers' lock is
    not shared, so that a test may let others write in the middle of its put."""
    store = Interposed(outbox.follower.store)
    follower = Follower(store, outbox.topic, table_id=outbox.state.table_id)
    follower.reopen()
    return Appender(outbox.home.child("another-host"), follower), store


def reply_lost() -> StoreUnavailable:
    """What a store's client raises when it can't say whether a put landed."""
    return StoreUnavailable("could not create the key: connection reset before the reply", "try again")
