"""Ballots of this host's replicas: who could run a cell, said in the kernel's log beforehand.

A ballot binds nothing. Whoever is elected still has to bind its devices and to commit LEAD, so that
a device that was taken meanwhile costs one more election and never a second executor.
"""

from __future__ import annotations

import logging

from notebookos_ext.agent.attempts import LEAD_TIMEOUT_S, close_leftover, older_is_open
from notebookos_ext.agent.kernels import HostedKernel
from notebookos_ext.cluster.entries import BallotEntry
from notebookos_ext.cluster.messages.control import CastBallot
from notebookos_ext.cluster.model import DeviceId
from notebookos_ext.errors import NotFound, Refused

log = logging.getLogger(__name__)


async def cast(kernel: HostedKernel, request: CastBallot) -> None:
    """Commit the ballot. Raises Refused when it came too late to count, else what `propose` does.

    Under the same rules as a LEAD: an older attempt that is still open belongs to nobody.
    """
    devices, reason = await _offer(kernel, request)
    entry = BallotEntry(
        epoch=kernel.history.ledger.epoch,
        cell=request.cell,
        attempt=request.attempt,
        replica=request.replica,
        lead=devices is not None,
        devices=devices or (),
        reason=reason,
    )
    await close_leftover(kernel, request.attempt)
    verdict = await kernel.propose(entry, kernel.proposal_id(), LEAD_TIMEOUT_S)
    if not verdict.counts and older_is_open(kernel, request.attempt):
        # It was committed elsewhere, and this host learned of it only now.
        await close_leftover(kernel, request.attempt)
        verdict = await kernel.propose(entry, kernel.proposal_id(), LEAD_TIMEOUT_S)
    if not verdict.counts:
        raise Refused("another attempt of this kernel has begun or come later")
    log.debug("ballot of %s to attempt %d: %s", request.replica, request.attempt, reason or "lead")


async def _offer(
    kernel: HostedKernel, request: CastBallot
) -> tuple[tuple[DeviceId, ...] | None, str]:
    """Devices with which the replica would lead; else None, and why it yields."""
    try:
        session = kernel.living(request.replica)
    except NotFound as error:
        return None, error.message
    if not session.is_ready:
        return None, f"replica {request.replica} is still loading its variables"
    if session.launch.epoch != kernel.history.ledger.epoch:
        return None, f"replica {request.replica} is of an earlier epoch"
    if request.gpus == 0:
        return (), ""
    free = await kernel.tools.bindings.free_for(request.replica)
    if len(free) < request.gpus:
        return None, f"{kernel.tools.host} has {len(free)} of {request.gpus} GPUs free"
    return free[: request.gpus], ""
