"""Kernels rest in the checkpoint store and come back, on real hosts, with all that they had."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_rig import HANG_S, Notebook, gone, notebook, private_cluster, snapshot, until

from notebookos_ext.cluster import events
from notebookos_ext.cluster.model import KernelId
from notebookos_ext.live.cluster_runtime import ClusterRuntime

NEVER = 100_000.0
"""Minutes: kernels rest when a test says so."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterRuntime]:
    with private_cluster(hosts=4, max_hosts=4, idle_minutes=NEVER) as runtime:
        until(lambda: len(snapshot(runtime).hosts) == 4, "four hosts")
        yield runtime


@pytest.fixture
def kernel(cluster: ClusterRuntime) -> Iterator[Notebook]:
    with notebook(cluster) as opened:
        opened.wait_for_replicas()
        yield opened


def long_after(runtime: ClusterRuntime) -> None:
    """The scheduler believes that nobody has used its kernels for ages."""
    controller = runtime.controller

    async def later() -> None:
        at = runtime.now() + (NEVER + 1) * 60.0
        controller.post(events.Ticked(at=at))

    controller._submit(later()).result(HANG_S)


def rest(kernel: Notebook) -> None:
    """Have the kernel stored."""
    pids = [replica.pid or 0 for replica in kernel.view().replicas]
    long_after(kernel.runtime)
    until(lambda: kernel.view().state == "stored", "a stored kernel")
    until(lambda: all(map(gone, pids)), "the end of its replicas")


def logs(runtime: ClusterRuntime) -> list[Path]:
    return list(runtime.folder.path.glob("hosts/*/kernels/*"))


def test_a_cell_brings_everything_back(kernel: Notebook) -> None:
    kernel.run("import numpy as np, os; x = [1]; alias = x; big = np.arange(4_000_000)")
    kernel.run("os.environ['MINE'] = '1'; np.random.seed(3); 6 * 7")
    before = kernel.run("big[7] = 70; import random; random.seed(5)")
    kernel.wait_for_replicas()
    rest(kernel)
    view = kernel.view()
    assert view.replicas == ()
    assert view.stored is not None
    assert not view.stored.restoring
    assert view.stored.size_bytes > 30_000_000
    assert logs(kernel.runtime) == []
    look = "alias.append(2); print(x, x is alias, int(big[7]), os.environ['MINE'], Out[2])"
    ran = kernel.run(look)
    assert ran.text == "[1, 2] True 70 1 42\n"
    assert ran.content["execution_count"] == before.content["execution_count"] + 1
    assert kernel.run("print(In[2][:10], len(In), random.random())").text.startswith("os.environ")
    view = kernel.wait_for_replicas()
    assert view.stored is None
    # It stands on its own logs again.
    kernel.kill_executor()
    assert kernel.run("print(x)").text == "[1, 2]\n"
    kernel.wait_for_replicas()
    rest(kernel)
    assert kernel.run("print(x, int(big[7]))").text == "[1, 2] 70\n"


def test_everything_of_the_hosts_may_be_gone(kernel: Notebook) -> None:
    kernel.run("data = list(range(300_000)); text = 'kept'")
    kernel.wait_for_replicas()
    rest(kernel)
    hosts = {host.id: host.pid for host in snapshot(kernel.runtime).hosts}
    for host in hosts:
        shutil.rmtree(kernel.runtime.folder.host(host) / "kernels", ignore_errors=True)
    for pid in hosts.values():
        os.kill(pid, signal.SIGKILL)

    def others() -> bool:
        now = {host.id: host.pid for host in snapshot(kernel.runtime).hosts if host.pid}
        ready = all(host.state == "ready" for host in snapshot(kernel.runtime).hosts)
        return ready and all(now[host] != pid for host, pid in hosts.items())

    until(others, "other agents of the same hosts")
    assert kernel.run("print(len(data), text)").text == "300000 kept\n"


def test_other_requests_bring_it_back_too_and_asking_who_it_is_does_not(kernel: Notebook) -> None:
    kernel.run("some_name = 1")
    kernel.wait_for_replicas()
    rest(kernel)
    reply = kernel.client.kernel_info(reply=True, timeout=HANG_S)
    assert reply["content"]["language_info"]["name"] == "python"
    kernel.client.hb_channel.unpause()
    until(kernel.client.is_alive, "its heart beats")
    assert kernel.view().state == "stored"
    assert kernel.manager.is_alive()
    found = kernel.client.complete("some_na", reply=True, timeout=HANG_S)
    assert found["content"]["matches"] == ["some_name"]
    assert kernel.view().state in ("idle", "starting")


def test_a_restart_in_the_store_empties_it(kernel: Notebook) -> None:
    kernel.run("x = 1")
    kernel.wait_for_replicas()
    rest(kernel)
    kernel.manager.restart_kernel()
    kernel.client.wait_for_ready(timeout=HANG_S)
    assert kernel.view().state == "stored"
    ran = kernel.run("print('x' in globals())")
    assert ran.text == "False\n"
    assert ran.content["execution_count"] == 1
    kernel.run("y = 2")
    kernel.wait_for_replicas()
    rest(kernel)
    assert kernel.run("print(y)").text == "2\n"


def test_a_shutdown_in_the_store_leaves_nothing(cluster: ClusterRuntime) -> None:
    with notebook(cluster) as kernel:
        kernel.run("x = 1")
        kernel.wait_for_replicas()
        rest(kernel)
        name = kernel.id
    assert name not in {each.id for each in snapshot(cluster).kernels}
    assert KernelId(name) not in cluster.folder.logs()


def test_what_is_held_is_not_stored(kernel: Notebook) -> None:
    kernel.run("import socket; s = socket.socket()")
    until(lambda: kernel.view().held, "a held name")
    long_after(kernel.runtime)
    assert kernel.view().state == "idle"
    assert kernel.run("print(s.fileno() > 0)").text == "True\n"


def test_a_state_that_is_damaged_is_told_and_a_restart_goes_on(kernel: Notebook) -> None:
    kernel.run("x = 1")
    kernel.wait_for_replicas()
    rest(kernel)
    store = kernel.runtime.folder.store
    aside = shutil.move(store / "chunks", store / "aside")
    kernel.submit("print(x)")
    told = until(
        lambda: [w for w in snapshot(kernel.runtime).warnings if w.kernel_id == kernel.id],
        "a warning",
    )
    assert "could not be restored from the checkpoint store" in told[-1].message
    assert "is not in the store" in told[-1].message
    (waiting,) = snapshot(kernel.runtime).waiting
    assert waiting.reason == "the kernel is being restored from the store"
    kernel.manager.interrupt_kernel()
    assert kernel.reply()["status"] == "error"
    # It is tried on, and works as soon as the store does.
    shutil.move(aside, store / "chunks")
    assert kernel.run("print(x)").text == "1\n"
    kernel.wait_for_replicas()
    rest(kernel)
    shutil.move(store / "chunks", aside)
    kernel.submit("print(x)")
    until(lambda: kernel.view().stored and kernel.view().state == "starting", "it is on its way")
    kernel.manager.restart_kernel()
    kernel.client.wait_for_ready(timeout=HANG_S)
    shutil.move(aside, store / "chunks")
    assert kernel.run("print('x' in globals())").text == "False\n"


def test_a_sweep_spares_what_a_stored_kernel_needs(kernel: Notebook) -> None:
    kernel.run("import numpy as np; kept = np.arange(2_000_000); gone = np.ones(1_000_000)")
    folder = kernel.runtime.folder.store / "chunks"
    until(lambda: sum(p.stat().st_size for p in folder.glob("*/*")) >= 24e6, "chunks")
    kernel.run("del gone")
    until(lambda: not kernel.view().not_durable, "everything is durable")
    kernel.wait_for_replicas()
    rest(kernel)
    stored = kernel.view().stored
    assert stored is not None
    chunks = list(folder.glob("*/*"))
    for path in chunks:
        os.utime(path, (1, 1))
    swept = kernel.runtime.controller.sweep_store(dry_run=False).result(HANG_S)
    left = [path for path in chunks if path.exists()]
    assert swept.chunks == len(chunks) - len(left) > 0
    assert sum(path.stat().st_size for path in left) >= 16_000_000
    assert kernel.run("print(int(kept.sum()))").text == "1999999000000\n"
