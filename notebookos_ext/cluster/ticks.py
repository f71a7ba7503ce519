"""Time passes: what was put off until later is looked at again."""

from __future__ import annotations

from notebookos_ext.cluster import (
    autoscaler,
    host_lives,
    kernels,
    majority,
    migration,
    prewarm,
    rebalancing,
    settling,
)
from notebookos_ext.cluster.events import Ticked
from notebookos_ext.cluster.model import KernelId
from notebookos_ext.cluster.turn import Turn


def ticked(turn: Turn, _event: Ticked) -> None:
    """What was put off until later is looked at again."""
    state = turn.state
    state.pool.end_aside(turn.at)
    if state.lost:
        kernels.relaunch_due(turn)
    for kernel_id in list(state.without_hosts):
        kernel = state.kernels[KernelId(kernel_id)]
        if not settling.place(turn, kernel):
            settling.ask_for_hosts(turn, kernel)
    majority.look(turn)
    autoscaler.look(turn)
    if state.options.migrate:
        rebalancing.rebalance(turn)
        for kernel_id in list(state.to_resize):
            migration.resize(turn, state.kernels[kernel_id])
        if state.draining:
            migration.empty_hosts(turn)
    if state.draining:
        host_lives.forget_empty(turn)
        host_lives.release_empty(turn)
    reserve_rest(turn)
    if state.idle:
        reclaim_idle(turn)
    if state.prewarmed_changed or state.options.prewarm is not None:
        prewarm.fill(turn)
    if state.queue:
        for waiting in state.queue:
            waiting.refused.clear()
            waiting.refusals.clear()
        turn.look_at_all = turn.whole_line = True
        state.queue.moved = True


def reserve_rest(turn: Turn) -> None:
    """Make up for GPUs that could not be reserved when they should have been."""
    for kernel_id in list(turn.state.short):
        kernel = turn.state.kernels[kernel_id]
        if kernel.attempt is None and kernel.placed:
            settling.reserve(turn, kernel)


def reclaim_idle(turn: Turn) -> None:
    """Store kernels to which nothing has happened for long enough."""
    state = turn.state
    for kernel_id in list(state.idle):
        kernel = state.kernels[kernel_id]
        if turn.at - kernel.active_at < state.options.idle_s:
            return
        busy = kernel.waiting or kernel.attempt is not None or kernel.restoring
        if kernel.placed and kernel.started and not busy:
            settling.store(turn, kernel)
        if kernel.stored or kernel.storing:
            del state.idle[kernel_id]
        else:
            state.note_idle(kernel, turn.at)
