"""Courtesy between writers of one host: an advisory lock that lets one encode at a time.

Without it four writers waste two encodes per commit. It is never needed for correctness, which stays with the put, so a
holder that is stopped delays others by its bound only. On an object store there is none; `trigger.turn` does its work.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator

from trigger_outbox.storage import Store

LOCK_FILE = "writers.lock"
LOCK_WAIT_S_MAX = 0.25
LOCK_RETRY_S = 0.001

try:
    import fcntl
except ImportError:  # not a Unix: writers race, and the put decides
    fcntl = None  # type: ignore[assignment]


@contextlib.contextmanager
def writers_lock(topic: Store, wait_s_max: float = LOCK_WAIT_S_MAX) -> Iterator[bool]:
    """Holds the lock, or goes on without it after `wait_s_max`; says which."""
    descriptor = _open(topic)
    if descriptor is None:
        yield False
        return
    try:
        yield _acquire(descriptor, wait_s_max)
    finally:
        os.close(descriptor)  # and the lock with it, as does a SIGKILL


def _open(topic: Store) -> int | None:
    if not topic.is_local or fcntl is None:
        return None
    with contextlib.suppress(OSError):
        return os.open(f"{topic.url}/{LOCK_FILE}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    return None


def _acquire(descriptor: int, wait_s_max: float) -> bool:
    deadline = time.monotonic() + wait_s_max
    while True:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOCK_RETRY_S * (0.5 + random.random()))
