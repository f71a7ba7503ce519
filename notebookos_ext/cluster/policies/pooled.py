"""NotebookOS with a large pool of pre-warmed replicas: one replica, which goes where GPUs are free.

The original's variant of that kind takes a container from the pool for each cell (paper section 7).
Here the replica stays where its last cell ran, and moves only when that host has no GPUs free: with
the pool filled, a move takes little more than the way of the namespace.
"""

from __future__ import annotations

from notebookos_ext.cluster.policies.replicated import ReplicatedPolicy


class PooledPolicy(ReplicatedPolicy):
    """See the module; to be run with `migrate` and `prewarm`."""

    name = "pooled"

    def replica_count(self, wanted: int) -> int:
        """One, whatever the notebook asks for."""
        return min(wanted, 1)
