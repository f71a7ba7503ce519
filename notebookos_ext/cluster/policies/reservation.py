"""Reservation: one replica, whose GPUs are its own for as long as the kernel lives.

What notebook services do today, and the baseline of the paper (sections 5 and 7): cells never wait
for GPUs, kernels do, and the GPUs are idle most of the time.
"""

from __future__ import annotations

from collections.abc import Collection

from notebookos_ext.cluster.model import DeviceId
from notebookos_ext.cluster.placement import Placement, ask_for, find_target, gpus_text
from notebookos_ext.cluster.policies.base import Choice, Reject
from notebookos_ext.cluster.policies.replicated import ReplicatedPolicy
from notebookos_ext.cluster.queueing import WaitingCell
from notebookos_ext.cluster.replicas import Kernel
from notebookos_ext.cluster.state import ClusterView


class ReservationPolicy(ReplicatedPolicy):
    """See the module."""

    name = "reservation"
    keeps_gpus = True

    def replica_count(self, wanted: int) -> int:
        """One, whatever the notebook asks for."""
        return min(wanted, 1)

    def place(self, view: ClusterView, kernel: Kernel, count: int) -> Placement:
        """The host that its GPUs fit best."""
        if kernel.gpus_per_cell == 0:
            return super().place(view, kernel, count)
        ask = ask_for(kernel.spec, count)
        host = find_target(view.pool, view.hosts, ask, kernel.gpus_per_cell)
        return Placement(() if host is None else (host,), {})

    def choose(
        self,
        view: ClusterView,
        kernel: Kernel,
        waiting: WaitingCell,
        *,
        kept: Collection[DeviceId],
        at: float,
    ) -> Choice:
        """On its own GPUs; a cell that needs more than are reserved can never run."""
        reserved = kernel.gpus_per_cell
        if waiting.cell.gpus > reserved:
            return Reject(
                f"the cell asks for {gpus_text(waiting.cell.gpus)}, "
                f"but {gpus_text(reserved)} are reserved for this kernel",
                "raise the GPUs per cell in the notebook's settings, which reserves more",
            )
        return super().choose(view, kernel, waiting, kept=kept, at=at)
