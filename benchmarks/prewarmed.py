"""How long a kernel takes to start when its replicas wait pre-warmed, and when they do not.

    python -m benchmarks.prewarmed [--starts 9]

Prints the time from asking for a kernel with one replica to its first answer: forked from a warm
template, and made out of a pre-warmed replica. Both clusters are there all the time and take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from benchmarks.kernels import OURS, running
from notebookos_ext.live import cluster_runtime
from notebookos_ext.live.cluster_runtime import ClusterRuntime
from notebookos_ext.live.controller import Insight
from notebookos_ext.settings import Settings

POOL = {"prewarm": {"rule": "fixed", "per_host": 1}}


def opened(**settings: object) -> ClusterRuntime:
    """A cluster of one host that runs."""
    runtime = ClusterRuntime(
        Settings(hosts=1, max_hosts=1, replica_count=1, gpus="none", **settings),  # type: ignore[arg-type]
        private=True,
    )
    runtime.start()
    return runtime


def wait_until(runtime: ClusterRuntime, condition: Callable[[Insight], bool]) -> None:
    """Until the cluster has come to rest as it should be."""
    while not runtime.controller.read(condition).result():
        time.sleep(0.05)


def start_ms(runtime: ClusterRuntime) -> float:
    """One kernel on this cluster, until it answers."""
    cluster_runtime.install(runtime)
    try:
        with running(OURS) as (_client, seconds):
            return seconds * 1000
    finally:
        cluster_runtime.install(None)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=9)
    starts = parser.parse_args().starts
    plain, pool = opened(), opened(scheduling=POOL)
    forked: list[float] = []
    prewarmed: list[float] = []
    try:
        wait_until(plain, lambda insight: bool(insight.view.ready_count))
        # The first of each waits for what is only done once.
        for number in range(starts + 1):
            wait_until(pool, lambda insight: any(h.prewarmed for h in insight.view.hosts.values()))
            one, other = start_ms(plain), start_ms(pool)
            if number:
                forked.append(one)
                prewarmed.append(other)
    finally:
        plain.stop()
        pool.stop()
    a, b = statistics.median(forked), statistics.median(prewarmed)
    print(f"kernel start, median of {starts}: ratio {b / a:.2f}")
    print(f"  forked {a:.0f} ms, pre-warmed {b:.0f} ms")


if __name__ == "__main__":
    main()
