"""The questions that a policy answers. It sees a read-only cluster and returns plain values."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from notebookos_ext.cluster.model import DeviceId, HostId, ReplicaId
from notebookos_ext.cluster.placement import Placement
from notebookos_ext.cluster.queueing import WaitingCell
from notebookos_ext.cluster.replicas import Kernel
from notebookos_ext.cluster.state import ClusterView


class Run(msgspec.Struct, frozen=True):
    """The cell can start now: on this replica, with these devices bound."""

    replica: ReplicaId
    devices: tuple[DeviceId, ...] = ()


class Wait(msgspec.Struct, frozen=True):
    """Not now, because of `reason`. At the hosts `line_at` it stands in line for GPUs.

    With an empty `line_at` it waits for its own kernel and is in nobody's way.
    """

    reason: str
    line_at: tuple[HostId, ...] = ()
    anywhere: bool = False
    """It would take GPUs of any host, not only of these."""
    for_quota: bool = False
    """Its user's other cells hold as many GPUs as they may."""


class Wake(msgspec.Struct, frozen=True):
    """The kernel is in the store alone: bring it back, on `hosts` or where the policy places it.

    `devices` of the first host are set apart for the cell; its user is told `reason`.
    """

    reason: str
    hosts: tuple[HostId, ...] = ()
    devices: tuple[DeviceId, ...] = ()


class Leave(msgspec.Struct, frozen=True):
    """Elsewhere it could run: the kernel goes into the store first, from where any host has it.

    Its user is told `reason`.
    """

    reason: str


class Move(msgspec.Struct, frozen=True):
    """No host of the kernel can run the cell, but `target` can, once a replica has moved there.

    `devices` of it are set apart meanwhile; its user is told `reason`. Should GPUs become free at
    `line_at` first, the cell begins there.
    """

    target: HostId
    devices: tuple[DeviceId, ...]
    reason: str
    line_at: tuple[HostId, ...] = ()


class Reject(msgspec.Struct, frozen=True):
    """Never, because of `reason`; `hint` says what its user can do."""

    reason: str
    hint: str = ""


Choice = Run | Wait | Wake | Leave | Move | Reject


class Policy(Protocol):
    """How a cluster shares its GPUs among kernels."""

    name: str
    keeps_gpus: bool
    """GPUs are set apart for a kernel as long as it lives."""
    keeps_replicas: bool
    """Replicas outlive the cell that they ran."""

    def replica_count(self, wanted: int) -> int:
        """How many replicas a kernel has whose notebook asks for `wanted`."""
        ...

    def place(self, view: ClusterView, kernel: Kernel, count: int) -> Placement:
        """Hosts for a kernel's replicas; fewer than `count` when there are not enough."""
        ...

    def choose(
        self,
        view: ClusterView,
        kernel: Kernel,
        waiting: WaitingCell,
        *,
        kept: Collection[DeviceId],
        at: float,
    ) -> Choice:
        """Who runs the cell now, on which devices. `kept` are free but promised to older cells."""
        ...

    def keep(
        self, view: ClusterView, kernel: Kernel, waiting: WaitingCell, kept: Collection[DeviceId]
    ) -> tuple[DeviceId, ...]:
        """Free devices to keep for a cell that was overtaken too often, beside those in `kept`."""
        ...
