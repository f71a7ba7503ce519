"""Hosts that have lost a kernel's log: it is learnt again, or a restart begins anew."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

from live_rig import Notebook, notebook, private_cluster, snapshot, until

from notebookos_ext.live.cluster_runtime import ClusterRuntime


def lose_log(cluster: ClusterRuntime, kernel: Notebook, host: str) -> None:
    """Kill the host's agent and take its log of the kernel away before it is started again."""
    folder = cluster.folder.host(host)
    aside = Path(f"{folder}.aside")
    pid = next(h.pid for h in snapshot(cluster).hosts if h.id == host)
    # Nothing can be started in a folder that is not there.
    folder.rename(aside)
    folder.touch()
    os.kill(pid, signal.SIGKILL)
    until(lambda: state_of(cluster, host) == "lost", "a lost host")
    shutil.rmtree(aside / "kernels" / kernel.id)
    folder.unlink()
    aside.rename(folder)
    until(lambda: state_of(cluster, host) == "ready", "the host's return")


def state_of(cluster: ClusterRuntime, host: str) -> str:
    return next(h.state for h in snapshot(cluster).hosts if h.id == host)


def warnings(cluster: ClusterRuntime) -> list[str]:
    return [warned.message for warned in snapshot(cluster).warnings]


def test_the_only_log_is_lost_and_a_restart_founds_a_new_group() -> None:
    with (
        private_cluster(hosts=1, max_hosts=1, replica_count=1) as cluster,
        notebook(cluster) as kernel,
    ):
        kernel.run("x = 1")
        lose_log(cluster, kernel, "host-1")
        until(lambda: kernel.view().state == "no-majority", "a kernel that says what it lacks")
        gone = [said for said in warnings(cluster) if "variables are gone" in said]
        assert len(gone) == 1
        assert "restart it" in gone[0]
        kernel.submit("print(x)")
        waiting = until(lambda: snapshot(cluster).waiting, "a cell that waits")
        assert waiting[0].reason == gone[0]
        kernel.manager.restart_kernel()
        kernel.client.wait_for_ready(timeout=60)
        assert kernel.run("x").error.startswith("NameError")
        assert kernel.run("x = 2; print(x)").text == "2\n"
        # The new group is as good as the first was.
        kernel.kill_executor()
        assert kernel.run("print(x)").text == "2\n"
        assert len([said for said in warnings(cluster) if "variables are gone" in said]) == 1


def test_one_log_of_three_is_learnt_again_and_all_three_are_not() -> None:
    with (
        private_cluster(hosts=3, max_hosts=3, poll_s=0.1) as cluster,
        notebook(cluster) as kernel,
    ):
        kernel.wait_for_replicas()
        kernel.run("x = 1")
        lose_log(cluster, kernel, "host-2")
        kernel.wait_for_replicas()
        until(
            lambda: all(r.member and r.member.votes for r in kernel.view().replicas),
            "three members that vote",
        )
        assert kernel.run("print(x)").text == "1\n"
        for host in ("host-1", "host-2", "host-3"):
            lose_log(cluster, kernel, host)
        until(lambda: kernel.view().state == "no-majority", "a kernel that says what it lacks")
        kernel.manager.restart_kernel()
        kernel.client.wait_for_ready(timeout=60)
        kernel.wait_for_replicas()
        assert kernel.run("x").error.startswith("NameError")
        kernel.run("x = 3")
        kernel.kill_executor()
        assert kernel.run("print(x)").text == "3\n"
