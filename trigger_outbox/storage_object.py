"""An object store (S3, GCS, Azure, anything object_store opens), through obstore, with every wait and retry bounded."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import from_url

from trigger_core.errors import InvalidOption, StoreUnavailable
from trigger_outbox.storage import Entry, KeyExists

TIMEOUT_S_DEFAULT = 10
RETRIES_DEFAULT = 3
WHOLE_BYTES_MAX = 4 * 1024 * 1024
"""Up to this size a file is read in one request."""
RETRY_TIMEOUT_S_DEFAULT = 15
_CLIENT_KEYS = {"allow_http", "timeout", "connect_timeout", "allow_invalid_certificates", "proxy_url", "user_agent"}
_RETRY_KEYS = {"max_retries", "retry_timeout"}


class ObjectStore:
    is_local = False

    def __init__(self, url: str, options: Mapping[str, str], *, prefix: str = "", client: Any = None) -> None:
        self.url = f"{url}/{prefix}".rstrip("/")
        self._base_url = url
        self._prefix = prefix
        self._given = dict(options)
        self.options: Mapping[str, str] = delta_options(options)
        self._client = client if client is not None else _connect(url, options)

    def __repr__(self) -> str:
        return f"ObjectStore({self.url!r})"  # never the options: they hold keys

    def child(self, prefix: str) -> ObjectStore:
        return ObjectStore(self._base_url, self._given, prefix=self._key(prefix), client=self._client)

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}".strip("/")

    def get(self, key: str) -> bytes | None:
        with mapped(f"read {self.url}/{key}"):
            try:
                return bytes(obstore.get(self._client, self._key(key)).bytes())
            except (FileNotFoundError, NotFoundError):
                return None

    def size(self, key: str) -> int | None:
        with mapped(f"look at {self.url}/{key}"):
            try:
                return int(obstore.head(self._client, self._key(key))["size"])
            except (FileNotFoundError, NotFoundError):
                return None

    def put(self, key: str, data: bytes | memoryview | pa.Buffer) -> None:
        with mapped(f"write {self.url}/{key}"):
            obstore.put(self._client, self._key(key), memoryview(data).cast("B"))  # Arrow's own view is of signed bytes: refused

    def create(self, key: str, data: bytes) -> None:
        with mapped(f"create {self.url}/{key}"):
            try:
                obstore.put(self._client, self._key(key), data, mode="create", use_multipart=False)
            except AlreadyExistsError:
                raise KeyExists(key) from None

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        with mapped(f"list {self.url}/{prefix}"):
            below = len(self._prefix) + 1 if self._prefix else 0
            offset = self._key(after) if after else None
            for chunk in obstore.list(self._client, self._key(prefix) or None, offset=offset, chunk_size=1000):
                for meta in chunk:
                    modified_ms = int(meta["last_modified"].timestamp() * 1000)
                    yield Entry(str(meta["path"])[below:], int(meta["size"]), modified_ms)

    def folders(self) -> Sequence[str]:
        with mapped(f"list {self.url}"):
            found = obstore.list_with_delimiter(self._client, self._prefix or None)
            return sorted(str(prefix).rstrip("/").rsplit("/", 1)[-1] for prefix in found["common_prefixes"])

    def delete(self, keys: Iterable[str]) -> int:
        deleted = 0
        for key in keys:
            with mapped(f"delete {self.url}/{key}"):
                try:
                    obstore.delete(self._client, self._key(key))
                    deleted += 1
                except (FileNotFoundError, NotFoundError):
                    continue
        return deleted

    def open(self, key: str) -> pa.NativeFile:
        with mapped(f"open {self.url}/{key}"):
            try:
                found = obstore.get(self._client, self._key(key))
                if found.meta["size"] <= WHOLE_BYTES_MAX:
                    return pa.BufferReader(bytes(found.bytes()))
            except (FileNotFoundError, NotFoundError) as error:
                raise FileNotFoundError(key) from error
        return pa.PythonFile(RangedFile(self._client, self._key(key), int(found.meta["size"])), mode="r")


class RangedFile(io.RawIOBase):
    """An object as a seekable file: each read is one ranged GET, which Parquet's reader has joined to large ones before."""

    def __init__(self, client: Any, key: str, size: int) -> None:
        super().__init__()
        self._client, self._key, self._size, self._at = client, key, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._size if size < 0 else min(self._size, self._at + size)
        if end <= self._at:
            return b""
        with mapped(f"read {self._key}"):
            try:
                data = bytes(obstore.get_range(self._client, self._key, start=self._at, end=end))
            except (FileNotFoundError, NotFoundError) as error:
                raise FileNotFoundError(self._key) from error
        self._at = end
        return data


@contextmanager
def mapped(doing: str) -> Iterator[None]:
    """The one place where the library's errors become ours."""
    try:
        yield
    except (BaseError, TimeoutError, ConnectionError, PermissionError) as error:
        first_line = str(error).partition("\n")[0]
        raise StoreUnavailable(
            f"could not {doing}: {first_line}", "check that the store is up and the storage.* options are right, then try again"
        ) from error


def delta_options(options: Mapping[str, str]) -> dict[str, str]:
    """The same options in deltalake's spelling, its waits bounded too."""
    given = {key.lower(): str(value) for key, value in options.items()}
    given.setdefault("timeout", f"{TIMEOUT_S_DEFAULT}s")
    given.setdefault("max_retries", str(RETRIES_DEFAULT))
    given.setdefault("retry_timeout", f"{RETRY_TIMEOUT_S_DEFAULT}s")
    return given


def _connect(url: str, options: Mapping[str, str]) -> Any:
    given = {key.lower(): str(value) for key, value in options.items()}
    client: dict[str, Any] = {"timeout": f"{TIMEOUT_S_DEFAULT}s", "connect_timeout": "3s"}
    for key in _CLIENT_KEYS & given.keys():
        value = given.pop(key)
        client[key] = value.lower() in ("true", "1", "yes") if key.startswith("allow_") else value
    retries = int(given.pop("max_retries", RETRIES_DEFAULT))
    retry_timeout_s = int(str(given.pop("retry_timeout", RETRY_TIMEOUT_S_DEFAULT)).removesuffix("s"))
    try:
        open_url: Any = from_url  # its overloads are per kind of store
        return open_url(
            url,
            config=given or None,
            client_options=client,
            retry_config={"max_retries": retries, "retry_timeout": timedelta(seconds=retry_timeout_s)},
        )
    except (BaseError, ValueError) as error:
        raise InvalidOption(
            f"can't open the store {url!r}: {str(error).partition(chr(10))[0]}", "check path and storage.* options"
        ) from error
