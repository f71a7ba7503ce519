"""Elections as the scheduler sees them: called instead of naming an executor, and counted."""

from __future__ import annotations

from notebookos_ext.cluster.actions import CallElection
from notebookos_ext.cluster.election import Election
from notebookos_ext.cluster.model import DeviceId, ReplicaId
from notebookos_ext.cluster.policies.base import Run
from notebookos_ext.cluster.queueing import WaitingCell
from notebookos_ext.cluster.replicas import IDLE, Kernel
from notebookos_ext.cluster.turn import Turn


def call(turn: Turn, kernel: Kernel, waiting: WaitingCell) -> None:
    """Let those vote who could run the cell; the scheduler knows that one of them can."""
    replaced = kernel.migration.replaces if kernel.migration is not None else None
    number = waiting.cell.replica_number
    only = kernel.held_by or kernel.pending_on
    voters = tuple(
        replica.id
        for replica in kernel.replicas
        if replica.state is IDLE
        and replica.id != replaced
        and replica.id not in waiting.refused
        and number in (None, replica.number)
        and only in (None, replica.id)
    )
    kernel.election = Election(kernel.last_attempt + 1, voters, kernel.last_executor)
    turn.say(
        CallElection(
            kernel=kernel.id,
            cell=waiting.cell.cell,
            attempt=kernel.election.attempt,
            voters=voters,
            gpus=waiting.cell.gpus,
        )
    )


def close(kernel: Kernel) -> None:
    """Nobody was elected; the attempt's number is used up, so that late ballots count nowhere."""
    if kernel.election is not None:
        kernel.last_attempt = kernel.election.attempt
        kernel.election = None


def usable(turn: Turn, kernel: Kernel, replica: ReplicaId, devices: tuple[DeviceId, ...]) -> bool:
    """Whether what the replica would bind is free here too."""
    found = kernel.replica(replica)
    if found is None or found.state is not IDLE:
        return False
    pool = turn.state.pool
    free = {*pool.free(found.host), *pool.reserved_for(kernel.id, found.host)}
    return set(devices) <= free


def result(
    turn: Turn, kernel: Kernel, waiting: WaitingCell, offers: dict[ReplicaId, tuple[DeviceId, ...]]
) -> Run | None:
    """The winner's attempt, if there is one; when all have yielded the cell is looked at again."""
    election = kernel.election
    if election is None:
        return None
    executor = election.executor
    if executor is not None:
        kernel.election = None
        return Run(executor, offers.get(executor, ()))
    if election.failed:
        close(kernel)
        turn.state.dirty.add(kernel.id)
        for voter in election.voters:
            waiting.refused.setdefault(voter, "it yielded")
    return None
