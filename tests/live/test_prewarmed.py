"""The pool of pre-warmed replicas of a real cluster: filled, used, filled again, and mourned."""

from __future__ import annotations

import os
import signal

from live_rig import gone, notebook, pool, private_cluster, until

from notebookos_ext.live.cluster_runtime import ClusterRuntime

FIXED = {"prewarm": {"rule": "fixed", "per_host": 2}}


def full(cluster: ClusterRuntime) -> set[int]:
    """The processes that wait, once there are as many as there should be."""

    def whole() -> set[int] | None:
        count, waiting = pool(cluster, "host-1")
        return waiting if count == len(waiting) == 2 else None

    found: set[int] = until(whole, "two pre-warmed replicas")
    return found


def test_a_kernel_takes_one_that_waits_and_the_pool_is_filled_again() -> None:
    with private_cluster(
        hosts=1, max_hosts=1, replica_count=1, gpus="simulated", scheduling=FIXED
    ) as cluster:
        waiting = full(cluster)
        with notebook(cluster) as kernel:
            assert kernel.run("%%gpu 1\nx = 1\nprint(x)").text == "1\n"
            pid = kernel.executor().pid
            assert pid in waiting
            assert len(full(cluster) - waiting) == 1
            # One that ends is missed by nobody but the pool.
            killed = min(full(cluster))
            os.kill(killed, signal.SIGKILL)
            until(lambda: killed not in pool(cluster, "host-1")[1], "it is gone")
            assert kernel.run("print(x + 1)").text == "2\n"
            # A replica that is launched again comes from the pool as well.
            kernel.kill_executor()
            until(lambda: kernel.view().replicas[0].pid not in (None, pid), "another process")
            kernel.wait_for_replicas(1)
            assert kernel.run("print(x + 2)").text == "3\n"
    assert pid is not None
    assert gone(pid)
