"""Large variables in a checkpoint store that goes away and comes back, a folder and a real S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from live_rig import Notebook, notebook, private_cluster, snapshot, until
from s3_service import S3Service, credentials, s3_service

from notebookos_ext.live.cluster_runtime import ClusterRuntime

pytestmark = pytest.mark.apart


class Place(Protocol):
    """Where a store is, and how it goes away."""

    address: str

    def vanish(self) -> None: ...
    def return_(self) -> None: ...


class Folder:
    def __init__(self, path: Path) -> None:
        self._path = path
        self.address = str(path)

    def vanish(self) -> None:
        self._path.rename(self._path.with_name("away"))
        # A folder that is a file cannot be made anew.
        self._path.write_text("")

    def return_(self) -> None:
        self._path.unlink()
        self._path.with_name("away").rename(self._path)


class Service:
    def __init__(self, service: S3Service) -> None:
        self._service = service
        self.address = service.address("live")

    def vanish(self) -> None:
        self._service.kill()

    def return_(self) -> None:
        self._service.start()


@pytest.fixture(params=["folder", "s3"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    if request.param == "folder":
        yield Folder(tmp_path / "store")
        return
    for name, value in credentials().items():
        monkeypatch.setenv(name, value)
    with s3_service(tmp_path / "s3") as service:
        yield Service(service)


@pytest.fixture
def cluster(place: Place) -> Iterator[ClusterRuntime]:
    with private_cluster(
        hosts=3, max_hosts=3, poll_s=0.2, checkpoint_store=place.address
    ) as runtime:
        until(lambda: len(snapshot(runtime).hosts) == 3, "three hosts")
        yield runtime


def durable(kernel: Notebook) -> None:
    until(lambda: not kernel.view().not_durable, "everything is durable")


def test_a_large_array_survives_its_executor_and_the_stores_absence(
    cluster: ClusterRuntime, place: Place
) -> None:
    with notebook(cluster) as kernel:
        kernel.wait_for_replicas()
        assert kernel.run("import numpy as np; a = np.arange(3_000_000.0); b = a[:9]").text == ""
        until(lambda: snapshot(cluster).store.put_bytes >= 24_000_000, "all of it is in the store")
        durable(kernel)
        assert snapshot(cluster).store.works
        kernel.kill_executor()
        look = "print(a.sum() == 2_999_999 * 1_500_000.0 + a[0], b.base is a, a[0])"
        assert kernel.run(look).text == "True True 0.0\n"

        place.vanish()
        ran = kernel.run("a[0] = 7; n = 1")
        assert ran.status == "ok"
        until(lambda: "a" in kernel.view().not_durable, "a is named as not durable")
        store = until(lambda: (s := snapshot(cluster).store).works or s, "the store is reported")
        assert not store.works
        assert store.failing_hosts
        assert place.address.partition("?")[0].rstrip("/") in store.error
        # The next cell goes on, with the newest value: where that is.
        assert kernel.run(look).text == "True True 7.0\n"

        place.return_()
        durable(kernel)
        until(lambda: snapshot(cluster).store.works, "the store works")
        kernel.wait_for_replicas()
        kernel.kill_executor()
        assert kernel.run(look + "; print(n)").text == "True True 7.0\n1\n"
