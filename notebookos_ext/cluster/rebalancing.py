"""Moving replicas ahead of cells: a kernel that could not begin where it is moves in good time.

The cell after next comes minutes after the last one, and a move takes seconds; so it is over before
anybody waits for it.
"""

from __future__ import annotations

from notebookos_ext.cluster import migration
from notebookos_ext.cluster.model import HostId
from notebookos_ext.cluster.placement import find_target
from notebookos_ext.cluster.replicas import IDLE, Kernel, MigrationReason, Replica
from notebookos_ext.cluster.turn import Turn

AGAIN_S = 30.0
"""How long a kernel stays where it is after a move."""
LOOKS_MOST = 256
"""How many kernels are looked at each time, the latest active first."""


def rebalance(turn: Turn) -> None:
    """Begin as many moves as may run at once."""
    state = turn.state
    options = state.options
    if not options.rebalance:
        return
    for looks, kernel_id in enumerate(reversed(state.active)):
        kernel = state.kernels[kernel_id]
        if looks >= LOOKS_MOST or turn.at - kernel.gpus_active_at > options.rebalance_s:
            return
        if len(state.moving) >= options.moves_most:
            return
        if not _rests(turn, kernel):
            continue
        if not _could_begin(turn, kernel):
            _move(turn, kernel)
        elif options.consolidate:
            _consolidate(turn, kernel)


def _rests(turn: Turn, kernel: Kernel) -> bool:
    return (
        kernel.attempt is None
        and not kernel.waiting
        and kernel.migration is None
        and kernel.placed
        and not kernel.storing
        and kernel.held_by is None
        and turn.at - kernel.moved_at >= AGAIN_S
    )


def _could_begin(turn: Turn, kernel: Kernel) -> bool:
    hosts, pool = turn.state.hosts, turn.state.pool
    return any(
        replica.state is IDLE
        and hosts[replica.host].usable
        and pool.free_count(replica.host) >= kernel.gpus_active
        for replica in kernel.replicas
    )


def _consolidate(turn: Turn, kernel: Kernel) -> None:
    """Move the only replica of a kernel with small cells off a host on which nothing runs, to one
    that has room and is in use anyway.

    One of several replicas would not decide where the next cell begins.
    """
    state = turn.state
    if len(kernel.replicas) != 1 or kernel.replicas[0].id == kernel.pending_on:
        return
    here = kernel.replicas[0]
    gpus = state.hosts[here.host].gpu_count
    if 2 * kernel.gpus_active > gpus or state.pool.free_count(here.host) < gpus:
        return
    target = find_target(
        state.pool, state.hosts, migration.ask_to_move(turn, kernel, here), kernel.gpus_active
    )
    if target is not None and state.pool.free_count(target) < state.pool.free_count(here.host):
        _begin(turn, kernel, here, target)


def _move(turn: Turn, kernel: Kernel) -> None:
    state = turn.state
    victim = migration.choose_victim(turn, kernel)
    if victim is None:
        return
    ask = migration.ask_to_move(turn, kernel, victim)
    target = find_target(state.pool, state.hosts, ask, kernel.gpus_active)
    if target is not None:
        _begin(turn, kernel, victim, target)


def _begin(turn: Turn, kernel: Kernel, victim: Replica, target: HostId) -> None:
    kernel.moved_at = turn.at
    migration.begin(turn, kernel, MigrationReason.REBALANCING, victim=victim, target=target)
