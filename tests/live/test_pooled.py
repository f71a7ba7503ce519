"""The policy `pooled`: one replica, which goes where GPUs are free, out of the pool there."""

from __future__ import annotations

from pathlib import Path

from live_rig import HANG_S, notebook, pool, private_cluster, until

from notebookos_ext.cluster.model import KernelId


def test_the_one_replica_moves_to_free_gpus_by_the_pool_and_keeps_its_variables(
    tmp_path: Path,
) -> None:
    with (
        private_cluster(
            hosts=2, max_hosts=2, policy="pooled", gpus="simulated", simulated_gpus_per_host=2
        ) as cluster,
        notebook(cluster) as first,
        notebook(cluster) as second,
    ):
        assert [len(kernel.view().replicas) for kernel in (first, second)] == [1, 1]
        first.run("%%gpu 2\nx = [1]")
        host = first.executor().host_id
        second.run("y = {'a': 0}")
        # Both on one host, for the question to be open.
        if second.executor().host_id != host:
            controller = cluster.controller
            controller.migrate(KernelId(second.id), replica=None, target=None).result(HANG_S)
            until(lambda: second.view().migration is None, "it has moved")
        assert second.view().replicas[0].host_id == host
        other = "host-2" if host == "host-1" else "host-1"
        waiting = until(lambda: pool(cluster, other)[0] and pool(cluster, other)[1], "a pool there")
        flag = tmp_path / "go on"
        first.submit(
            f"%%gpu 2\nimport pathlib, time\nwhile not pathlib.Path({str(flag)!r}).exists():\n"
            "    time.sleep(0.02)\nx.append(2)"
        )
        until(lambda: any(cell.state == "running" for cell in first.view().cells), "it runs")
        ran = second.run("%%gpu 2\ny['b'] = 1\nprint(y)")
        assert ran.text == "{'a': 0, 'b': 1}\n"
        assert second.executor().host_id == other
        assert second.executor().pid in waiting
        assert len(second.view().replicas) == 1
        flag.touch()
        assert first.reply()["status"] == "ok"
        assert first.run("print(x)").text == "[1, 2]\n"
