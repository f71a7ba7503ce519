"""One event being handled: the state it changes, the time it has, the actions it has led to so far.

Also the few moves that the life of kernels and the life of cells have in common.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from notebookos_ext.cluster.actions import Action, StartReplica, StopReplica
from notebookos_ext.cluster.model import KernelId
from notebookos_ext.cluster.policies.base import Policy
from notebookos_ext.cluster.queueing import WaitingCell
from notebookos_ext.cluster.replicas import EXECUTING, Kernel, Replica, Step
from notebookos_ext.cluster.state import ClusterState, ClusterView


@dataclass(slots=True)
class Turn:
    """What a handler works with."""

    state: ClusterState
    view: ClusterView
    policy: Policy
    at: float
    actions: list[Action] = field(default_factory=list)
    look_at_all: bool = False
    """Every waiting cell must be looked at, not only those that the event is about."""
    whole_line: bool = False
    """Every cell in line is told its position if it has changed, not only the first of them."""
    reasons: dict[WaitingCell, str] = field(default_factory=dict)
    """What waiting cells wait for as of now, to be told at the end."""
    restart: list[KernelId] = field(default_factory=list)
    """Kernels whose restart had to wait for the event."""
    unreserve: set[KernelId] = field(default_factory=set)
    """Kernels whose reserved GPUs are free for all unless a cell of theirs starts in this turn."""

    def say(self, action: Action) -> None:
        """Add an action."""
        self.actions.append(action)

    def step(self, replica: Replica, step: Step) -> None:
        """Move a replica on, and count who executes on its host."""
        before = replica.state is EXECUTING
        replica.step(step, self.at)
        self.state.hosts[replica.host].executing += (replica.state is EXECUTING) - before

    def launch(self, kernel: Kernel, replica: Replica) -> None:
        """Start the replica's process on its host, which is ready; pre-warmed if there is one."""
        self.step(replica, Step.LAUNCHED)
        self.state.lost.pop(replica.id, None)
        self.state.launches.note(self.at)
        host = self.state.hosts[replica.host]
        prewarmed = host.prewarmed > 0
        if prewarmed:
            host.prewarmed -= 1
            self.state.prewarmed_changed.add(host.id)
        self.say(
            StartReplica(
                kernel=kernel.id,
                replica=replica.id,
                host=replica.host,
                members=kernel.members,
                epoch=kernel.epoch,
                learner=kernel.migration is not None and kernel.migration.newcomer is replica,
                prewarmed=prewarmed,
            )
        )

    def stop(self, kernel: Kernel, replica: Replica) -> None:
        """End the replica's process if there is one."""
        if replica.can(Step.STOPPED):
            self.step(replica, Step.STOPPED)
            self.say(StopReplica(kernel=kernel.id, replica=replica.id, host=replica.host))
