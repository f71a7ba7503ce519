"""Replicas move between real hosts while their kernel is used: nothing is lost, nothing waits."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_rig import HANG_S, Notebook, gone, notebook, private_cluster, snapshot, until

from notebookos_ext.cluster.model import HostId, KernelId, ReplicaId
from notebookos_ext.errors import Infeasible, NotFound
from notebookos_ext.handlers.models import KernelView
from notebookos_ext.live.cluster_runtime import ClusterRuntime
from notebookos_ext.notebook_settings import NotebookSettings


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterRuntime]:
    with private_cluster(hosts=5, max_hosts=5) as runtime:
        until(lambda: len(snapshot(runtime).hosts) == 5, "five hosts")
        yield runtime


@pytest.fixture
def kernel(cluster: ClusterRuntime) -> Iterator[Notebook]:
    with notebook(cluster) as opened:
        opened.wait_for_replicas()
        yield opened


def hosts(view: KernelView) -> set[str]:
    return {replica.host_id for replica in view.replicas}


def move(
    kernel: Notebook, replica: str | None = None, target: str | None = None
) -> concurrent.futures.Future[None]:
    return kernel.runtime.controller.migrate(
        KernelId(kernel.id),
        replica=None if replica is None else ReplicaId(replica),
        target=None if target is None else HostId(target),
    )


def settled(kernel: Notebook, count: int = 3) -> KernelView:
    """When nothing moves any more and every replica has everything."""

    def still() -> KernelView | None:
        view = kernel.view()
        return view if view.migration is None and len(view.replicas) == count else None

    until(still, "the end of the move")
    return kernel.wait_for_replicas(count)


def test_the_executor_moves_and_takes_everything_along(kernel: Notebook) -> None:
    kernel.run("shared = [1]; alias = shared")
    executor = kernel.executor()
    before = hosts(kernel.view())
    target = next(h.id for h in snapshot(kernel.runtime).hosts if h.id not in before)
    move(kernel, executor.id, target).result(HANG_S)
    view = settled(kernel)
    assert hosts(view) == before - {executor.host_id} | {target}
    assert executor.pid is not None
    until(lambda: gone(executor.pid or 0), "the end of the old replica")
    assert kernel.run("alias.append(2); print(shared, alias is shared)").text == "[1, 2] True\n"
    # The group stands without the one that left: each of the others can go, too.
    for _ in range(2):
        kernel.kill_executor()
        assert kernel.run("print(shared)").text == "[1, 2]\n"
        kernel.wait_for_replicas()


def test_cells_run_while_a_replica_moves(kernel: Notebook) -> None:
    kernel.run("n = 0")
    victim = next(r.id for r in kernel.view().replicas if not r.executor)
    move(kernel, victim).result(HANG_S)
    ran = 0
    while kernel.view().migration is not None:
        assert kernel.run("n += 1").status == "ok"
        ran += 1
    settled(kernel)
    assert kernel.run("print(n)").text == f"{ran}\n"


def test_an_executor_that_runs_a_cell_moves_when_it_has_ended(kernel: Notebook) -> None:
    kernel.run("import pathlib, tempfile; flag = pathlib.Path(tempfile.mkdtemp()) / 'go'")
    path = kernel.run("print(flag)").text.strip()
    kernel.submit("import time\nwhile not flag.exists(): time.sleep(0.01)\nx = 2")
    until(lambda: kernel.view().state == "busy", "a cell that runs")
    executor = kernel.executor()
    move(kernel, executor.id).result(HANG_S)

    def caught_up() -> bool:
        migration = kernel.view().migration
        return migration is not None and migration.phase == "caught-up"

    until(caught_up, "a newcomer that waits for the cell")
    Path(path).touch()
    assert kernel.reply()["status"] == "ok"
    view = settled(kernel)
    assert executor.host_id not in hosts(view)
    assert kernel.run("print(x)").text == "2\n"


@pytest.mark.parametrize("counts", [(5, 3, 1, 3)])
def test_the_replica_count_of_a_running_kernel_changes(
    kernel: Notebook, counts: tuple[int, ...]
) -> None:
    kernel.run("kept = {'a': 1}")
    for count in counts:
        kernel.runtime.controller.change_settings(
            KernelId(kernel.id), NotebookSettings(replica_count=count)
        ).result(HANG_S)
        view = settled(kernel, count)
        assert len(hosts(view)) == count
        assert kernel.run("print(kept)").text == "{'a': 1}\n"
    kernel.kill_executor()
    assert kernel.run("print(kept)").text == "{'a': 1}\n"


def test_a_drained_host_is_emptied_and_can_be_used_again(kernel: Notebook) -> None:
    kernel.run("x = 'there'")
    host = kernel.executor().host_id
    controller = kernel.runtime.controller
    controller.drain_host(HostId(host), release=False).result(HANG_S)
    view = settled(kernel)
    assert host not in hosts(view)
    assert kernel.run("print(x)").text == "there\n"
    shown = next(h for h in snapshot(kernel.runtime).hosts if h.id == host)
    assert (shown.draining, shown.replica_count) == (True, 0)
    controller.cancel_drain(HostId(host)).result(HANG_S)
    move(kernel, None, host).result(HANG_S)
    assert host in hosts(settled(kernel))


def test_what_cannot_be_is_refused_with_the_reason(kernel: Notebook) -> None:
    there = kernel.view().replicas[0].host_id
    for replica, target, reason in (
        ("no-such:1", None, "the kernel has no replica"),
        (None, "host-99", "there is no host host-99"),
        (None, there, f"{there} has a replica of the kernel already"),
    ):
        with pytest.raises(Infeasible, match=reason):
            move(kernel, replica, target).result(HANG_S)
    with pytest.raises(NotFound):
        kernel.runtime.controller.migrate(KernelId("unknown"), replica=None, target=None).result(
            HANG_S
        )
    assert kernel.view().migration is None


def test_a_released_host_is_given_back_and_comes_again_when_needed() -> None:
    with private_cluster(hosts=4, max_hosts=4) as cluster, notebook(cluster) as kernel:
        until(lambda: len(snapshot(cluster).hosts) == 4, "four hosts")
        kernel.wait_for_replicas()
        kernel.run("x = 7")
        host = kernel.executor().host_id
        pid = next(h.pid for h in snapshot(cluster).hosts if h.id == host)
        cluster.controller.drain_host(HostId(host), release=True).result(HANG_S)
        until(lambda: host not in {h.id for h in snapshot(cluster).hosts}, "it is gone")
        until(lambda: gone(pid), "its agent has ended")
        assert not cluster.folder.host(host).exists()
        settled(kernel)
        assert kernel.run("print(x)").text == "7\n"
