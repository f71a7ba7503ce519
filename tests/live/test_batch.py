"""The policy `batch` on real hosts: a fresh replica for every cell, its namespace by the store."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from live_rig import HANG_S, Notebook, gone, notebook, private_cluster, snapshot, until

from notebookos_ext.cluster.model import HostId
from notebookos_ext.live.cluster_runtime import ClusterRuntime


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterRuntime]:
    with private_cluster(
        policy="batch", hosts=1, max_hosts=1, gpus="simulated", simulated_gpus_per_host=1
    ) as runtime:
        until(lambda: snapshot(runtime).hosts, "the host")
        yield runtime


@pytest.fixture
def kernel(cluster: ClusterRuntime) -> Iterator[Notebook]:
    with notebook(cluster) as opened:
        yield opened


def rested(kernel: Notebook) -> None:
    until(lambda: kernel.view().state == "stored", "a stored kernel")


def test_cells_of_two_notebooks_take_turns_on_one_gpu(cluster: ClusterRuntime) -> None:
    with notebook(cluster) as first, notebook(cluster) as second:
        pids = set()
        for number in range(3):
            for book, name in ((first, "a"), (second, "b")):
                look = f"%%gpu 1\nimport os\ntotal = globals().get('total', '') + '{name}'\n"
                ran = book.run(look + "print(total, os.getpid())")
                text, pid = ran.text.split()
                assert text == name * (number + 1)
                assert ran.content["execution_count"] == number + 1
                pids.add(pid)
                rested(book)
        assert len(pids) == 6, "each cell has a replica of its own"
        assert all(gone(int(pid)) for pid in pids)
        (host,) = snapshot(cluster).hosts
        assert host.replica_count == 0
        assert [device.binding for device in host.devices] == [None]


def test_both_want_the_gpu_at_once(cluster: ClusterRuntime) -> None:
    with notebook(cluster) as first, notebook(cluster) as second:
        for book in (first, second):
            book.submit("%%gpu 1\nx = 1")
        assert first.reply()["status"] == second.reply()["status"] == "ok"
        for book in (first, second):
            assert book.run("%%gpu 1\nprint(x)").text == "1\n"


def test_all_cells_of_a_notebook_run_one_after_the_other(kernel: Notebook) -> None:
    asked = [kernel.client.execute(f"values = [*globals().get('values', ()), {n}]") for n in "123"]
    kernel.submit("print(values)")
    assert kernel.reply()["status"] == "ok"
    assert asked
    assert kernel.run("print(values)").text == "[1, 2, 3]\n"


def test_what_cannot_travel_keeps_its_replica_until_it_is_gone(kernel: Notebook) -> None:
    kernel.run("import socket; s = socket.socket()")
    assert kernel.view().state == "idle"
    assert kernel.run("print(s.fileno() > 0)").text == "True\n"
    kernel.run("s.close(); del s")
    rested(kernel)


def test_a_cell_that_fails_or_is_interrupted_is_over_all_the_same(kernel: Notebook) -> None:
    ran = kernel.run("x = 1\nraise ValueError('on purpose')")
    assert ran.error == "ValueError: on purpose"
    rested(kernel)
    assert kernel.run("print(x)").text == "1\n"
    kernel.submit("import time\nprint('runs', flush=True)\ntime.sleep(600)")
    until(lambda: kernel.view().state == "busy", "a cell that runs")
    kernel.manager.interrupt_kernel()
    assert kernel.reply()["ename"] == "KeyboardInterrupt"
    rested(kernel)


def test_a_restart_empties_it(kernel: Notebook) -> None:
    kernel.run("x = 1")
    kernel.manager.restart_kernel()
    kernel.client.wait_for_ready(timeout=HANG_S)
    assert kernel.run("print('x' in globals())").text == "False\n"


def test_what_was_brought_back_for_something_else_goes_where_a_gpu_is_free() -> None:
    with private_cluster(
        policy="batch", hosts=2, max_hosts=2, gpus="simulated", simulated_gpus_per_host=1
    ) as cluster:
        until(lambda: len(snapshot(cluster).hosts) == 2, "two hosts")
        with notebook(cluster) as first, notebook(cluster) as second:
            second.run("x = 1")
            rested(second)
            first.submit("%%gpu 1\nimport time\ntime.sleep(600)")
            until(lambda: first.view().state == "busy", "a cell that runs")
            taken = first.view().replicas[0].host_id
            free = next(host.id for host in snapshot(cluster).hosts if host.id != taken)
            cluster.controller.drain_host(HostId(free), release=False).result(HANG_S)
            second.client.complete("so", reply=True, timeout=HANG_S)
            assert second.view().replicas[0].host_id == taken
            cluster.controller.cancel_drain(HostId(free)).result(HANG_S)
            assert second.run("%%gpu 1\nprint(x)").text == "1\n"
            assert second.view().cells[0].host_id == free
            first.manager.interrupt_kernel()
            assert first.reply()["ename"] == "KeyboardInterrupt"
