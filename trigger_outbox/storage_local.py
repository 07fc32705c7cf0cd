"""A folder of this host. Plain file calls, because a commit needs what no store library does here: fsync before the name appears.

`create`: write a temporary file → fsync → link (fails if the name is taken) → fsync the folder. A crash at any line leaves
either no name or the whole file. A torn, empty commit file would be read by delta-rs as a valid empty version.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from trigger_core.errors import StoreUnavailable
from trigger_outbox.storage import Entry, KeyExists

TEMPORARY_PREFIX = ".tmp-"
FOLDER_TRIES_MAX = 10
_CURES = {
    errno.ENOSPC: "make room on the disk and try again; the log is whole",
    errno.EDQUOT: "raise the quota and try again; the log is whole",
    errno.EROFS: "the file system is read-only: choose another path",
    errno.EACCES: "give this user write access to the folder",
    errno.EPERM: "give this user write access to the folder",
}


class LocalStore:
    is_local = True

    def __init__(self, root: str) -> None:
        self.root = root
        self.url = root
        self.options: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"LocalStore({self.root!r})"

    def child(self, prefix: str) -> LocalStore:
        return LocalStore(f"{self.root}/{prefix}")

    def path(self, key: str) -> str:
        return f"{self.root}/{key}"

    def get(self, key: str) -> bytes | None:
        try:
            with open(self.path(key), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise unavailable(error, f"read {self.path(key)}") from error

    def size(self, key: str) -> int | None:
        try:
            return os.stat(self.path(key)).st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def put(self, key: str, data: bytes | memoryview | pa.Buffer) -> None:
        temporary = None
        try:
            temporary = self._write_temporary(key, data)
            os.replace(temporary, self.path(key))
            _fsync_folder(os.path.dirname(self.path(key)))
        except OSError as error:
            _discard(temporary)
            raise unavailable(error, f"write {self.path(key)}") from error

    def create(self, key: str, data: bytes) -> None:
        target = self.path(key)
        temporary = None
        linked = False
        try:
            temporary = self._write_temporary(key, data)
            os.link(temporary, target)
            linked = True
            _fsync_folder(os.path.dirname(target))
        except FileExistsError:
            raise KeyExists(key) from None
        except OSError as error:
            raise unavailable(error, f"create {target}", landed=None if linked else False) from error
        finally:
            _discard(temporary)

    def _write_temporary(self, key: str, data: bytes | memoryview | pa.Buffer) -> str:
        folder = os.path.dirname(self.path(key))
        temporary = f"{folder}/{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
        descriptor = _create_in(folder, temporary)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        except OSError:
            _discard(temporary)
            raise
        finally:
            os.close(descriptor)
        return temporary

    def list(self, prefix: str = "", after: str = "") -> Iterator[Entry]:
        top = self.path(prefix) if prefix else self.root
        for folder, _, names in os.walk(top, onerror=_raise_unless_missing):
            relative = os.path.relpath(folder, self.root)
            for name in names:
                key = name if relative == "." else f"{relative}/{name}"
                if key <= after or name.startswith(TEMPORARY_PREFIX):
                    continue
                try:
                    found = os.stat(f"{folder}/{name}")
                except FileNotFoundError:
                    continue
                yield Entry(key, found.st_size, found.st_mtime_ns // 1_000_000)

    def folders(self) -> Sequence[str]:
        try:
            with os.scandir(self.root) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def delete(self, keys: Iterable[str]) -> int:
        deleted = 0
        for key in keys:
            try:
                os.unlink(self.path(key))
                deleted += 1
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise unavailable(error, f"delete {self.path(key)}") from error
        return deleted

    def open(self, key: str) -> pa.NativeFile:
        return pa.OSFile(self.path(key), "rb")

    def prune_folders(self, prefix: str = "") -> None:
        """Removes empty folders below `prefix`, itself included: an object store has none, so neither do we."""
        top = self.path(prefix) if prefix else self.root
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    def sweep_temporaries(self, prefix: str, older_than_ms: int) -> None:
        """Removes what killed writers left of their unfinished files, at any depth below `prefix`."""
        for file in Path(self.path(prefix)).rglob(f"{TEMPORARY_PREFIX}*"):
            with contextlib.suppress(OSError):
                if file.stat().st_mtime_ns // 1_000_000 < older_than_ms:
                    file.unlink()


def unavailable(error: OSError, doing: str, **facts: Any) -> StoreUnavailable:
    cure = _CURES.get(error.errno or 0, "check the disk and try again")
    return StoreUnavailable(f"could not {doing}: {error.strerror or error}", cure, errno=error.errno, **facts)


def _create_in(folder: str, path: str) -> int:
    """A new file, its folder made if need be; a sweep of empty folders may take that away again in between."""
    for _ in range(FOLDER_TRIES_MAX):
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        with contextlib.suppress(FileNotFoundError):
            _make_folder(folder)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)


def _make_folder(folder: str) -> None:
    missing = []
    while not os.path.isdir(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    for new in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(new)
        _fsync_folder(os.path.dirname(new))


def _fsync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard(temporary: str | None) -> None:
    if temporary is not None:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise unavailable(error, "list a folder") from error
