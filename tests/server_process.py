"""A real server as a child process: in a folder of its own, on free loopback ports, ended by its own process id.

Owns starting, killing, pausing and restarting. A kind of server says what to run and when it is ready.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

START_ATTEMPTS_MAX = 3
READY_S_MAX = 60.0
READY_CHECK_S = 0.05
STOP_S_MAX = 15.0
# Below Linux's range for outgoing connections: nobody is given one of these between our look and the server's bind.
PORTS = range(20_000, 32_000)
PORT_TRIES_MAX = 1_000
LOG_TAIL_BYTES = 4_000
_Self = TypeVar("_Self", bound="ServerProcess")


class ServerFailed(RuntimeError):
    """A server did not start; the text ends with its own last words."""


def binary(name: str) -> Path | None:
    """The program that a package puts beside this interpreter, or one on PATH."""
    beside = Path(sys.executable).with_name(name)
    if beside.exists():
        return beside
    found = shutil.which(name)
    return Path(found) if found else None


def free_ports(count: int) -> list[int]:
    """That many different loopback ports, free at the moment of asking."""
    held: list[socket.socket] = []
    try:
        for _ in range(PORT_TRIES_MAX):
            if len(held) == count:
                break
            candidate = socket.socket()
            try:
                candidate.bind(("127.0.0.1", random.choice(PORTS)))
            except OSError:
                candidate.close()
            else:
                held.append(candidate)
        else:
            raise ServerFailed(f"no {count} free ports in {PORTS}")
        return [taken.getsockname()[1] for taken in held]
    finally:
        for taken in held:
            taken.close()


class ServerProcess(ABC):
    """Not thread-safe; a context manager.

    stopped ──start()──► running ──stop(), kill()──► stopped      data and ports are kept, unless wiped
                            │  ▲
                      pause()  resume()
                            ▼  │
                          paused ──stop(), kill()──► stopped
    """

    PORTS_NEEDED = 1

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.starts = 0
        self._ports: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._paused = False

    @abstractmethod
    def command(self, ports: list[int]) -> list[str]:
        """What to run; may write configuration files first."""

    @abstractmethod
    def is_ready(self, ports: list[int]) -> bool:
        """Whether a client would be served now."""

    def environment(self) -> Mapping[str, str]:
        return os.environ

    def __enter__(self: _Self) -> _Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def port(self) -> int:
        return self._ports[0]

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self) -> None:
        """Ready when it returns. The first start chooses ports, and chooses again if one was taken; later starts keep them."""
        assert self._process is None, "the server is running"
        attempts = 1 if self._ports else START_ATTEMPTS_MAX
        for attempt in range(1, attempts + 1):
            ports = self._ports or free_ports(self.PORTS_NEEDED)
            self._launch(ports)
            try:
                self._wait_until_ready(ports)
            except ServerFailed:
                self.kill()
                if attempt == attempts:
                    raise
            else:
                self._ports = ports
                self.starts += 1
                return

    def stop(self) -> None:
        """Asks it to end, then makes it. Harmless if it is not running."""
        if self._process is None:
            return
        if self._paused:
            self.resume()
        self._process.terminate()
        try:
            self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            pass  # kill() below does it
        self.kill()

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        if self._process is None:
            return
        # The guard first: it must not outlive the process id that it watches.
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
        self._process.kill()
        self._process.wait(STOP_S_MAX)
        self._process = self._guard = None
        self._paused = False
        self.after_kill()

    def after_kill(self) -> None:  # noqa: B027  # most leave nothing
        """Sweeps what a kind of server leaves outside its folder."""

    def restart(self) -> None:
        """A crash and a new start at the same address, with the same data."""
        self.kill()
        self.start()

    def wipe(self) -> None:
        """While it is stopped: the next start is empty."""
        assert self._process is None, "stop it first"
        shutil.rmtree(self.data, ignore_errors=True)

    def pause(self) -> None:
        """SIGSTOP: the kernel still accepts connections for it, nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self._paused = False

    def _launch(self, ports: list[int]) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        command = self.command(ports)
        with (self.folder / "output.log").open("ab") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=dict(self.environment()),
                start_new_session=True,
            )
        # A test run that is killed closes this pipe, and the guard then ends the server, which would otherwise stay for ever.
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _; kill -9 "$1"', "guard", str(self._process.pid)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _wait_until_ready(self, ports: list[int]) -> None:
        assert self._process is not None
        clock = threading.Event()
        for _ in range(int(READY_S_MAX / READY_CHECK_S)):
            if self._process.poll() is not None:
                raise ServerFailed(f"the server ended with {self._process.returncode}: {self._last_words()}")
            if self.is_ready(ports):
                return
            clock.wait(READY_CHECK_S)
        raise ServerFailed(f"the server was not ready within {READY_S_MAX} s: {self._last_words()}")

    def _last_words(self) -> str:
        log = self.folder / "output.log"
        return log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace") if log.exists() else "(nothing)"
