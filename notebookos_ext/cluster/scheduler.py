"""`Scheduler.handle(event) -> list[Action]`: a dispatch table, and the only writer of the state.

No clock, socket or chance: time comes with the events. What an action asks for is already reserved
when it is returned; that it failed is one more event, which undoes the reservation. Events about
what is no more (an old incarnation, a closed attempt, an unknown kernel) change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from notebookos_ext.cluster import (
    autoscaler,
    cells,
    events,
    host_lives,
    kernels,
    majority,
    migration,
    prewarm,
    settling,
    starting,
    ticks,
)
from notebookos_ext.cluster.actions import Action
from notebookos_ext.cluster.options import Options, check
from notebookos_ext.cluster.policies import make_policy
from notebookos_ext.cluster.policies.base import Policy
from notebookos_ext.cluster.state import ClusterState, ClusterView
from notebookos_ext.cluster.turn import Turn

HANDLERS: dict[type, Callable[[Turn, Any], None]] = {
    events.HostJoined: host_lives.host_joined,
    events.HostLost: host_lives.host_lost,
    events.HostRemoved: host_lives.host_removed,
    events.HostDrainRequested: host_lives.host_drain_requested,
    events.HostDrainCancelled: host_lives.host_drain_cancelled,
    events.HostsUnavailable: autoscaler.unavailable,
    events.PrewarmedStarted: prewarm.started,
    events.PrewarmedLost: prewarm.lost,
    events.MigrationRequested: migration.requested,
    events.ExecutorPreferred: kernels.executor_preferred,
    events.MembersChanged: migration.members_changed,
    events.MemberLost: majority.member_lost,
    events.MemberBack: majority.member_back,
    events.UnprotectedRequested: majority.requested,
    events.WentOnUnprotected: majority.went_on,
    events.KernelStored: settling.stored,
    events.KernelNeeded: settling.needed,
    events.KernelRequested: kernels.kernel_requested,
    events.KernelRevived: kernels.kernel_revived,
    events.KernelStopped: kernels.kernel_stopped,
    events.KernelRestarted: kernels.kernel_restarted,
    events.KernelSettingsChanged: kernels.kernel_settings_changed,
    events.ReplicaStarted: kernels.replica_started,
    events.ReplicaLost: kernels.replica_lost,
    events.CellSubmitted: cells.cell_submitted,
    events.CellCancelled: cells.cell_cancelled,
    events.BallotCast: cells.ballot_cast,
    events.AttemptStarted: cells.attempt_started,
    events.AttemptRefused: cells.attempt_refused,
    events.AttemptClosed: cells.attempt_closed,
    events.GpusReleased: cells.gpus_released,
    events.HoldChanged: cells.hold_changed,
    events.DurabilityChanged: cells.durability_changed,
    events.Ticked: ticks.ticked,
}


class Scheduler:
    """Decides who runs what, where; see the module."""

    def __init__(
        self,
        policy: str | Policy = "replicated",
        *,
        max_hosts: int = 8,
        options: Options | None = None,
    ) -> None:
        """A cluster without hosts. Raises InvalidSettings for a wrong policy or option."""
        self.policy: Policy = make_policy(policy) if isinstance(policy, str) else policy
        options = check(options or Options(), max_hosts=max_hosts)
        if self.policy.keeps_gpus or not self.policy.keeps_replicas:
            # What is reserved on a host, or lives for one cell only, does not move.
            options = msgspec.structs.replace(options, migrate=False, rebalance=False, hints=True)
        self.state = ClusterState(max_hosts=max_hosts, options=options)
        self.state.sessions_reserve = self.policy.keeps_gpus
        self.state.stores_after_cells = not self.policy.keeps_replicas
        self.view = ClusterView(self.state)

    def handle(self, event: events.Event) -> list[Action]:
        """Take in what happened; return what to do, in order. Raises Defect if a rule is broken."""
        turn = Turn(self.state, self.view, self.policy, event.at)
        HANDLERS[type(event)](turn, event)
        for kernel in turn.restart:
            kernels.kernel_restarted(turn, events.KernelRestarted(kernel, event.at))
        majority.recount(turn)
        starting.advance(turn)
        while self.state.recount:
            # What began for a cell changes a group.
            majority.recount(turn)
            starting.advance(turn)
        return turn.actions
