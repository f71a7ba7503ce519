"""Replicas and agents are killed while cells run: what was replied to is never lost."""

from __future__ import annotations

import ast
import os
import random
import signal
import threading

import pytest
from live_rig import Notebook, notebook, private_cluster, snapshot

from notebookos_ext.live.cluster_runtime import ClusterRuntime

FULL = bool(os.environ.get("NOTEBOOKOS_FULL"))
SEEDS = range(1, 9) if FULL else (1,)
CELLS = 40 if FULL else 12


def kill(pid: int | None) -> None:
    if pid:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return


def strike(kernel: Notebook, cluster: ClusterRuntime, rng: random.Random, what: str) -> None:
    replicas = [replica for replica in kernel.view().replicas if replica.pid]
    if what == "executor":
        for replica in replicas:
            if replica.executor:
                kill(replica.pid)
    elif what == "two replicas":
        for replica in rng.sample(replicas, min(2, len(replicas))):
            kill(replica.pid)
    elif what == "agent":
        hosts = [host for host in snapshot(cluster).hosts if host.state == "ready"]
        if hosts:
            kill(rng.choice(hosts).pid)


@pytest.mark.apart
@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_replied_to_survives_all_deaths(seed: int) -> None:
    rng = random.Random(seed)
    with (
        private_cluster(hosts=3, max_hosts=3) as cluster,
        notebook(cluster) as kernel,
    ):
        kernel.wait_for_replicas()
        assert kernel.run("done = []").status == "ok"
        replied, lost = set(), set()
        for number in range(CELLS):
            what = rng.choice(["nothing", "executor", "two replicas", "agent"])
            wait_s = rng.random() * 0.3
            striking = threading.Timer(rng.random() * 0.4, strike, (kernel, cluster, rng, what))
            striking.start()
            ran = kernel.run(f"import time; time.sleep({wait_s}); done.append({number})")
            striking.join()
            if ran.status == "ok":
                replied.add(number)
            else:
                assert ran.error.startswith("ExecutorLost: "), (what, ran)
                lost.add(number)
        shown = kernel.run("print('list', done)").text
        done = ast.literal_eval(shown.rpartition("list ")[2])
        assert sorted(set(done)) == done, "no cell ran twice"
        assert replied <= set(done), f"lost after its reply; repeat with seed {seed}"
        assert set(done) <= replied | lost
        kernel.wait_for_replicas()
