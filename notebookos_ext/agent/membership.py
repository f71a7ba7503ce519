"""Who belongs to a kernel's Raft group, by hosts: the steps from one set of hosts to another.

A member has a name of its own on its host, since one whose log is lost comes back as another. All
of this may be asked of any host that has a member, and asked again: what is done already stays.
"""

from __future__ import annotations

import logging
from typing import Protocol

from notebookos_ext.cluster.consensus.membership import Change, ChangeKind, Membership, host_of
from notebookos_ext.cluster.consensus.replicated_log import MemberStatus
from notebookos_ext.cluster.messages.control import (
    AddLearner,
    ChangeMembers,
    Done,
    ForgetLearner,
    MembersAre,
)
from notebookos_ext.cluster.model import HostId, KernelId
from notebookos_ext.errors import Infeasible

CHANGE_S = 30.0

log = logging.getLogger(__name__)


class Group(Protocol):
    """The part of `members.Members` that is used here."""

    async def change_membership(  # noqa: D102
        self, kernel: KernelId, change: Change, timeout_s: float = ...
    ) -> Membership: ...
    async def read_barrier(self, kernel: KernelId) -> int: ...  # noqa: D102
    def status(self, kernel: KernelId) -> MemberStatus: ...  # noqa: D102


class MembershipRequests:
    """Answers the controller. Raises what `ReplicatedLog.change_membership` does."""

    def __init__(self, group: Group) -> None:
        self._group = group

    async def add_learner(self, request: AddLearner) -> Done:
        """Have a member learn the log; what else its host had in the group is taken out first."""
        kernel, member = request.kernel, request.member
        present = await self._present(kernel)
        for other in present.everybody:
            if host_of(other) == host_of(member) and other != member:
                log.info("kernel %s: %s takes the place of %s", kernel, member, other)
                await self._change(kernel, ChangeKind.REMOVE, other)
        await self._change(kernel, ChangeKind.ADD_LEARNER, member)
        return Done()

    async def change_voters(self, request: ChangeMembers) -> MembersAre:
        """Make the members on some hosts the voters, and take all others out.

        Raises Infeasible when a host has no member in the group, not even a learner. Whatever is
        raised, some steps may have been taken.
        """
        present = await self._present(request.kernel)
        by_host = {host_of(member): member for member in present.everybody}
        for host in request.members:
            member = by_host.get(host)
            if member is None:
                raise Infeasible(f"kernel {request.kernel} has no member on host {host}")
            if member not in present.voters:
                present = await self._change(request.kernel, ChangeKind.PROMOTE, member)
        for member in present.everybody:
            if host_of(member) not in request.members:
                present = await self._change(request.kernel, ChangeKind.REMOVE, member)
        return MembersAre(members=tuple(HostId(host_of(member)) for member in present.voters))

    async def forget_learner(self, request: ForgetLearner) -> Done:
        """Take out what a host has in the group, unless it votes."""
        present = await self._present(request.kernel)
        for member in present.learners:
            if host_of(member) == request.host:
                await self._change(request.kernel, ChangeKind.REMOVE, member)
        return Done()

    async def _present(self, kernel: KernelId) -> Membership:
        await self._group.read_barrier(kernel)
        return self._group.status(kernel).membership

    async def _change(self, kernel: KernelId, kind: ChangeKind, member: str) -> Membership:
        return await self._group.change_membership(kernel, Change(kind, member), CHANGE_S)
