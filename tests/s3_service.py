"""A real S3 service for tests: SeaweedFS on loopback ports of its own, with a folder of its own.

with s3_service(tmp_path) as service:
    store = S3Store(parse_address(service.address("prefix")))
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from notebookos_ext.storage.addresses import S3Address

KEY, SECRET = "testkey", "testsecret-of-the-tests"
BUCKET = "checkpoints"
HANG_S = 60.0
"""Only ends hangs."""


def credentials(secret: str = SECRET) -> dict[str, str]:
    """What boto3's chain finds in the environment; nothing of this machine's configuration."""
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": "/nonexistent/config",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent/credentials",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


class S3Service:
    """One service, which can be killed and started again with what it has."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._master, self._volume, self._filer, self._port = _free_ports(4)
        (folder / "data").mkdir(parents=True)
        identity = {
            "name": "admin",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def address(self, prefix: str = "", bucket: str = BUCKET) -> str:
        """What a user would write into the settings."""
        return f"s3://{bucket}/{prefix}?endpoint={self.endpoint}&path_style=1"

    def parsed(self, prefix: str = "", **options: Any) -> S3Address:
        """The same, read already."""
        return S3Address(
            BUCKET, prefix, **({"endpoint": self.endpoint, "path_style": True} | options)
        )

    def start(self) -> None:
        """Start it and wait until it answers."""
        sockets = self._folder / "sockets"
        sockets.mkdir(exist_ok=True)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    Path(sys.executable).parent / "weed", "server",
                    f"-dir={self._folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
                    f"-master.port={self._master}", f"-volume.port={self._volume}",
                    "-master.telemetry=false", "-master.volumeSizeLimitMB=256", "-volume.max=20",
                    "-filer", f"-filer.port={self._filer}",
                    f"-filer.localSocket={sockets / 'filer'}",
                    "-s3", f"-s3.port={self._port}", f"-s3.config={self._folder / 's3.json'}",
                    f"-s3.localSocket={sockets / 's3'}",
                    "-s3.port.iceberg=0", "-s3.port.lance=0",
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._folder,
            )  # fmt: skip
        give_up = time.monotonic() + HANG_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise AssertionError((self._folder / "log").read_text()[-3000:])
            time.sleep(0.1)

    def kill(self) -> None:
        """It is gone from one moment to the next."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def make_bucket(self) -> None:
        self.client().create_bucket(Bucket=BUCKET)

    def client(self) -> Any:
        """boto3's client, for what a test does behind a store's back."""
        from boto3.session import Session

        return Session(KEY, SECRET, region_name="us-east-1").client(
            "s3", endpoint_url=self.endpoint
        )

    def _answers(self) -> bool:
        """Whether it can write: its filer is there later than its door."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            connection.request("GET", "/status")
            if connection.getresponse().status != 200:
                return False
            self.client().list_buckets()
        except Exception:  # noqa: BLE001 - it comes up
            return False
        finally:
            connection.close()
        return True


@contextmanager
def s3_service(folder: Path) -> Iterator[S3Service]:
    """A running service with an empty bucket."""
    service = S3Service(folder)
    try:
        service.start()
        service.make_bucket()
        yield service
    finally:
        service.kill()


def _free_ports(count: int) -> list[int]:
    """Ports that are free, with those 10,000 above, where SeaweedFS has its gRPC."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 32_000)
        if port not in found and all(map(_is_free, (port, port + 10_000))):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
