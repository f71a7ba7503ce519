"""Carries out what the scheduler asks for replicas and kernels: launch, stop, new epoch, close."""

from __future__ import annotations

import asyncio
import logging

from notebookos_ext.cluster import actions, events
from notebookos_ext.cluster.messages import control as messages
from notebookos_ext.cluster.model import HostId, KernelId
from notebookos_ext.errors import LogLost, NotebookOSError, Unavailable
from notebookos_ext.live.agent_client import check
from notebookos_ext.live.kernel_records import KernelRecord
from notebookos_ext.live.parts import Part, Shared
from notebookos_ext.live.ports import Lives

STOP_GRACE_S = 2.0
PAUSE_S = 1.0

log = logging.getLogger(__name__)


class Lifecycle(Part):
    """One method per action; what comes of it is posted as an event."""

    def __init__(
        self,
        shared: Shared,
        *,
        lives: Lives,
        options: dict[str, str | int | float | bool],
    ) -> None:
        super().__init__(shared)
        self._lives = lives
        self._options = options

    def start_replica(self, action: actions.StartReplica) -> None:
        """Open the host's member of the group, then launch the replica."""
        record = self._records[action.kernel]
        record.epoch = max(record.epoch, action.epoch)
        if not action.learner:
            self._keep(record, action.members)
        self._chains.append(
            (action.kernel, action.replica),
            self._launch(record, action, record.group),
            after=((action.kernel, ""),),
        )

    async def _launch(self, record: KernelRecord, action: actions.StartReplica, group: int) -> None:
        if not record.lives(action.epoch) or record.stored is not None:
            # In the second case it goes back into the store: nobody waits for it any more.
            return
        if record.group != group and action.host not in record.members:
            # It was of a group that was left behind meanwhile.
            return
        spec = self._fleet.spec(action.host)
        launch = messages.LaunchReplica(
            kernel=action.kernel,
            replica=action.replica,
            epoch=action.epoch,
            launch=record.next_launch(action.replica),
            python=record.plan.python,
            env=record.plan.env,
            cwd=record.plan.cwd,
            session_key=record.plan.session_key,
            options=self._options
            if not record.plan.sync
            else {**self._options, "sync": record.plan.sync},
            prewarmed=action.prewarmed,
        )
        try:
            # One after the other: an agent works on several requests at a time.
            if action.learner:
                await self._join(record, action.host, action.members)
            else:
                await self._open(record, action.host, action.members)
            await self._fleet.agent(action.host).request(launch, messages.Done)
        except NotebookOSError as error:
            if not record.lives(action.epoch):
                return
            self._outlet.warn(f"{action.replica} could not be started: {error}", action.kernel)
            self._outlet.post(
                events.ReplicaLost(
                    replica=action.replica,
                    host=action.host,
                    incarnation=spec.incarnation if spec else "",
                    reason=str(error),
                    at=self._clock.now(),
                )
            )
            self._lives.launch_failed(action.kernel, str(error))

    async def _open(self, record: KernelRecord, host: HostId, members: tuple[HostId, ...]) -> None:
        """Open the host's member; one that has lost its log learns it again from the others.

        Raises Unavailable while there is nobody to learn it from.
        """
        if host not in record.relearning:
            try:
                agent = self._fleet.agent(host)
                await agent.request(opening(record, members, host), messages.Done)
            except LogLost as error:
                self._member_lost(record, host, error)
        if host in record.relearning:
            others = tuple(member for member in members if member != host)
            if not others:
                raise Unavailable(f"{host} has lost the only log of the kernel")
            await self._join(record, host, others)
            self._chains.spawn(self._vote_again(record, host, others))
        self._founded(record, host)

    def _member_lost(self, record: KernelRecord, host: HostId, error: LogLost) -> None:
        then = "; it learns it from the others" if len(record.members) > 1 else ""
        self._outlet.warn(f"{error.message}{then}", record.kernel)
        # Kept: what is put in its place looks like a log to a later controller.
        record.relearning.add(host)
        self._keeper.keep(record, self._outlet.warn)
        self._post_lost(record, host, error.message)

    def _post_lost(self, record: KernelRecord, host: HostId, reason: str) -> None:
        self._outlet.post(
            events.MemberLost(kernel=record.kernel, host=host, reason=reason, at=self._clock.now())
        )

    def _founded(self, record: KernelRecord, host: HostId) -> None:
        if host not in record.founded:
            record.founded.add(host)
            self._keeper.keep(record, self._outlet.warn)

    async def _join(self, record: KernelRecord, host: HostId, voters: tuple[HostId, ...]) -> None:
        """Have a member on `host` that learns. Raises Unavailable when no voter takes it in."""
        joining = messages.JoinGroup(kernel=record.kernel, log_key=record.log_key)
        joined = await self._fleet.agent(host).request(joining, messages.Joined)
        self._founded(record, host)
        request = messages.AddLearner(kernel=record.kernel, member=joined.member)
        await self._ask_voters(voters, request, messages.Done)

    async def _vote_again(
        self, record: KernelRecord, host: HostId, others: tuple[HostId, ...]
    ) -> None:
        request = messages.ChangeMembers(kernel=record.kernel, members=record.members)
        group = record.group
        while record.has_group(group) and host in record.relearning:
            try:
                await self._ask_voters(others, request, messages.MembersAre)
            except NotebookOSError as error:
                log.info("kernel %s: a member does not vote yet: %s", record.kernel, error)
                await asyncio.sleep(PAUSE_S)
            else:
                if record.has_group(group):
                    record.relearning.discard(host)
                    self._keeper.keep(record, self._outlet.warn)
                    self._outlet.post(
                        events.MemberBack(kernel=record.kernel, host=host, at=self._clock.now())
                    )
                return

    async def _ask_voters(
        self,
        voters: tuple[HostId, ...],
        request: messages.AddLearner | messages.ChangeMembers,
        expected: type[messages.Done | messages.MembersAre],
    ) -> None:
        """Have the first voter that can do it do it. Raises the last one's error."""
        problem: NotebookOSError = Unavailable("no other host of the kernel is there")
        for voter in voters:
            if not self._fleet.has(voter):
                continue
            try:
                await self._fleet.agent(voter).request(request, expected)
            except NotebookOSError as error:
                problem = error
            else:
                return
        raise problem

    def stop_replica(self, action: actions.StopReplica) -> None:
        """End the process; the router forgets it at once."""
        self._router.replica_gone(action.kernel, action.replica)
        self._records[action.kernel].processes.pop(action.replica, None)
        self._chains.append((action.kernel, action.replica), self._stop(action))

    async def _stop(self, action: actions.StopReplica) -> None:
        request = messages.StopReplica(replica=action.replica, grace_s=STOP_GRACE_S)
        try:
            await self._fleet.agent(action.host).request(request, messages.Done)
        except NotebookOSError as error:
            # Its host is gone, and the replica with it.
            log.debug("%s was not stopped: %s", action.replica, error)

    def start_epoch(self, action: actions.StartEpoch) -> None:
        """Commit the new epoch before anything is launched in it."""
        record = self._records[action.kernel]
        if record.epoch != action.epoch:
            record.epoch = action.epoch
            record.begin_epoch()
        record.stored = record.restoration = None
        # Before it is committed: a later controller must never go back to an earlier epoch.
        record.members = ()
        self._keep(record, action.members)
        self._chains.append((action.kernel, ""), self._commit_epoch(record, action))

    def begin_epoch_again(self, record: KernelRecord, members: tuple[HostId, ...]) -> None:
        """Commit the present epoch unless it is; in case that was given up."""
        action = actions.StartEpoch(kernel=record.kernel, epoch=record.epoch, members=members)
        self._chains.append((record.kernel, ""), self._commit_epoch(record, action))

    def _keep(self, record: KernelRecord, members: tuple[HostId, ...]) -> None:
        if record.members != members:
            record.members = members
            self._keeper.keep(record, self._outlet.warn)

    async def _commit_epoch(self, record: KernelRecord, action: actions.StartEpoch) -> None:
        while record.lives(action.epoch) and not record.leaving:
            await self.open_everywhere(record, action.members)
            if await self._propose_epoch(action):
                return
            await asyncio.sleep(PAUSE_S)

    async def _propose_epoch(self, action: actions.StartEpoch) -> bool:
        request = messages.NewEpoch(kernel=action.kernel, epoch=action.epoch)
        for host in action.members:
            try:
                await self._fleet.agent(host).request(request, messages.Done)
            except NotebookOSError as error:
                log.info("epoch %d of %s not yet: %s", action.epoch, action.kernel, error)
            else:
                return True
        return False

    async def open_everywhere(self, record: KernelRecord, members: tuple[HostId, ...]) -> None:
        """Open the members on all of these hosts that are there; what fails is logged."""
        there = [host for host in members if self._fleet.has(host)]
        opened = await asyncio.gather(
            *(self._open(record, host, members) for host in there), return_exceptions=True
        )
        for host, error in zip(there, opened, strict=True):
            if isinstance(error, NotebookOSError):
                log.info("%s has not opened kernel %s: %s", host, record.kernel, error)
            elif isinstance(error, BaseException):
                raise error

    def close_kernel(self, action: actions.CloseKernel) -> None:
        """End the kernel on every host and delete its log there.

        A host that is lost now keeps its log. It is not that of the group that may follow.
        """
        record = self._records[action.kernel]
        record.begin_group()
        record.members = ()
        kernel = self._view.kernels.get(action.kernel)
        record.former = set() if kernel is None else set(kernel.former)
        self._keeper.forget(action.kernel)
        self._chains.append(
            (action.kernel, ""),
            self.close_members(action.kernel, action.members),
            after=self._chains.keys(action.kernel),
        )

    async def close_members(self, kernel: KernelId, members: tuple[HostId, ...]) -> None:
        """End the kernel on these hosts, as far as they are there, and delete its log."""
        request = messages.CloseMember(kernel=kernel, delete=True)
        closing = {
            host: self._fleet.agent(host).send(request) for host in members if self._fleet.has(host)
        }
        if closing:
            await asyncio.wait(closing.values())
        for host, answer in closing.items():
            try:
                check(answer.result(), messages.Done)
            except NotebookOSError as error:
                log.warning("%s has not closed kernel %s: %s", host, kernel, error)


def opening(record: KernelRecord, members: tuple[HostId, ...], host: HostId) -> messages.OpenKernel:
    """What has a host's member of the kernel's group opened."""
    return messages.OpenKernel(
        kernel=record.kernel,
        members=members,
        log_key=record.log_key,
        campaign=host == members[0],
        is_new=host not in record.founded,
    )
