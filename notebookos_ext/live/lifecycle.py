"""Carries out what the scheduler asks for replicas and kernels: launch, stop, new epoch, close."""

from __future__ import annotations

import asyncio
import logging

from notebookos_ext.clock import Clock
from notebookos_ext.cluster import actions, events
from notebookos_ext.cluster.messages import control as messages
from notebookos_ext.cluster.model import HostId, KernelId
from notebookos_ext.errors import NotebookOSError
from notebookos_ext.live.agent_client import check
from notebookos_ext.live.chains import Chains
from notebookos_ext.live.fleet import Fleet
from notebookos_ext.live.keeping import Keeper
from notebookos_ext.live.kernel_records import KernelRecord
from notebookos_ext.live.ports import Lives, Outlet, RouterCommands

STOP_GRACE_S = 2.0
PAUSE_S = 1.0

log = logging.getLogger(__name__)


class Lifecycle:
    """One method per action; what comes of it is posted as an event."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        router: RouterCommands,
        records: dict[KernelId, KernelRecord],
        chains: Chains,
        lives: Lives,
        clock: Clock,
        outlet: Outlet,
        options: dict[str, str | int | float | bool],
        keeper: Keeper,
    ) -> None:
        self._fleet = fleet
        self._router = router
        self._records = records
        self._chains = chains
        self._lives = lives
        self._clock = clock
        self._outlet = outlet
        self._options = options
        self._keeper = keeper

    def start_replica(self, action: actions.StartReplica) -> None:
        """Open the host's member of the group, then launch the replica."""
        record = self._records[action.kernel]
        record.epoch = max(record.epoch, action.epoch)
        self._keep(record, action.members)
        self._chains.append(
            (action.kernel, action.replica),
            self._launch(record, action),
            after=((action.kernel, ""),),
        )

    async def _launch(self, record: KernelRecord, action: actions.StartReplica) -> None:
        if not record.lives(action.epoch):
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
            options=self._options,
        )
        try:
            agent = self._fleet.agent(action.host)
            # One after the other: an agent works on several requests at a time.
            opening = _open(record, action.members, action.host)
            await agent.request(opening, messages.Done)
            await agent.request(launch, messages.Done)
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
        # Before it is committed: a later controller must never go back to an earlier epoch.
        record.members = ()
        self._keep(record, action.members)
        self._chains.append((action.kernel, ""), self._commit_epoch(record, action))

    def _keep(self, record: KernelRecord, members: tuple[HostId, ...]) -> None:
        if record.members != members:
            record.members = members
            self._keeper.keep(record, self._outlet.warn)

    async def _commit_epoch(self, record: KernelRecord, action: actions.StartEpoch) -> None:
        while record.lives(action.epoch):
            await self._open_everywhere(record, action.members)
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

    async def _open_everywhere(self, record: KernelRecord, members: tuple[HostId, ...]) -> None:
        answers = [
            self._fleet.agent(host).send(_open(record, members, host))
            for host in members
            if self._fleet.has(host)
        ]
        if answers:
            await asyncio.wait(answers)

    def close_kernel(self, action: actions.CloseKernel) -> None:
        """End the kernel on every host and delete its log there.

        A host that is lost now keeps its log. It is not that of the group that may follow.
        """
        record = self._records[action.kernel]
        record.begin_group()
        record.members = ()
        self._keeper.forget(action.kernel)
        self._chains.append(
            (action.kernel, ""), self._close(action), after=self._chains.keys(action.kernel)
        )

    async def _close(self, action: actions.CloseKernel) -> None:
        request = messages.CloseMember(kernel=action.kernel, delete=True)
        closing = {
            host: self._fleet.agent(host).send(request)
            for host in action.members
            if self._fleet.has(host)
        }
        if closing:
            await asyncio.wait(closing.values())
        for host, answer in closing.items():
            try:
                check(answer.result(), messages.Done)
            except NotebookOSError as error:
                log.warning("%s has not closed kernel %s: %s", host, action.kernel, error)


def _open(record: KernelRecord, members: tuple[HostId, ...], host: HostId) -> messages.OpenKernel:
    return messages.OpenKernel(
        kernel=record.kernel,
        members=members,
        log_key=record.log_key,
        campaign=host == members[0],
    )
