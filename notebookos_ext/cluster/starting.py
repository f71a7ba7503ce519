"""Letting waiting cells start, in their order, and telling the others what they wait for."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from notebookos_ext.cluster import ballots, migration, quotas, settling
from notebookos_ext.cluster.actions import CellRejected, CellWaiting, StartAttempt
from notebookos_ext.cluster.estimates import estimate_ms
from notebookos_ext.cluster.gpus import RESERVED, Binding
from notebookos_ext.cluster.model import DeviceId, HostId
from notebookos_ext.cluster.policies.base import Choice, Leave, Move, Reject, Run, Wait, Wake
from notebookos_ext.cluster.queueing import Rank, WaitingCell
from notebookos_ext.cluster.replicas import Attempt, Kernel, MigrationReason, Step
from notebookos_ext.cluster.turn import Turn
from notebookos_ext.errors import Defect

FIRST = 64
"""So many cells in line are told at once when their position changes; the rest at each tick."""


def leave_queue(turn: Turn, kernel: Kernel, waiting: WaitingCell) -> None:
    """It waits no more, and neither does anything that was begun for it."""
    if kernel.waiting[0] is waiting:
        ballots.close(kernel)
    waiting.offers.clear()
    kernel.waiting.remove(waiting)
    turn.state.queue.remove(waiting)
    migration.cancel(turn, kernel, waiting.cell.cell, "the cell that it was for needs it no more")
    turn.state.dirty.add(kernel.id)


def rest(turn: Turn, kernel: Kernel) -> None:
    """Nothing is left to do for a replica that was started for one cell alone."""
    if not turn.policy.keeps_replicas and not kernel.waiting and kernel.attempt is None:
        turn.state.pool.release(kernel.id, RESERVED)
        settling.store(turn, kernel)


def reject(turn: Turn, kernel: Kernel, waiting: WaitingCell, choice: Reject) -> None:
    """It can never run."""
    leave_queue(turn, kernel, waiting)
    rest(turn, kernel)
    turn.say(
        CellRejected(
            kernel=kernel.id, cell=waiting.cell.cell, reason=choice.reason, hint=choice.hint
        )
    )


def start(turn: Turn, kernel: Kernel, waiting: WaitingCell, run: Run) -> None:
    """Bind the devices and begin an attempt. Raises Defect for a replica that is not there."""
    state = turn.state
    replica = kernel.replica(run.replica)
    if replica is None:
        raise Defect(
            f"policy {turn.policy.name} chose {run.replica}, which kernel {kernel.id} lacks"
        )
    leave_queue(turn, kernel, waiting)
    state.queue.served(waiting)
    kernel.last_attempt += 1
    cell = waiting.cell
    state.pool.bind(
        run.devices,
        Binding(kernel.id, cell.cell, kernel.last_attempt, replica.id, replica.host, turn.at),
    )
    if not turn.policy.keeps_gpus:
        state.pool.release(kernel.id, RESERVED)
    turn.step(replica, Step.CHOSEN)
    kernel.attempt = Attempt(
        kernel.last_attempt, waiting, replica.id, replica.host, run.devices, turn.at
    )
    turn.say(
        StartAttempt(
            kernel=kernel.id,
            cell=cell.cell,
            attempt=kernel.last_attempt,
            replica=replica.id,
            host=replica.host,
            devices=run.devices,
        )
    )
    state.queue.overtake(waiting, _hosts_of(turn, run.devices))


def advance(turn: Turn) -> None:
    """Start what can start, oldest first; tell the others their position and reason if new."""
    while True:
        batch = _to_look_at(turn)
        if not batch:
            if not turn.unreserve:
                break
            for kernel_id in turn.unreserve:
                turn.state.pool.release(kernel_id, RESERVED)
            turn.unreserve = set()
        for waiting in batch:
            if turn.state.queue.find(*waiting.key) is waiting:
                _look_at(turn, waiting)
    _tell(turn)


def _to_look_at(turn: Turn) -> list[WaitingCell]:
    state = turn.state
    touched = state.pool.drain_touched()
    if state.kept or state.queue.has_overtaken:
        touched |= _keep(turn)
    if turn.look_at_all:
        turn.look_at_all = False
        state.dirty.clear()
        return list(state.queue)
    found: set[WaitingCell] = set()
    if touched and state.queue.in_need:
        found = state.queue.in_line(touched)
        most = max(state.pool.free_count(host) for host in touched)
        found.update(state.queue.anywhere(most))
    if not state.dirty:
        return sorted(found, key=_rank)
    dirty, state.dirty = state.dirty, set()
    for kernel_id in dirty:
        kernel = state.kernels.get(kernel_id)
        if kernel is not None:
            if kernel.migration is not None:
                migration.go_on(turn, kernel)
            found.update(kernel.waiting)
    return sorted(found, key=_rank) if len(found) > 1 else list(found)


def _rank(waiting: WaitingCell) -> Rank:
    return waiting.rank


def _look_at(turn: Turn, waiting: WaitingCell) -> None:
    kernel = turn.state.kernels[waiting.cell.kernel]
    kept: Collection[DeviceId] = ()
    if turn.state.kept:
        kept = {
            device
            for order, devices in turn.state.kept.items()
            if order < waiting.order
            for device in devices
        }
    choice: Choice | None = None
    if waiting.cell.gpus:
        choice = quotas.never(turn, kernel, waiting)
    if choice is None:
        choice = turn.policy.choose(turn.view, kernel, waiting, kept=kept, at=turn.at)
        if waiting.cell.gpus and isinstance(choice, Run | Move | Wake):
            choice = quotas.hold_back(turn, kernel, waiting) or choice
    choice = _out_of_patience(turn, kernel, waiting, choice) or choice
    if isinstance(choice, Run) and turn.state.options.hints:
        start(turn, kernel, waiting, choice)
    elif isinstance(choice, Run):
        turn.state.queue.stand(waiting, ())
        turn.reasons[waiting] = "its replicas are electing an executor"
        ballots.call(turn, kernel, waiting)
    elif isinstance(choice, Reject):
        reject(turn, kernel, waiting, choice)
    elif isinstance(choice, Wake):
        turn.state.queue.stand(waiting, ())
        turn.reasons[waiting] = choice.reason
        if choice.hosts:
            settling.move_in(turn, kernel, choice.hosts, choice.devices)
        else:
            settling.wake(turn, kernel)
    elif isinstance(choice, Leave):
        turn.state.queue.stand(waiting, ())
        turn.reasons[waiting] = choice.reason
        turn.state.pool.release(kernel.id, RESERVED)
        settling.store(turn, kernel)
    elif isinstance(choice, Move):
        turn.state.queue.stand(waiting, choice.line_at)
        turn.reasons[waiting] = _move(turn, kernel, waiting, choice)
    else:
        turn.state.queue.stand(waiting, choice.line_at, anywhere=choice.anywhere)
        turn.reasons[waiting] = choice.reason


def _out_of_patience(
    turn: Turn, kernel: Kernel, waiting: WaitingCell, choice: Choice
) -> Reject | None:
    """Why a cell is given up that its notebook lets stand in line only so long; else None.

    What its own kernel makes it wait for does not count, nor does the way of a replica that moves
    for it to where the GPUs are.
    """
    if not isinstance(choice, Wait) or not waiting.cell.gpus:
        return None
    moving = kernel.migration is not None and kernel.migration.cell == waiting.cell.cell
    if moving or not (choice.line_at or choice.for_quota):
        return None
    if waiting.in_line_since is None:
        waiting.in_line_since = turn.at
    limit_s = kernel.spec.gpu_wait_s
    if not limit_s or turn.at - waiting.in_line_since < limit_s:
        return None
    return Reject(
        f"the cell stood in line for {limit_s:g} s, the longest that its notebook allows: "
        f"{choice.reason}",
        "run it again, ask for fewer GPUs, or let it wait longer in the notebook's settings",
    )


def _move(turn: Turn, kernel: Kernel, waiting: WaitingCell, move: Move) -> str:
    """Bring a replica of the kernel to where the cell can run; returns what it waits for."""
    if kernel.id in turn.unreserve:
        # One has just moved for it, and still it could not begin.
        turn.unreserve.discard(kernel.id)
        turn.state.pool.release(kernel.id, RESERVED)
    victim = migration.choose_victim(turn, kernel)
    if victim is None:
        raise Defect(f"policy {turn.policy.name} moves {kernel.id}, of which nothing can move")
    migration.begin(
        turn,
        kernel,
        MigrationReason.CELL,
        victim=victim,
        target=move.target,
        cell=waiting.cell.cell,
        devices=move.devices,
    )
    return move.reason


def _keep(turn: Turn) -> set[HostId]:
    """Choose anew what is kept for protected cells; returns the hosts where that makes news."""
    state = turn.state
    protected = state.queue.protected
    before, state.kept = state.kept, {}
    kept: set[DeviceId] = set()
    for waiting in protected:
        kernel = state.kernels[waiting.cell.kernel]
        devices = turn.policy.keep(turn.view, kernel, waiting, kept)
        state.kept[waiting.order] = devices
        kept.update(devices)
    changed = set(before.items()) ^ set(state.kept.items())
    return _hosts_of(turn, (device for _, devices in changed for device in devices))


def _hosts_of(turn: Turn, devices: Iterable[DeviceId]) -> set[HostId]:
    return {host for device in devices for host in turn.state.pool.hosts_of(device)}


def _tell(turn: Turn) -> None:
    queue = turn.state.queue
    if not queue.moved and not turn.reasons:
        return
    news: dict[WaitingCell, int] = {}
    if queue.moved:
        queue.moved = False
        line = queue.first(None if turn.whole_line else FIRST)
        news = {
            waiting: place
            for place, waiting in enumerate(line, start=1)
            if waiting.position != place or waiting in turn.reasons
        }
    for waiting in turn.reasons:
        if queue.find(*waiting.key) is waiting and not waiting.for_gpus:
            own = turn.state.kernels[waiting.cell.kernel].waiting
            news[waiting] = own.index(waiting) + 1
        elif waiting.for_gpus:
            news.setdefault(waiting, waiting.position or queue.place(waiting))
    for waiting, position in sorted(news.items(), key=lambda item: item[0].rank):
        reason = turn.reasons.get(waiting, waiting.reason)
        if (position, reason) != (waiting.position, waiting.reason):
            waiting.position, waiting.reason = position, reason
            turn.say(
                CellWaiting(
                    kernel=waiting.cell.kernel,
                    cell=waiting.cell.cell,
                    position=position,
                    reason=reason,
                    estimate_ms=estimate_ms(turn.state, waiting, turn.at),
                )
            )
