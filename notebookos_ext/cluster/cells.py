"""The life of a cell: it arrives, waits or gets an executor and GPUs, runs, gives them back.

Each handler changes the state for one event; `advance`, called after every one of them, lets cells
start that now can, oldest first, and tells the others what they wait for.
"""

from __future__ import annotations

from notebookos_ext.cluster import ballots, quotas, settling, starting
from notebookos_ext.cluster.actions import (
    CellAborted,
    CloseAttempt,
    ReleaseGpus,
)
from notebookos_ext.cluster.election import Ballot
from notebookos_ext.cluster.events import (
    AttemptClosed,
    AttemptRefused,
    AttemptStarted,
    BallotCast,
    CellCancelled,
    CellSubmitted,
    DurabilityChanged,
    GpusReleased,
    HoldChanged,
)
from notebookos_ext.cluster.model import CellId, HostId, KernelId, Outcome
from notebookos_ext.cluster.policies.base import Reject
from notebookos_ext.cluster.queueing import WaitingCell
from notebookos_ext.cluster.replicas import (
    EXECUTING,
    IDLE,
    Attempt,
    Kernel,
    Phase,
    Replica,
    Step,
)
from notebookos_ext.cluster.turn import Turn

BUSY_ASIDE_S = 5.0
"""How long a device is left alone on which somebody else's process was seen."""

REST_MOST_S = 7 * 86_400.0
"""Longer rests say nothing about the next one."""

# ---- handlers


def cell_submitted(turn: Turn, event: CellSubmitted) -> None:
    """A new cell is last in its kernel's order and in the cluster's."""
    kernel = turn.state.kernels.get(event.cell.kernel)
    if kernel is None or _known(turn, kernel, event.cell.cell):
        return
    options = turn.state.options
    waiting = turn.state.queue.new(
        event.cell,
        event.at,
        user=kernel.user,
        priority=kernel.spec.priority or options.priorities.get(kernel.user, 0),
        weight=options.weights.get(kernel.user, 1.0),
    )
    turn.state.queue.add(waiting)
    kernel.waiting.append(waiting)
    turn.state.dirty.add(kernel.id)
    turn.state.note_idle(kernel, event.at)
    if event.cell.gpus > 0:
        rested_s = event.at - kernel.gpus_active_at
        if kernel.attempt is None and len(kernel.waiting) == 1 and rested_s < REST_MOST_S:
            turn.state.scaling.rests.add(rested_s)
        turn.state.note_active(kernel, event.cell.gpus, event.at)


def cell_cancelled(turn: Turn, event: CellCancelled) -> None:
    """Take back a cell whose code has not begun; one that runs is interrupted in its replica."""
    kernel = turn.state.kernels.get(event.kernel)
    if kernel is None:
        return
    waiting = turn.state.queue.find(event.kernel, event.cell)
    if waiting is not None:
        abort(turn, kernel, waiting, "it was interrupted while it waited")
        starting.rest(turn, kernel)
        return
    attempt = kernel.attempt
    if attempt is None or attempt.cell.cell != event.cell or attempt.cancelled:
        return
    if attempt.phase is Phase.STARTING or attempt.retry:
        attempt.cancelled = True
        attempt.retry = False
        turn.say(
            CellAborted(
                kernel=kernel.id, cell=event.cell, reason="it was interrupted before it began"
            )
        )


def ballot_cast(turn: Turn, event: BallotCast) -> None:
    """Count it; whoever is elected begins with the devices that it offered."""
    kernel = turn.state.kernels.get(event.kernel)
    election = kernel.election if kernel is not None else None
    waiting = turn.state.queue.find(event.kernel, event.cell)
    if kernel is None or election is None or waiting is None or election.attempt != event.attempt:
        return
    if event.replica not in election.voters or election.voted(event.replica):
        return
    enough = len(event.devices) == waiting.cell.gpus
    leads = event.lead and enough and ballots.usable(turn, kernel, event.replica, event.devices)
    election.cast(event.replica, Ballot.LEAD if leads else Ballot.YIELD)
    if leads:
        waiting.offers[event.replica] = event.devices
    else:
        waiting.refused[event.replica] = event.reason or "it yielded"
    _count(turn, kernel, waiting)


def _count(turn: Turn, kernel: Kernel, waiting: WaitingCell) -> None:
    run = ballots.result(turn, kernel, waiting, waiting.offers)
    if run is None:
        return
    offers, waiting.offers = waiting.offers, {}
    if ballots.usable(turn, kernel, run.replica, offers.get(run.replica, ())):
        starting.start(turn, kernel, waiting, run)
    else:
        # Somebody else was faster: another election, or a wait.
        kernel.last_attempt += 1
        turn.state.dirty.add(kernel.id)


def attempt_started(turn: Turn, event: AttemptStarted) -> None:
    """LEAD is committed: from now on only DONE, FAILED or LOST can close the attempt."""
    found = _attempt(turn, event.kernel, event.cell, event.attempt)
    if found is None or found[1].phase is not Phase.STARTING:
        return
    kernel, attempt = found
    attempt.phase = Phase.RUNNING
    kernel.last_executor = attempt.replica
    if kernel.preferred == attempt.replica:
        kernel.preferred = None
    replica = kernel.replica(attempt.replica)
    if attempt.cancelled:
        _close(turn, kernel, attempt, "it was interrupted before it began", begun=False)
    elif replica is None or replica.state is not EXECUTING:
        reason = replica.lost_reason if replica is not None else "its replica is gone"
        _close(turn, kernel, attempt, reason, begun=False)
    elif attempt.devices:
        replica.devices = attempt.devices


def attempt_refused(turn: Turn, event: AttemptRefused) -> None:
    """Undo the reservation and try the same cell elsewhere, or again after a while."""
    found = _attempt(turn, event.kernel, event.cell, event.attempt)
    if found is None or found[1].phase is not Phase.STARTING:
        return
    kernel, attempt = found
    kernel.attempt = None
    if turn.policy.keeps_gpus:
        turn.state.pool.keep_reserved(kernel.id, attempt.number, event.at)
    else:
        turn.state.pool.release(kernel.id, attempt.number)
    turn.state.pool.set_aside(event.busy, event.at + BUSY_ASIDE_S)
    replica = kernel.replica(attempt.replica)
    if replica is not None and replica.state is EXECUTING:
        turn.step(replica, Step.RETURNED)
    turn.state.dirty.add(kernel.id)
    if attempt.cancelled:
        starting.rest(turn, kernel)
        return
    waiting = attempt.waiting
    _wait_again(turn, kernel, waiting)
    if replica is None or replica.state is not IDLE:
        return
    if event.recycle and replica.id not in waiting.recycled:
        _recycle(turn, kernel, replica, waiting)
        return
    waiting.refusals[replica.id] = waiting.refusals.get(replica.id, 0) + 1
    if not event.busy or waiting.refusals[replica.id] > 1:
        waiting.refused[replica.id] = event.reason
        waiting.recycling = None


def attempt_closed(turn: Turn, event: AttemptClosed) -> None:
    """The cell is over; its kernel can run the next one while the GPUs are given back."""
    found = _attempt(turn, event.kernel, event.cell, event.attempt)
    if found is not None:
        _finish(turn, found[0], found[1], event.outcome)


def gpus_released(turn: Turn, event: GpusReleased) -> None:
    """Others may bind the devices."""
    pool = turn.state.pool
    devices = pool.held_by(event.kernel, event.attempt)
    if devices and pool.bindings[devices[0]].releasing:
        pool.release(event.kernel, event.attempt)
        if event.kernel in turn.state.kernels:
            turn.state.dirty.add(event.kernel)
        elif not pool.holds_any(event.kernel):
            turn.state.still_released.pop(event.kernel, None)


def hold_changed(turn: Turn, event: HoldChanged) -> None:
    """Names that cannot travel hold the kernel to the replica that has them."""
    kernel = turn.state.kernels.get(event.kernel)
    replica = kernel.replica(event.replica) if kernel is not None else None
    if kernel is None or replica is None or replica.state not in (IDLE, EXECUTING):
        return
    if replica not in kernel.replicas:
        return
    if event.names:
        kernel.held_by, kernel.held = event.replica, event.names
    elif kernel.held_by == event.replica:
        kernel.held_by, kernel.held = None, ()
        starting.rest(turn, kernel)
    turn.state.dirty.add(kernel.id)


def durability_changed(turn: Turn, event: DurabilityChanged) -> None:
    """Names whose newest value is still only on one replica let no other run the next cell."""
    kernel = turn.state.kernels.get(event.kernel)
    replica = kernel.replica(event.replica) if kernel is not None else None
    if kernel is None or replica is None or replica.state not in (IDLE, EXECUTING):
        return
    if replica not in kernel.replicas:
        return
    if event.names:
        kernel.pending_on, kernel.pending = event.replica, event.names
    elif kernel.pending_on == event.replica:
        kernel.pending_on, kernel.pending = None, ()
        starting.rest(turn, kernel)
    turn.state.dirty.add(kernel.id)


# ---- what other handlers ask for


def abort(turn: Turn, kernel: Kernel, waiting: WaitingCell, reason: str) -> None:
    """Take a waiting cell back."""
    starting.leave_queue(turn, kernel, waiting)
    turn.say(CellAborted(kernel=kernel.id, cell=waiting.cell.cell, reason=reason))


def executor_gone(
    turn: Turn, kernel: Kernel, replica: Replica, reason: str, *, host_lives: bool
) -> None:
    """If the replica was the executor, close its attempt through the members that are left.

    While the attempt is starting on a host that lives, its agent refuses it or reports that LEAD
    was committed after all; that answer is awaited.
    """
    if kernel.election is not None and kernel.waiting:
        kernel.election.lost(replica.id)
        _count(turn, kernel, kernel.waiting[0])
    attempt = kernel.attempt
    if attempt is None or attempt.replica != replica.id:
        return
    if not host_lives:
        attempt.devices = ()
    if attempt.phase is Phase.RUNNING:
        _close(turn, kernel, attempt, reason, begun=True)
    elif attempt.phase is Phase.STARTING and not host_lives:
        _close(turn, kernel, attempt, reason, begun=False)


def finish_without_members(turn: Turn, kernel: Kernel) -> None:
    """No host of the kernel is left to commit LOST: the attempt ends by decision."""
    attempt = kernel.attempt
    if attempt is not None and attempt.phase is Phase.CLOSING and not _ready_members(turn, kernel):
        _finish(turn, kernel, attempt, Outcome.LOST)


def abandon_attempt(turn: Turn, kernel: Kernel) -> None:
    """The kernel's epoch or life is over, and with it the attempt; its GPUs are given back."""
    attempt = kernel.attempt
    if attempt is not None:
        kernel.attempt = None
        _give_back(turn, kernel, attempt)


# ---- moves


def _known(turn: Turn, kernel: Kernel, cell: CellId) -> bool:
    if turn.state.queue.find(kernel.id, cell) is not None:
        return True
    return kernel.attempt is not None and kernel.attempt.cell.cell == cell


def _attempt(
    turn: Turn, kernel_id: KernelId, cell: CellId, number: int
) -> tuple[Kernel, Attempt] | None:
    """The open attempt that an event is about; None if it is late and counts for nothing."""
    kernel = turn.state.kernels.get(kernel_id)
    attempt = kernel.attempt if kernel is not None else None
    if kernel is None or attempt is None or attempt.number != number:
        return None
    return (kernel, attempt) if attempt.cell.cell == cell else None


def _ready_members(turn: Turn, kernel: Kernel) -> tuple[HostId, ...]:
    return tuple(host for host in kernel.members if turn.state.hosts[host].ready)


def _close(turn: Turn, kernel: Kernel, attempt: Attempt, reason: str, *, begun: bool) -> None:
    attempt.phase = Phase.CLOSING
    attempt.retry = not begun and not attempt.cancelled
    turn.say(
        CloseAttempt(
            kernel=kernel.id,
            cell=attempt.cell.cell,
            attempt=attempt.number,
            members=_ready_members(turn, kernel),
            reason=reason,
            ends_cell=begun,
        )
    )
    turn.state.dirty.add(kernel.id)


def _finish(turn: Turn, kernel: Kernel, attempt: Attempt, outcome: Outcome) -> None:
    kernel.attempt = None
    turn.state.note_idle(kernel, turn.at)
    if attempt.cell.gpus:
        turn.state.note_active(kernel, attempt.cell.gpus, turn.at)
        turn.state.scaling.runs.add(turn.at - attempt.since)
        quotas.look_again(turn, kernel)
    replica = kernel.replica(attempt.replica)
    if replica is not None and replica.state is EXECUTING:
        turn.step(replica, Step.RETURNED)
    _give_back(turn, kernel, attempt)
    if kernel.id in turn.state.short:
        settling.reserve(turn, kernel)
    if attempt.retry and outcome is Outcome.LOST:
        _wait_again(turn, kernel, attempt.waiting)
    elif not turn.policy.keeps_replicas:
        settling.store(turn, kernel)
    turn.state.dirty.add(kernel.id)


def _give_back(turn: Turn, kernel: Kernel, attempt: Attempt) -> None:
    if not attempt.devices:
        return
    if turn.policy.keeps_gpus:
        turn.state.pool.keep_reserved(kernel.id, attempt.number, turn.at)
        return
    turn.state.pool.begin_release(kernel.id, attempt.number, turn.at)
    turn.say(
        ReleaseGpus(
            kernel=kernel.id,
            cell=attempt.cell.cell,
            attempt=attempt.number,
            replica=attempt.replica,
            host=attempt.host,
            devices=attempt.devices,
        )
    )


def _recycle(turn: Turn, kernel: Kernel, replica: Replica, waiting: WaitingCell) -> None:
    """Restart the replica from the log, so that its process can see other devices."""
    if kernel.held_by == replica.id:
        names = ", ".join(f"`{held.name}`" for held in kernel.held)
        starting.reject(
            turn,
            kernel,
            waiting,
            Reject(
                f"replica {replica.number} would have to be restarted to use other GPUs, "
                f"which would lose {names}",
                f"delete {names}, or run the cell with as many GPUs as the ones before",
            ),
        )
        return
    if kernel.pending_on == replica.id:
        waiting.refused[replica.id] = "its newest values are not durable yet"
        return
    waiting.recycled.add(replica.id)
    waiting.recycling = replica.id
    turn.stop(kernel, replica)
    turn.launch(kernel, replica)


def _wait_again(turn: Turn, kernel: Kernel, waiting: WaitingCell) -> None:
    turn.state.queue.add(waiting)
    kernel.waiting.append(waiting)
    kernel.waiting.sort(key=lambda cell: cell.order)
