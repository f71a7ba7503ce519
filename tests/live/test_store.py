"""Large variables in a checkpoint store that goes away and comes back, a folder and a real S3."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest
from live_rig import HANG_S, Notebook, notebook, private_cluster, snapshot, until
from s3_service import S3Service, credentials, s3_service

from notebookos_ext.errors import Unavailable
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


def grow_old(folder: Path) -> set[str]:
    """All chunks are as old as can be; their digests."""
    chunks = list(folder.glob("*/chunks/*/*"))
    for path in chunks:
        os.utime(path, (1, 1))
    return {path.name for path in chunks}


def sweep(runtime: ClusterRuntime, *, dry_run: bool = False) -> int:
    return runtime.controller.sweep_store(dry_run=dry_run).result(HANG_S).chunks


def swept(runtime: ClusterRuntime) -> list[int]:
    """What a sweep took; nothing while it cannot be."""
    try:
        return [sweep(runtime)]
    except Unavailable:
        return []


def test_a_sweep_takes_what_nothing_names_and_nothing_else(folder: Path) -> None:
    with (
        private_cluster(
            hosts=4, max_hosts=4, poll_s=0.2, checkpoint_store=str(folder), compact_entries=10
        ) as cluster,
        notebook(cluster) as kernel,
    ):
        until(lambda: len(snapshot(cluster).hosts) == 4, "four hosts")
        kernel.wait_for_replicas()
        kernel.run("import numpy as np; a = np.arange(600_000.0); b = np.ones(300_000)")
        for number in range(12):
            kernel.run(f"a[0] = {number}; del b; b = np.full(300_000, {number})")
        kernel.wait_for_replicas()
        members = until(
            lambda: [m for r in kernel.view().replicas if (m := r.member) and m.snapshot_index],
            "snapshots",
        )
        assert members
        assert sweep(cluster) == 0, "all of it is new"
        before = grow_old(folder)
        would = sweep(cluster, dry_run=True)
        assert 0 < would < len(before)
        assert sweep(cluster) == would
        assert len(grow_old(folder)) == len(before) - would
        assert sweep(cluster) == 0
        kernel.kill_executor()
        look = "print(a[0], a[-1], b[0], len(b))"
        assert kernel.run(look).text == "11.0 599999.0 11 300000\n"
        # While a host with a log is away it is not known what its log names.
        kernel.wait_for_replicas()
        away = kernel.view().replicas[0].host_id
        pid = next(host.pid for host in snapshot(cluster).hosts if host.id == away)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(Unavailable, match="nothing was swept"):
            until(lambda: sweep(cluster) < 0, "a refusal")
        kernel.wait_for_replicas()
        # By now the logs have forgotten more of what was superseded.
        until(lambda: swept(cluster), "it can be swept again")
        for _ in range(3):
            kernel.wait_for_replicas()
            kernel.kill_executor()
            assert kernel.run(look).text == "11.0 599999.0 11 300000\n"
    assert not grow_old(folder), "a private cluster leaves nothing"
