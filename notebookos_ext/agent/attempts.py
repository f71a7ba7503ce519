"""The beginning and the end of an attempt on the executor's host.

Beginning one is on the path of every cell: the devices are locked, LEAD is proposed while the
replica is asked whether it can lead, and the cell may come as soon as the replica has everything
that was committed before LEAD. Whatever goes wrong, nothing stays bound, and a LEAD that was (or
may still be) committed is closed as lost.
"""

from __future__ import annotations

import asyncio
import logging

from notebookos_ext.agent.binding import DeviceBindings, Holder
from notebookos_ext.agent.kernels import HostedKernel
from notebookos_ext.agent.procfs import descendants
from notebookos_ext.agent.sessions import ReplicaSession
from notebookos_ext.cluster.entries import ClosedEntry, LeadEntry
from notebookos_ext.cluster.messages.control import (
    AttemptBegun,
    AttemptEnded,
    AttemptNotBegun,
    BeginAttempt,
    DevicesReleased,
    LoseAttempt,
    ReleaseDevices,
)
from notebookos_ext.cluster.messages.replica import Lead, LeadAnswer, Park, Parked, Prepare
from notebookos_ext.cluster.model import CellId, DeviceId, DeviceKind, Outcome, ReplicaId
from notebookos_ext.errors import NoMajority, NotebookOSError, NotFound, ProtocolError, Unavailable

log = logging.getLogger(__name__)

LEAD_TIMEOUT_S = 10.0
PREPARE_TIMEOUT_S = 120.0
"""Bringing tens of gigabytes back to a device takes long; without devices it is instant."""
APPLY_PATIENCE_S = 30.0
PARK_TIMEOUT_S = 120.0


async def begin(kernel: HostedKernel, request: BeginAttempt) -> AttemptBegun | AttemptNotBegun:
    """Make the replica the executor, or say why it is not and leave nothing behind."""
    bindings = kernel.tools.bindings
    try:
        session = kernel.living(request.replica)
    except NotFound as error:
        return AttemptNotBegun(reason=error.message)
    holder = Holder(
        kernel=request.kernel,
        cell=request.cell,
        attempt=request.attempt,
        replica=request.replica,
        pid=session.process.pid,
    )
    begun = False
    try:
        refusal = await bindings.bind(request.devices, holder) if request.devices else None
        if refusal is not None:
            return AttemptNotBegun(reason=refusal.reason, busy=refusal.busy)
        answer = await _elect(kernel, session, request)
        begun = isinstance(answer, AttemptBegun)
    except NotebookOSError as error:
        log.warning("attempt %d of %s not begun: %s", request.attempt, request.kernel, error)
        return AttemptNotBegun(reason=error.message)
    else:
        return answer
    finally:
        if not begun:
            bindings.release(request.devices, request.replica, request.attempt)


async def lose(kernel: HostedKernel, request: LoseAttempt) -> None:
    """Close the attempt as LOST, unless it was closed otherwise, and say which it was.

    Raises NoMajority, OutcomeUnknown, StorageError.
    """
    history = kernel.history
    if history.outcome(request.attempt) is None:
        await kernel.propose(
            _lost(kernel, request.cell, request.attempt, request.replica),
            kernel.proposal_id(),
            timeout_s=LEAD_TIMEOUT_S,
        )
    kernel.tools.notify(
        AttemptEnded(
            kernel=request.kernel,
            cell=request.cell,
            attempt=request.attempt,
            outcome=history.outcome(request.attempt) or Outcome.LOST,
        )
    )


async def release(
    bindings: DeviceBindings, session: ReplicaSession | None, request: ReleaseDevices
) -> DevicesReleased:
    """Park what lives on the devices, measure what stays there, give them back.

    Only the process that was bound to them is asked: one that was launched since has its own cell.
    """
    holders = {
        device: holder
        for device in request.devices
        if (holder := bindings.holder(device)) is not None
        and (holder.replica, holder.attempt) == (request.replica, request.attempt)
    }
    residual_bytes = 0
    try:
        if session is not None and session.is_alive:
            pid = session.process.pid
            held = tuple(device for device, holder in holders.items() if holder.pid == pid)
            residual_bytes = await _park(bindings, session, held) if held else 0
    finally:
        bindings.release(tuple(holders), request.replica, request.attempt)
    return DevicesReleased(residual_bytes=residual_bytes)


async def _park(
    bindings: DeviceBindings, session: ReplicaSession, devices: tuple[DeviceId, ...]
) -> int:
    """Bytes that stay on the devices, measured by the driver, else as the replica knows them."""
    known = 0
    try:
        answer = await asyncio.wait_for(session.process.link.request(Park()), PARK_TIMEOUT_S)
        known = answer.residual_bytes if isinstance(answer, Parked) else 0
    except TimeoutError:
        log.warning("replica %s did not park in time", session.launch.replica)
    except Unavailable:
        return 0
    if not any(bindings.is_real(device) for device in devices):
        return max(0, known)
    pid = session.process.pid
    pids = {pid} | await asyncio.to_thread(descendants, pid)
    measured = await bindings.residual_bytes(devices, pids)
    return max(0, known) if measured is None else measured


async def _elect(
    kernel: HostedKernel, session: ReplicaSession, request: BeginAttempt
) -> AttemptBegun | AttemptNotBegun:
    if not session.is_ready:
        return AttemptNotBegun(reason=f"replica {request.replica} is still loading its variables")
    if session.launch.epoch != kernel.history.ledger.epoch:
        return AttemptNotBegun(reason=f"replica {request.replica} is of an earlier epoch")
    await close_leftover(kernel, request.attempt)
    if request.devices:
        # A replica whose CUDA has other devices refuses; better to know before LEAD.
        if (refusal := await _prepare(kernel, session, request.devices)) is not None:
            return refusal
        return await _lead(kernel, session, request)
    asked = asyncio.create_task(_prepare(kernel, session, ()))
    try:
        return await _lead(kernel, session, request, asked)
    finally:
        asked.cancel()


async def _lead(
    kernel: HostedKernel,
    session: ReplicaSession,
    request: BeginAttempt,
    asked: asyncio.Task[AttemptNotBegun | None] | None = None,
) -> AttemptBegun | AttemptNotBegun:
    entry = LeadEntry(
        epoch=session.launch.epoch,
        cell=request.cell,
        attempt=request.attempt,
        replica=request.replica,
    )
    begun = proposed = False
    try:
        proposed = True
        try:
            verdict = await kernel.propose(entry, kernel.proposal_id(), LEAD_TIMEOUT_S)
            if not verdict.counts and older_is_open(kernel, request.attempt):
                # It was committed elsewhere, and this host learned of it only now.
                await close_leftover(kernel, request.attempt)
                verdict = await kernel.propose(entry, kernel.proposal_id(), LEAD_TIMEOUT_S)
        except NoMajority:
            proposed = False
            raise
        if not verdict.counts:
            proposed = False
            return AttemptNotBegun(reason="another attempt of this kernel has begun or come later")
        refusal = await asked if asked is not None else None
        if refusal is None:
            refusal = await _bring_up_to_date(kernel, session, request.devices)
        if refusal is not None:
            return refusal
        session.process.link.send(Lead(cell=request.cell, attempt=request.attempt))
        begun = True
        return AttemptBegun(index=verdict.index)
    finally:
        if proposed and not begun:
            kernel.spawn(_abandon(kernel, request))


async def _prepare(
    kernel: HostedKernel, session: ReplicaSession, devices: tuple[DeviceId, ...]
) -> AttemptNotBegun | None:
    """Ask the replica whether it can lead with these devices. Raises Unavailable when it ends."""
    specs = [kernel.tools.bindings.spec(device) for device in devices]
    simulated = any(spec is not None and spec.kind is DeviceKind.SIMULATED for spec in specs)
    question = Prepare(
        devices=devices,
        visible="" if simulated else ",".join(devices),
        simulated=simulated,
    )
    try:
        answer = await asyncio.wait_for(session.process.link.request(question), PREPARE_TIMEOUT_S)
    except TimeoutError:
        return AttemptNotBegun(
            reason=f"replica {session.launch.replica} did not answer within "
            f"{PREPARE_TIMEOUT_S:g} s; is another thread holding the interpreter?"
        )
    if not isinstance(answer, LeadAnswer):
        raise ProtocolError(f"the replica answered Prepare with {type(answer).__name__}")
    if answer.accepted:
        return None
    return AttemptNotBegun(reason=answer.reason, recycle=answer.recycle)


async def _bring_up_to_date(
    kernel: HostedKernel, session: ReplicaSession, devices: tuple[DeviceId, ...]
) -> AttemptNotBegun | None:
    """Wait until the replica has every delta before its LEAD; no other can come after it."""
    feed = session.feed
    if feed.is_current:
        return None
    if not feed.all_sent:
        await feed.caught_up(APPLY_PATIENCE_S)
    # It answers in order, so after it has applied (or failed to apply) all that was sent.
    refusal = await _prepare(kernel, session, devices)
    if refusal is None and not feed.is_current:
        return AttemptNotBegun(
            reason=f"replica {session.launch.replica} has not loaded the kernel's variables yet"
        )
    return refusal


async def close_leftover(kernel: HostedKernel, attempt: int) -> None:
    """An older attempt that is still open belongs to nobody: the scheduler has gone on."""
    if not older_is_open(kernel, attempt):
        return
    await kernel.barrier()
    lead = kernel.history.ledger.lead
    if lead is not None and older_is_open(kernel, attempt):
        lost = _lost(kernel, lead.cell, lead.attempt, lead.replica)
        await kernel.propose(lost, kernel.proposal_id(), LEAD_TIMEOUT_S)


def older_is_open(kernel: HostedKernel, attempt: int) -> bool:
    """Whether an attempt before this one has not been closed, as far as this host knows."""
    lead = kernel.history.ledger.lead
    return lead is not None and lead.attempt < attempt


async def _abandon(kernel: HostedKernel, request: BeginAttempt) -> None:
    """Close, or fence, a LEAD that nobody acts on."""
    history = kernel.history

    def wanted() -> bool:
        return (
            history.outcome(request.attempt) is None
            and history.ledger.last_attempt <= request.attempt
        )

    lost = _lost(kernel, request.cell, request.attempt, request.replica)
    try:
        await kernel.commit(lost, kernel.proposal_id(), wanted)
    except NotebookOSError as error:
        log.info("attempt %d of %s is left to the next: %s", request.attempt, kernel.kernel, error)


def _lost(kernel: HostedKernel, cell: CellId, attempt: int, replica: ReplicaId) -> ClosedEntry:
    return ClosedEntry(
        epoch=kernel.history.ledger.epoch,
        cell=cell,
        attempt=attempt,
        replica=replica,
        outcome=Outcome.LOST,
        delta=None,
    )
