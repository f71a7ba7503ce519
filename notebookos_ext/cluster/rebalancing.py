"""Moving replicas ahead of cells: a kernel that could not begin where it is moves in good time.

The cell after next comes minutes after the last one, and a move takes seconds; so it is over before
anybody waits for it.
"""

from __future__ import annotations

from notebookos_ext.cluster import migration
from notebookos_ext.cluster.placement import find_target
from notebookos_ext.cluster.replicas import IDLE, Kernel, MigrationReason
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
        if _rests(turn, kernel) and not _could_begin(turn, kernel):
            _move(turn, kernel)


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


def _move(turn: Turn, kernel: Kernel) -> None:
    state = turn.state
    victim = migration.choose_victim(turn, kernel)
    if victim is None:
        return
    ask = migration.ask_to_move(turn, kernel, victim)
    target = find_target(state.pool, state.hosts, ask, kernel.gpus_active)
    if target is not None:
        kernel.moved_at = turn.at
        migration.begin(turn, kernel, MigrationReason.REBALANCING, victim=victim, target=target)
