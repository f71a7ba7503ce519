"""How many GPUs the cells of one user may hold at once."""

from __future__ import annotations

from notebookos_ext.cluster.gpus import RESERVED
from notebookos_ext.cluster.placement import gpus_text
from notebookos_ext.cluster.policies.base import Reject, Wait
from notebookos_ext.cluster.queueing import WaitingCell
from notebookos_ext.cluster.replicas import Kernel
from notebookos_ext.cluster.turn import Turn


def never(turn: Turn, kernel: Kernel, waiting: WaitingCell) -> Reject | None:
    """Why the cell can never begin; None when its user may hold as many."""
    quota, gpus = _quota(turn, kernel), waiting.cell.gpus
    if not quota or gpus <= quota:
        return None
    return Reject(
        f"the cell asks for {gpus_text(gpus)}, but {kernel.user} may hold only {quota} at once",
        f"ask for at most {quota}, with %%gpu {quota} as its first line",
    )


def hold_back(turn: Turn, kernel: Kernel, waiting: WaitingCell) -> Wait | None:
    """Why a cell that could begin must not; None when its user has enough left."""
    quota, gpus = _quota(turn, kernel), waiting.cell.gpus
    if not quota:
        return None
    held = _held(turn, kernel)
    if held + gpus <= quota:
        return None
    turn.state.over_quota.setdefault(kernel.user, set()).add(kernel.id)
    return Wait(
        f"waits for cells of {kernel.user} to end, who holds {held} of at most {gpus_text(quota)}",
        for_quota=True,
    )


def _quota(turn: Turn, kernel: Kernel) -> int:
    options = turn.state.options
    return options.quotas.get(kernel.user, options.quota)


def look_again(turn: Turn, kernel: Kernel) -> None:
    """A cell of the kernel's user has ended; another may be allowed now."""
    over = turn.state.over_quota
    if over:
        turn.state.dirty.update(over.pop(kernel.user, ()))


def _held(turn: Turn, kernel: Kernel) -> int:
    """What the cells of the kernel's user hold, what is set apart for those whose replica is on its
    way, and what those will hold whose executor is being elected.

    What is set apart for the kernel's own cell is what the question is about.
    """
    state = turn.state
    held = 0
    for kernel_id in state.active:
        other = state.kernels[kernel_id]
        if other.user != kernel.user:
            continue
        if other.attempt is not None:
            held += len(other.attempt.devices)
        elif other is kernel:
            continue
        elif other.election is not None and other.waiting:
            held += other.waiting[0].cell.gpus
        elif not turn.policy.keeps_gpus:
            held += len(state.pool.held_by(other.id, RESERVED))
    return held
