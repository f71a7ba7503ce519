"""Moves: replicas from host to host, hosts emptied and given back; what people ask of them.

The scheduler decides the steps; here they are carried out, and what came of each is posted as an
event. A kernel's steps are in order with its launches, on the same chains.
"""

from __future__ import annotations

import asyncio
import logging

from notebookos_ext.cluster import actions, events
from notebookos_ext.cluster.messages import control as messages
from notebookos_ext.cluster.model import HostId, KernelId, ReplicaId
from notebookos_ext.cluster.policies.replicated import names_text
from notebookos_ext.errors import Infeasible, InvalidRequest, NotebookOSError, NotFound
from notebookos_ext.live.kernel_records import KernelRecord
from notebookos_ext.live.parts import Part, Shared

CHANGE_S = 60.0
"""A newcomer has caught up before; what remains is a few commits, unless a majority is missing."""
PAUSE_S = 1.0

log = logging.getLogger(__name__)


class Moves(Part):
    """Lives on the controller's thread."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._refusals: dict[KernelId, str] = {}
        """Why the move that somebody asks for just now cannot begin."""

    # ---- what people ask --------------------------------------------------------------------

    async def migrate(
        self, kernel: KernelId, replica: ReplicaId | None, target: HostId | None
    ) -> None:
        """See `Controller.migrate`."""
        if kernel not in self._view.kernels:
            raise NotFound(f"there is no NotebookOS kernel {kernel}")
        self._refusals.pop(kernel, None)
        self._outlet.post(
            events.MigrationRequested(
                kernel=kernel, replica=replica, target=target, at=self._clock.now()
            )
        )
        if self._view.kernels[kernel].migration is None:
            reason = self._refusals.pop(kernel, "the scheduler did not begin it")
            raise Infeasible(f"no replica of the kernel can move: {reason}")
        self._outlet.changed(kernel, "replica")

    async def prefer(self, kernel: KernelId, number: int | None) -> None:
        """See `Controller.prefer_executor`."""
        found = self._view.kernels.get(kernel)
        if found is None:
            raise NotFound(f"there is no NotebookOS kernel {kernel}")
        replica = None if number is None else found.numbered(number)
        if number is not None:
            if replica is None:
                raise Infeasible(f"the kernel has no replica {number} that could run its next cell")
            if not self._view.options.hints:
                raise Infeasible(
                    "the replicas of this cluster elect their executor among themselves",
                    hint="turn the scheduling option hints on to choose it",
                )
            if found.held_by not in (None, replica.id):
                names = names_text([held.name for held in found.held])
                raise Infeasible(
                    f"replica {number} cannot run the next cell, for {names} cannot leave another",
                    hint="delete what holds the kernel first",
                )
        self._outlet.post(
            events.ExecutorPreferred(
                kernel=kernel, replica=replica.id if replica else None, at=self._clock.now()
            )
        )
        self._outlet.changed(kernel, "replica")

    async def add_host(self) -> None:
        """See `Controller.add_host`."""
        if self._fleet.host_count >= self._view.max_hosts:
            raise Infeasible(
                f"the cluster may have {self._view.max_hosts} hosts at most",
                hint="raise max_hosts, or remove another host first",
            )
        await self._fleet.request_hosts(self._fleet.host_count + 1)
        self._outlet.changed(None, "host")

    async def drain(self, host: HostId, *, release: bool) -> None:
        """See `Controller.drain_host`."""
        self._require(host)
        self._outlet.post(
            events.HostDrainRequested(host=host, at=self._clock.now(), release=release)
        )
        self._outlet.changed(None, "host")

    async def cancel_drain(self, host: HostId) -> None:
        """See `Controller.cancel_drain`."""
        self._require(host)
        self._outlet.post(events.HostDrainCancelled(host=host, at=self._clock.now()))
        self._outlet.changed(None, "host")

    def _require(self, host: HostId) -> None:
        if host not in self._view.hosts:
            raise NotFound(f"there is no host {host}")

    # ---- what the scheduler asks ------------------------------------------------------------

    def change_members(self, action: actions.ChangeMembers) -> None:
        """Make those hosts the voters of the kernel's group, through whichever can do it."""
        self._chains.append((action.kernel, ""), self._change(action))

    async def _change(self, action: actions.ChangeMembers) -> None:
        record = self._records[action.kernel]
        before = record.members
        group = record.group
        request = messages.ChangeMembers(kernel=action.kernel, members=action.members)
        # Nothing is told on a guess: a change without an answer may have been made, and who takes
        # it for undone deletes the log of a member that votes.
        while record.has_group(group) and not record.leaving:
            # Those that stay come first: who leaves must not be asked to finish it.
            asked = sorted({*before, *action.members}, key=lambda host: host not in action.members)
            for host in asked:
                if not self._fleet.has(host) or not record.has_group(group) or record.leaving:
                    continue
                try:
                    agent = self._fleet.agent(host)
                    answer = await agent.request(request, messages.MembersAre, CHANGE_S)
                except InvalidRequest as error:
                    # It cannot be, and was not begun: who should vote does not learn, for one.
                    if record.has_group(group):
                        self._tell(record, before, error.message)
                    return
                except NotebookOSError as error:
                    log.info("members of %s not changed by %s: %s", action.kernel, host, error)
                    continue
                if record.has_group(group):
                    self._tell(record, answer.members, "")
                return
            await asyncio.sleep(PAUSE_S)

    def _tell(self, record: KernelRecord, members: tuple[HostId, ...], reason: str) -> None:
        # In the scheduler's order: it is that of the replicas.
        moving = self._view.kernels.get(record.kernel)
        wanted = moving.migration.members if moving and moving.migration else ()
        found = wanted if set(members) == set(wanted) else record.members
        if record.members != found:
            record.members = found
            self._keeper.keep(record, self._outlet.warn)
        self._outlet.post(
            events.MembersChanged(
                kernel=record.kernel, members=found, reason=reason, at=self._clock.now()
            )
        )

    def close_member(self, action: actions.CloseMember) -> None:
        """Take a learner out of the group if it still is one, then delete what its host has."""
        record, kernel = self._records[action.kernel], self._view.kernels.get(action.kernel)
        if kernel is not None and record.former != kernel.former:
            record.former = set(kernel.former)
            self._keeper.keep(record, self._outlet.warn)
        # After what was begun for the replica there: its launch, or its end.
        self._chains.append(
            (action.kernel, ""), self._close(action), after=self._chains.keys(action.kernel)
        )

    async def _close(self, action: actions.CloseMember) -> None:
        forget = messages.ForgetLearner(kernel=action.kernel, host=action.host)
        for host in action.members:
            if not self._fleet.has(host):
                continue
            try:
                await self._fleet.agent(host).request(forget, messages.Done, CHANGE_S)
                break
            except NotebookOSError as error:
                log.info("%s stays a learner of %s: %s", action.host, action.kernel, error)
        if not self._fleet.has(action.host):
            return
        close = messages.CloseMember(kernel=action.kernel, delete=True)
        try:
            await self._fleet.agent(action.host).request(close, messages.Done)
        except NotebookOSError as error:
            log.warning("%s has not closed kernel %s: %s", action.host, action.kernel, error)

    def ended(self, action: actions.MigrationEnded) -> None:
        """Tell what came of it."""
        if not action.moved:
            self._refusals[action.kernel] = action.reason
            kernel = self._view.kernels.get(action.kernel)
            if action.newcomer is not None and kernel is not None:
                where = f" to {action.target}" if action.target else ""
                self._outlet.warn(f"a replica did not move{where}: {action.reason}", action.kernel)
        self._outlet.changed(action.kernel, "replica")

    def release_host(self, action: actions.ReleaseHost) -> None:
        """End its agent and give it back."""
        self._chains.spawn(self._release(action))

    async def _release(self, action: actions.ReleaseHost) -> None:
        while action.host in self._keeper.hosts:
            # With its folder their logs would be gone.
            self._outlet.warn(
                f"{action.host} is not given back yet: it has the log of a kernel of an earlier "
                "server that is not back"
            )
            await asyncio.sleep(PAUSE_S)
        spec = await self._fleet.release(action.host, action.incarnation)
        if spec is None:
            return
        log.info("%s is given back: %s", action.host, action.reason)
        self._outlet.post(
            events.HostRemoved(
                host=action.host, incarnation=action.incarnation, at=self._clock.now()
            )
        )
        self._outlet.changed(None, "host")
