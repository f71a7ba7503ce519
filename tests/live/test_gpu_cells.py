"""Cells that bind GPUs, cells that wait for them, and cells that need none."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_rig import HANG_S, Notebook, notebook, private_cluster, snapshot, until

from notebookos_ext.cluster.model import KernelId
from notebookos_ext.errors import Infeasible
from notebookos_ext.handlers.models import BindingView, CellView
from notebookos_ext.live.cluster_runtime import ClusterRuntime
from notebookos_ext.notebook_settings import NotebookSettings


def waits_for(path: Path) -> str:
    """A cell that runs until the file exists."""
    return f"import pathlib, time\nwhile not pathlib.Path({str(path)!r}).exists(): time.sleep(0.01)"


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterRuntime]:
    """One host with two simulated GPUs, and kernels of one replica: a place to queue for."""
    with private_cluster(
        hosts=1, max_hosts=1, replica_count=1, gpus="simulated", simulated_gpus_per_host=2
    ) as runtime:
        yield runtime


def bound(cluster: ClusterRuntime) -> list[BindingView]:
    devices = [device for host in snapshot(cluster).hosts for device in host.devices]
    return [device.binding for device in devices if device.binding]


def newest(kernel: Notebook) -> CellView:
    return kernel.view().cells[0]


def test_a_gpu_is_bound_while_its_cell_runs_and_free_afterwards(
    cluster: ClusterRuntime, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    with notebook(cluster) as kernel:
        kernel.submit("%%gpu 1\n" + waits_for(go))
        held = until(lambda: bound(cluster), "a binding")
        assert [b.kernel_id for b in held] == [kernel.id]
        until(lambda: newest(kernel).state == "running", "a running cell")
        cell = newest(kernel)
        assert (cell.gpus, cell.device_kind) == (1, "simulated")
        assert "%%gpu" in cell.gpus_reason
        go.touch()
        assert kernel.reply()["status"] == "ok"
        until(lambda: not bound(cluster), "no binding")
        assert kernel.run("import os; print(os.environ.get('NOTEBOOKOS_GPUS', ''))").text == "\n"


def test_a_gpu_cell_waits_its_turn_and_others_do_not(
    cluster: ClusterRuntime, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    with notebook(cluster) as first, notebook(cluster) as second:
        first.submit("%%gpu 2\n" + waits_for(go))
        until(lambda: len(bound(cluster)) == 2, "both GPUs bound")
        second.submit("%%gpu 1\nprint('mine')")
        waiting = until(lambda: snapshot(cluster).waiting, "a waiting cell")[0]
        assert (waiting.kernel_id, waiting.position, waiting.gpus) == (second.id, 1, 1)
        assert "host-1" in waiting.reason
        assert second.view().state == "queued"
        with notebook(cluster) as third:
            assert third.run("print('no GPU, no wait')").text == "no GPU, no wait\n"
        go.touch()
        for kernel in (first, second):
            reply = kernel.reply()
            assert reply["status"] == "ok"
        assert newest(second).waited_ms
        until(lambda: not bound(cluster), "no binding")


def test_a_waiting_cell_can_be_interrupted(cluster: ClusterRuntime, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with notebook(cluster) as first, notebook(cluster) as second:
        first.submit("%%gpu 2\n" + waits_for(go))
        until(lambda: len(bound(cluster)) == 2, "both GPUs bound")
        second.submit("%%gpu 1\nprint('mine')")
        until(lambda: snapshot(cluster).waiting, "a waiting cell")
        second.manager.interrupt_kernel()
        reply = second.reply()
        assert reply["ename"] == "KeyboardInterrupt"
        assert newest(second).state == "aborted"
        assert not snapshot(cluster).waiting
        assert second.run("print('on')").text == "on\n"
        go.touch()
        assert first.reply()["status"] == "ok"


def test_a_kernel_that_ends_gives_its_gpus_back(cluster: ClusterRuntime, tmp_path: Path) -> None:
    with notebook(cluster) as kernel:
        kernel.submit("%%gpu 2\n" + waits_for(tmp_path / "never"))
        until(lambda: len(bound(cluster)) == 2, "both GPUs bound")
    until(lambda: not bound(cluster), "no binding")


def test_an_executor_that_dies_gives_its_gpus_back(cluster: ClusterRuntime) -> None:
    with notebook(cluster) as kernel:
        ran = kernel.run("%%gpu 2\nimport os; os._exit(1)")
        assert ran.error.startswith("ExecutorLost")
        until(lambda: not bound(cluster), "no binding")
        assert kernel.run("%%gpu 2\nprint('again')").text == "again\n"


def test_more_gpus_than_any_host_has_is_an_error_with_the_numbers(cluster: ClusterRuntime) -> None:
    with notebook(cluster) as kernel:
        ran = kernel.run("%%gpu 9\nprint('never')")
        assert ran.status == "error"
        assert ran.error.startswith("Infeasible: ")
        assert "9" in ran.error
        assert newest(kernel).state == "rejected"
        assert kernel.run("print('on')").text == "on\n"


def test_nonsense_behind_the_magic_is_an_error(cluster: ClusterRuntime) -> None:
    with notebook(cluster) as kernel:
        ran = kernel.run("%%gpu many\nprint('never')")
        assert ran.error.startswith("InvalidRequest: ")
        assert kernel.run("print('on')").text == "on\n"


def test_gpus_per_cell_holds_from_the_next_cell(cluster: ClusterRuntime) -> None:
    with notebook(cluster) as kernel:
        kernel.run("import random as torch_like")
        assert newest(kernel).gpus == 0
        with pytest.raises(Infeasible, match="no host has more than 2"):
            cluster.controller.change_settings(
                KernelId(kernel.id), NotebookSettings(gpus_per_cell=3)
            ).result()
        cluster.controller.change_settings(
            KernelId(kernel.id), NotebookSettings(gpus_per_cell=1)
        ).result()
        kernel.run("import torch")
        assert newest(kernel).gpus == 1
        assert newest(kernel).gpus_reason
        kernel.run("1 + 1")
        assert newest(kernel).gpus == 0


def test_loops_that_come_and_go_are_no_matter(cluster: ClusterRuntime) -> None:
    from jupyter_client.manager import AsyncKernelManager

    async def once() -> str:
        manager = AsyncKernelManager(kernel_name="notebookos")
        await manager.start_kernel()
        client = manager.client()
        client.start_channels()
        await client.wait_for_ready(timeout=HANG_S)
        reply = await client.execute("1 + 1", reply=True, timeout=HANG_S)
        client.stop_channels()
        await manager.shutdown_kernel()
        return str(reply["content"]["status"])

    assert [asyncio.run(once()) for _ in range(2)] == ["ok", "ok"]


def test_a_reservation_keeps_its_gpus_between_cells() -> None:
    with (
        private_cluster(
            hosts=1,
            max_hosts=1,
            gpus="simulated",
            simulated_gpus_per_host=2,
            gpus_per_cell=1,
            policy="reservation",
        ) as cluster,
        notebook(cluster) as kernel,
    ):
        assert len(kernel.view().replicas) == 1
        assert kernel.run("%%gpu 1\nx = 1").status == "ok"
        (held,) = bound(cluster)
        assert held.kernel_id == kernel.id
        assert kernel.run("%%gpu 1\nprint(x)").text == "1\n"
        assert kernel.run("x + 1").text == "2"
        assert len(bound(cluster)) == 1
        too_many = kernel.run("%%gpu 2\nx")
        assert "reserved for this kernel" in too_many.error
        with notebook(cluster) as other:
            assert other.run("%%gpu 1\n1").text == "1"
            assert len(bound(cluster)) == 2
        until(lambda: len(bound(cluster)) == 1, "the other's GPU given back with its kernel")
