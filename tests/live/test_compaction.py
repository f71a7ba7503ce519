"""A kernel whose log is compacted while it is used: what it has is there on every replica."""

from __future__ import annotations

from live_rig import HANG_S, Notebook, notebook, private_cluster, snapshot, until

from notebookos_ext.cluster.model import HostId, KernelId, ReplicaId
from notebookos_ext.handlers.models import MemberView

LOOK = "print(len(d), a[0], b.base is a, x is d[max(d)], len(s))"


def snapshots(kernel: Notebook) -> list[MemberView]:
    """The members, once each has a snapshot and none is behind."""
    members = [replica.member for replica in kernel.view().replicas]
    found = [member for member in members if member is not None and member.snapshot_index]
    return found if len(found) == len(members) else []


def test_replicas_begin_with_the_snapshot_and_lack_nothing() -> None:
    with (
        private_cluster(
            hosts=4, max_hosts=4, compact_entries=20, compact_bytes=200_000, poll_s=0.1
        ) as cluster,
        notebook(cluster) as kernel,
    ):
        until(lambda: len(snapshot(cluster).hosts) == 4, "four hosts")
        kernel.wait_for_replicas()
        kernel.run("import numpy as np; d = {}; a = np.zeros(100_000); b = a[:10]")
        cells = 30
        for number in range(cells):
            code = f"d[{number}] = [{number}]; x = d[{number}]; b[0] = {number}; s = 'y' * {number}"
            assert kernel.run(code).status == "ok"
        expected = f"{cells} {cells - 1}.0 True True {cells - 1}\n"
        for member in until(lambda: snapshots(kernel), "a snapshot at each member"):
            # Each cell is two entries: most of them are forgotten.
            assert member.snapshot_index > cells
            assert member.failure == ""
        kernel.kill_executor()
        assert kernel.run(LOOK).text == expected
        kernel.wait_for_replicas()

        # A host that never saw the log gets the snapshot.
        there = {replica.host_id for replica in kernel.view().replicas}
        target = next(host.id for host in snapshot(cluster).hosts if host.id not in there)
        cluster.controller.migrate(
            KernelId(kernel.id),
            replica=ReplicaId(kernel.executor().id),
            target=HostId(target),
        ).result(HANG_S)
        until(lambda: kernel.view().migration is None, "the end of the move")
        for _ in range(3):
            kernel.wait_for_replicas()
            assert kernel.run(LOOK).text == expected
            kernel.kill_executor()
