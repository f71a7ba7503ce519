"""Fifty kernels open at once, three replicas and a client each: sockets and descriptors suffice."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from live_rig import notebook, private_cluster, snapshot

KERNELS = 50 if os.environ.get("NOTEBOOKOS_FULL") else 10


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.apart
def test_fifty_kernels_at_once() -> None:
    with private_cluster(hosts=3, max_hosts=3) as cluster:
        with ExitStack() as stack:
            kernels = [stack.enter_context(notebook(cluster)) for _ in range(KERNELS)]
            for number, kernel in enumerate(kernels):
                assert kernel.run(f"mine = {number}").status == "ok"
            for kernel in kernels:
                kernel.wait_for_replicas()
            for number, kernel in enumerate(kernels):
                assert kernel.run("print(mine)").text == f"{number}\n"
            assert len(snapshot(cluster).kernels) == KERNELS
            most = descriptors()
        assert snapshot(cluster).kernels == ()
        assert descriptors() < most
        assert all(host.replica_count == 0 for host in snapshot(cluster).hosts)
