"""Without hints of the scheduler the replicas of a real cluster elect who runs each cell."""

from __future__ import annotations

from live_rig import HANG_S, gone, notebook, private_cluster, snapshot, until

from notebookos_ext.cluster.messages.control import AttemptBegun, BeginAttempt
from notebookos_ext.cluster.model import CellId, DeviceId, HostId, KernelId, ReplicaId
from notebookos_ext.live.cluster_runtime import ClusterRuntime

ELECTED = {"hints": False}


def test_cells_run_where_gpus_are_free_and_go_on_when_an_executor_dies() -> None:
    with (
        private_cluster(
            hosts=3, max_hosts=3, gpus="simulated", simulated_gpus_per_host=1, scheduling=ELECTED
        ) as cluster,
        notebook(cluster) as kernel,
    ):
        kernel.wait_for_replicas()
        assert kernel.run("x = 1\nprint(x)").text == "1\n"
        first = kernel.executor()
        assert kernel.run("%%gpu 1\nx += 1\nprint(x)").text == "2\n"
        assert kernel.executor().id == first.id, "the last executor is preferred"
        pid = kernel.kill_executor()
        assert kernel.run("%%gpu 1\nx += 1\nprint(x)").text == "3\n"
        assert gone(pid)
        assert kernel.executor().id != first.id, "the dead one is not waited for"
        kernel.wait_for_replicas()
        ends = [cell.state for cell in kernel.view().cells]
        assert set(ends) == {"done"}
        assert kernel.run("print(x)").text == "3\n"


def bind_elsewhere(cluster: ClusterRuntime, kernel: str, host: str) -> None:
    """Have a replica bind its host's GPU without the scheduler's knowledge."""
    request = BeginAttempt(
        kernel=KernelId(kernel),
        cell=CellId("nobody knows"),
        attempt=1000,
        replica=ReplicaId(f"{kernel}:1"),
        devices=(DeviceId(f"SIM-{host}-0"),),
    )
    controller = cluster.controller

    async def asking() -> object:
        return await controller._fleet.agent(HostId(host)).request(request, AttemptBegun)

    controller._submit(asking()).result(HANG_S)


def test_when_all_yield_a_replica_moves_and_the_same_cell_is_tried_there() -> None:
    with (
        private_cluster(
            hosts=1,
            max_hosts=2,
            replica_count=1,
            gpus="simulated",
            simulated_gpus_per_host=1,
            scheduling=ELECTED,
        ) as cluster,
        notebook(cluster) as kernel,
        notebook(cluster) as other,
    ):
        assert kernel.run("x = [7]").status == "ok"
        assert other.run("y = 1").status == "ok"
        controller = cluster.controller
        controller._submit(controller._fleet.request_hosts(2)).result(HANG_S)
        until(lambda: len(snapshot(cluster).hosts) == 2, "a second host")
        bind_elsewhere(cluster, other.id, "host-1")
        assert kernel.run("%%gpu 1\nx.append(8)\nprint(x)").text == "[7, 8]\n"
        assert kernel.executor().host_id == "host-2"
        (cell,) = [cell for cell in kernel.view().cells if cell.gpus]
        assert cell.state == "done"
