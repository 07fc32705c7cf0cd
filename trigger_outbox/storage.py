"""Where bytes live: one small protocol, a local folder or an object store behind it, chosen by URL.

Owns durability (`put` and `create` return only when the bytes would survive a power cut), put-if-absent, bounded waits, and
the mapping of every library's error to ours. Knows nothing of Delta.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from trigger_core.errors import InvalidOption, UnsafeStore


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    size: int
    modified_ms: int
    """By the store's clock, never by ours."""


class KeyExists(Exception):
    """`create` found the key taken. By whom is not known until it is read: a store may resend a put whose reply was lost."""


class Store(Protocol):
    """Keys are relative, `/`-separated, from `[A-Za-z0-9._/-]`."""

    url: str
    options: Mapping[str, str]

    @property
    def is_local(self) -> bool: ...
    def child(self, prefix: str) -> Store: ...
    def get(self, key: str) -> bytes | None:
        """The whole object, or None if there is none."""

    def size(self, key: str) -> int | None: ...
    def put(self, key: str, data: bytes | memoryview | pa.Buffer) -> None:
        """Durable when it returns; replaces what was there."""

    def create(self, key: str, data: bytes) -> None:
        """Durable when it returns; `KeyExists` if the key is taken. `StoreUnavailable` with the fact `landed=False` is a promise
        that nothing was created; without it, the key may appear later."""

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        """Every object below `prefix` whose key sorts after `after`; keys are relative to this store; in no order."""

    def folders(self) -> Sequence[str]:
        """Names of the immediate folders."""

    def delete(self, keys: Iterable[str]) -> int:
        """One after the other, in the order given; a missing key is fine. Returns how many were there."""

    def open(self, key: str) -> pa.NativeFile:
        """For random reads. FileNotFoundError if it is gone."""


def open_store(path: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> Store:
    """The store at `path`: a local folder (plain path or file://) or any URL that object_store opens."""
    options = dict(options or {})
    for name in options:
        if name.lower().removeprefix("aws_").removeprefix("s3_") == "allow_unsafe_rename":
            raise UnsafeStore(
                f"storage option {name!r} lets two writers both create one commit",
                "remove it and use a store that can create a key only if it is absent (S3, GCS, Azure, a local disk)",
            )
    text = os.fspath(path)
    parts = urlsplit(text)
    if parts.scheme == "file":
        text = unquote(parts.path)
    elif "://" in text:
        if parts.username or parts.password:
            raise InvalidOption("the path has credentials in it", "pass them as storage.* options or in the environment")
        return _module("storage_object").ObjectStore(text.rstrip("/"), options)
    if not text:
        raise InvalidOption("the path is empty", "name a folder or a URL such as s3://bucket/prefix")
    return _module("storage_local").LocalStore(str(Path(text).expanduser().absolute()))


def _module(name: str) -> Any:
    return importlib.import_module(f"trigger_outbox.{name}")
