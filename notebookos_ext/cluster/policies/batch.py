"""Batch: every cell gets a fresh replica on a host with enough GPUs, first come, first served.

The paper's second baseline (section 7): nothing is held between cells, and every cell pays for the
start of a replica and for its namespace's way from and to the store.
"""

from __future__ import annotations

from collections.abc import Collection

from notebookos_ext.cluster.model import DeviceId, HostId
from notebookos_ext.cluster.placement import ask_for, choose_devices, find_target, gpus_text
from notebookos_ext.cluster.policies.base import Choice, Leave, Reject, Wait, Wake
from notebookos_ext.cluster.policies.replicated import ReplicatedPolicy, never, not_its_turn
from notebookos_ext.cluster.queueing import WaitingCell
from notebookos_ext.cluster.replicas import IDLE, Kernel
from notebookos_ext.cluster.state import ClusterView


class BatchPolicy(ReplicatedPolicy):
    """See the module."""

    name = "batch"
    keeps_replicas = False

    def replica_count(self, wanted: int) -> int:
        """One, whatever the notebook asks for."""
        return min(wanted, 1)

    def choose(
        self,
        view: ClusterView,
        kernel: Kernel,
        waiting: WaitingCell,
        *,
        kept: Collection[DeviceId],
        at: float,
    ) -> Choice:
        """Where its GPUs fit best; until some host has enough it waits for any."""
        if not kernel.stored:
            choice = super().choose(view, kernel, waiting, kept=kept, at=at)
            stuck = isinstance(choice, Wait | Reject) and _can_leave(kernel, waiting)
            if stuck and self._target(view, kernel, waiting, kept) is not None:
                return Leave("the kernel goes to a host with free GPUs, by way of the store")
            return choice
        early = never(view, kernel, waiting.cell) or not_its_turn(view, kernel, waiting)
        if early is not None:
            return early
        gpus = waiting.cell.gpus
        target = self._target(view, kernel, waiting, kept)
        if target is None:
            return Wait(f"waits until a host has {gpus_text(gpus)} free", anywhere=gpus > 0)
        return Wake("waits until its replica has started", (target[0],), target[1])

    def _target(
        self, view: ClusterView, kernel: Kernel, waiting: WaitingCell, kept: Collection[DeviceId]
    ) -> tuple[HostId, tuple[DeviceId, ...]] | None:
        gpus = waiting.cell.gpus
        host = find_target(view.pool, view.hosts, ask_for(kernel.spec, 1), gpus, kept)
        devices = choose_devices(view.pool, host, gpus, without=kept) if host is not None else None
        return None if host is None or devices is None else (host, devices)

    def keep(
        self, view: ClusterView, kernel: Kernel, waiting: WaitingCell, kept: Collection[DeviceId]
    ) -> tuple[DeviceId, ...]:
        """What is free on the host that is nearest to having enough."""
        if not kernel.stored:
            return super().keep(view, kernel, waiting, kept)
        best: list[DeviceId] = []
        for host in view.by_load:
            if host.gpu_count >= waiting.cell.gpus:
                free = view.pool.free(host.id, kept)
                if len(free) > len(best):
                    best = free
        return tuple(best[: waiting.cell.gpus])


def _can_leave(kernel: Kernel, waiting: WaitingCell) -> bool:
    """Whether it rests with all that it has: something else than a cell had brought it back."""
    at_rest = kernel.attempt is None and kernel.held_by is None and kernel.pending_on is None
    started = any(replica.state is IDLE for replica in kernel.replicas)
    return at_rest and started and not kernel.storing and kernel.waiting[0] is waiting
