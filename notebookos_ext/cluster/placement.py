"""Where things fit: hosts for a new kernel's replicas, devices of a host for a cell; and why not.

Filters refuse with a reason that people read; scorers rank what is left. Knows nothing of policies.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable

import msgspec

from notebookos_ext.cluster.gpus import GpuPool
from notebookos_ext.cluster.hosts import Host, host_order
from notebookos_ext.cluster.model import DeviceId, HostId, KernelSpec


class Placement(msgspec.Struct, frozen=True):
    """Hosts for the replicas, best first; fewer than asked for when there are no more."""

    hosts: tuple[HostId, ...]
    refused: dict[HostId, str]
    """Every other host that was refused outright, with the reason."""


HostFilter = Callable[[Host, KernelSpec], str | None]
"""A reason to refuse the host, or None."""
HostScorer = Callable[[Host, KernelSpec], int]
"""Lower is better; earlier scorers weigh more."""


def refuse_lost(host: Host, _spec: KernelSpec) -> str | None:
    """A host whose agent is gone takes nothing new."""
    return None if host.ready else f"{host.id} is lost: {host.lost_reason}"


def refuse_draining(host: Host, _spec: KernelSpec) -> str | None:
    """A host that is to be emptied takes nothing new."""
    return f"{host.id} is being drained" if host.draining else None


def lacks_gpus(host: Host, spec: KernelSpec) -> int:
    """Hosts that could never serve the notebook's GPU cells come last."""
    return int(host.gpu_count < spec.gpus_per_cell)


def carries_replicas(host: Host, _spec: KernelSpec) -> int:
    """Fewest replicas first, so that kernels spread."""
    return len(host.replicas)


FILTERS: tuple[HostFilter, ...] = (refuse_lost, refuse_draining)
SCORERS: tuple[HostScorer, ...] = (lacks_gpus, carries_replicas)


def place_kernel(hosts: Iterable[Host], spec: KernelSpec, count: int) -> Placement:
    """Choose `count` distinct hosts; ties are broken by name."""
    refused: dict[HostId, str] = {}
    fitting: list[Host] = []
    for host in hosts:
        reason = next((r for f in FILTERS if (r := f(host, spec)) is not None), None)
        if reason is None:
            fitting.append(host)
        else:
            refused[host.id] = reason
    best = heapq.nsmallest(
        count, fitting, key=lambda host: (*(s(host, spec) for s in SCORERS), host_order(host.id))
    )
    return Placement(tuple(host.id for host in best), refused)


def choose_devices(
    pool: GpuPool,
    host: HostId,
    count: int,
    *,
    known: tuple[DeviceId, ...] = (),
    without: Collection[DeviceId] = (),
) -> tuple[DeviceId, ...] | None:
    """`count` free devices of the host, or None.

    `known` are those that the replica's process has used: exactly these if they are free and as
    many as asked for, because a process whose CUDA is set up cannot see others without a restart.
    `without` are free devices that are kept for somebody else.
    """
    if pool.free_count(host) < count:
        return None
    free = pool.free(host, without)
    if len(free) < count:
        return None
    if len(known) == count and set(known) <= set(free):
        return known
    others = [device for device in free if device not in known]
    left_out = set(others[max(0, count - (len(free) - len(others))) :])
    return tuple(device for device in free if device not in left_out)[:count]


def gpus_text(count: int) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def free_text(pool: GpuPool, host: HostId, total: int, without: Collection[DeviceId] = ()) -> str:
    """How many of a host's GPUs are free, for people, and what becomes of those that are kept."""
    free = pool.free(host)
    kept = sum(1 for device in free if device in without)
    text = f"{host} has {len(free)} of {total} free"
    return f"{text} ({kept} kept for a cell that waits longer)" if kept else text
