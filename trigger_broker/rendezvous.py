"""The directory where processes of one user on one host find each other: who may be in it, who is, and who is dead.

    <base, 0700>/<hash of the topic id>/<pid>-<random>     one Unix datagram socket per subscriber

The base is `$XDG_RUNTIME_DIR/pyspark-trigger`, else `<temp dir>/pyspark-trigger-<uid>`; processes that disagree on these
variables don't meet, and their readers fall back to polling. Whoever notices a dead subscriber removes its socket, whoever
leaves last removes the directories. Sends and receives nothing.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import socket
import stat
import tempfile
import time
from dataclasses import dataclass

from trigger_core.errors import BrokerUnavailable

SUN_PATH_BYTES_MAX = 103
"""The shortest limit among the systems we know, without its final NUL."""
SUBSCRIBERS_MAX = 256
"""Per topic: each costs every publish a send."""
SWEEP_TOPICS_MAX = 256
ATTACH_ATTEMPTS_MAX = 64
"""An attempt fails only when somebody removes an empty directory between our making and using it."""
UNBORN_AGE_S_MAX = 60
"""A subscriber that has not taken its name by then never will."""

_UNBORN = "."  # prefix of a socket that is bound and not yet announced
_GONE = frozenset({errno.ECONNREFUSED, errno.ENOENT, errno.ECONNRESET, errno.ENOTDIR})


def base_directory() -> str:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and os.path.isdir(runtime):
        return os.path.join(os.path.abspath(runtime), "pyspark-trigger")
    return os.path.join(os.path.abspath(tempfile.gettempdir()), f"pyspark-trigger-{os.geteuid()}")


def topic_directory(base: str, topic_id: str) -> str:
    # Hashed to be short, since a socket's whole path is limited, and to be a file name whatever the id is.
    return os.path.join(base, hashlib.sha256(topic_id.encode("utf-8")).hexdigest()[:16])


@dataclass(frozen=True)
class Attachment:
    """A bound, announced socket: others can send to it."""

    socket: socket.socket
    path: str
    inode: int

    def announced(self) -> bool:
        """Whether others still find it: a cleaner of temporary files may have removed it."""
        try:
            return os.lstat(self.path).st_ino == self.inode
        except OSError:
            return False

    def detach(self) -> None:
        """Leaves nothing behind. The name goes first: nobody finds a socket that no longer answers."""
        if self.announced():
            _unlink(self.path)
        self.socket.close()
        tidy(os.path.dirname(self.path))


def attach(base: str, topic_id: str) -> Attachment:
    """A new subscriber's socket; raises `BrokerUnavailable` when the directory is unsafe, full or can't be written."""
    directory = topic_directory(base, topic_id)
    name = f"{os.getpid()}-{secrets.token_hex(4)}"
    path = os.path.join(directory, name)
    unborn = os.path.join(directory, _UNBORN + name)
    if len(os.fsencode(unborn)) > SUN_PATH_BYTES_MAX:
        raise BrokerUnavailable(
            f"{base} is too long a directory for Unix sockets", "set XDG_RUNTIME_DIR or TMPDIR to a shorter one", directory=base
        )
    try:
        for _ in range(ATTACH_ATTEMPTS_MAX):
            attachment = _try_attach(base, topic_id, unborn, path)
            if attachment is not None:
                return attachment
    except OSError as error:
        raise BrokerUnavailable(f"{directory} can't be used ({error})", "check the directory", directory=base) from error
    raise BrokerUnavailable(f"{directory} can't be made", "check that its parent exists and can be written", directory=base)


def _try_attach(base: str, topic_id: str, unborn: str, path: str) -> Attachment | None:
    """None if somebody who left last removed a directory under our feet."""
    directory = os.path.dirname(path)
    try:
        _make(base)
        check_base(base)
        _make(directory)
        if len(os.listdir(directory)) >= SUBSCRIBERS_MAX and len(peers(base, topic_id, alive=True)) >= SUBSCRIBERS_MAX:
            raise BrokerUnavailable(
                f"the topic has {SUBSCRIBERS_MAX} local subscribers, which is the limit", "use a broker with a server"
            )
        return _bind(unborn, path)
    except FileNotFoundError:
        return None


def _bind(unborn: str, path: str) -> Attachment:
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        receiver.setblocking(False)
        # The kernel makes the file a moment before it answers there: a sender in between would take it for dead and
        # remove it. So it gets its name, which is what senders look for, only once it answers.
        receiver.bind(unborn)
        try:
            os.rename(unborn, path)
            return Attachment(receiver, path, os.lstat(path).st_ino)
        except BaseException:
            _unlink(unborn)
            raise
    except BaseException:
        receiver.close()
        raise


def check_base(base: str) -> bool:
    """Whether the base exists; raises `BrokerUnavailable` unless it is a real directory, ours, and closed to others."""
    try:
        found = os.lstat(base)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise BrokerUnavailable(f"{base} can't be looked at ({error})", "check its parents", directory=base) from error
    if not stat.S_ISDIR(found.st_mode):
        problem = "is no directory"
    elif found.st_uid != os.geteuid():
        problem = f"belongs to user {found.st_uid}, not to {os.geteuid()}"
    elif stat.S_IMODE(found.st_mode) & 0o077:
        problem = f"is open to others (mode {stat.S_IMODE(found.st_mode):04o})"
    else:
        return True
    raise BrokerUnavailable(f"{base} {problem}: wakeups carry rows", "remove it, or chmod 700 it if it is yours", directory=base)


def peers(base: str, topic_id: str, *, alive: bool = False) -> list[str]:
    """The subscribers' names, sorted; with `alive` only those that answer, and the dead are removed."""
    directory = topic_directory(base, topic_id)
    if not check_base(base):
        return []
    try:
        names = sorted(name for name in os.listdir(directory) if not name.startswith(_UNBORN))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BrokerUnavailable(f"{directory} can't be listed ({error})", "check the directory", directory=base) from error
    return [name for name in names if not alive or _answers_or_bury(os.path.join(directory, name))]


def sweep(base: str) -> None:
    """Removes what killed processes left, in at most `SWEEP_TOPICS_MAX` topics. A courtesy: never raises for one of them."""
    if not check_base(base):
        return
    try:
        topics = sorted(os.listdir(base))[:SWEEP_TOPICS_MAX]
    except OSError:
        return
    for topic in topics:
        directory = os.path.join(base, topic)
        try:
            names = os.listdir(directory)
        except OSError:
            continue
        for name in names:
            path = os.path.join(directory, name)
            if not name.startswith(_UNBORN):
                _answers_or_bury(path)
            elif _age_s(path) > UNBORN_AGE_S_MAX:
                bury(path)
        tidy(directory)


def is_gone(error: OSError) -> bool:
    """Whether `error`, from a connect or a send, says that nobody answers there any more."""
    return error.errno in _GONE


def bury(path: str) -> None:
    """Removes a dead subscriber's socket, and its directories if it was the last. Nothing but a socket is ever removed."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return
    except OSError:
        return
    _unlink(path)
    tidy(os.path.dirname(path))


def tidy(directory: str) -> None:
    """Removes a topic's directory, then the base, if they are empty."""
    try:
        os.rmdir(directory)
        os.rmdir(os.path.dirname(directory))
    except OSError:
        pass  # in use, or gone already


def _answers_or_bury(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(path)  # sends nothing: the subscriber does not notice
        except OSError as error:
            if is_gone(error):
                bury(path)
            return False
    return True


def _age_s(path: str) -> float:
    try:
        return time.time() - os.lstat(path).st_mtime
    except OSError:
        return 0


def _make(directory: str) -> None:
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        pass  # what is there is checked, not trusted


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # gone already, and if it can't be removed nobody is helped by an error
