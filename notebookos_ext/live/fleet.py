"""The host agents that the controller commands: connections, leases, peers, readings.

Tells the controller when a host joins and when it is lost; a lost connection is a lost host, and
what is left of its agent is ended before it is started again, so that no second executor can live.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Coroutine
from typing import Protocol

from notebookos_ext.cluster.consensus.replicated_log import MemberStatus
from notebookos_ext.cluster.messages.control import (
    AgentNotice,
    Attached,
    CloseMember,
    DeviceUse,
    Done,
    Inventory,
    MemberReports,
    ReadInventory,
    ReadMembers,
    ReadStore,
    RenewLease,
    RunningReplica,
    SetPeers,
    StopAgent,
    StopReplica,
    StoreReport,
)
from notebookos_ext.cluster.model import DeviceId, HostId, HostSpec, KernelId
from notebookos_ext.errors import LaunchFailed, NotebookOSError, Unavailable
from notebookos_ext.live.agent_client import AgentClient, connect
from notebookos_ext.live.backends.base import Backend

ANSWER_S = 10.0
"""An agent that does not answer a small request for this long has lost its mind: it is replaced."""
STOP_GRACE_S = 8.0

log = logging.getLogger(__name__)


class FleetListener(Protocol):
    """What the controller wants to hear of hosts."""

    def host_joined(self, spec: HostSpec) -> None:
        """An agent is attached and can be commanded."""
        ...

    def host_lost(self, spec: HostSpec, reason: str) -> None:
        """It is gone, with its replicas and bindings."""
        ...

    def notice(self, host: HostId, notice: AgentNotice) -> None:
        """What its agent says unasked."""
        ...

    def warn(self, message: str) -> None:
        """Something the user should know."""
        ...

    def no_more_hosts(self, reason: str) -> None:
        """The backend has none to give for now, or one that it gave could not be started."""
        ...


@dataclasses.dataclass(slots=True)
class Agent:
    """One attached host agent."""

    client: AgentClient
    spec: HostSpec
    peer_address: str
    lease: asyncio.Task[None] | None = None


class Fleet:
    """All agents of a cluster; a `BackendListener`."""

    def __init__(
        self,
        *,
        backend: Backend,
        listener: FleetListener,
        token: bytes,
        controller: str,
        lease_s: float,
    ) -> None:
        self._backend = backend
        self._listener = listener
        self._token = token
        self._controller = controller
        self._lease_s = lease_s
        self._agents: dict[HostId, Agent] = {}
        self._addresses: dict[HostId, str] = {}
        self._failures: dict[HostId, str] = {}
        self._listening: set[HostId] = set()
        """Hosts whose present agent process has come up."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Condition()
        self._stopping = False
        self.use: dict[HostId, dict[DeviceId, DeviceUse]] = {}
        """The last readings of each host's devices."""
        self.store_bytes: dict[HostId, dict[KernelId, int]] = {}
        """What each host's logs name of the checkpoint store, by kernel."""
        self.members: dict[HostId, dict[KernelId, MemberStatus]] = {}
        """How each host's members of Raft groups were when they were last asked."""
        self.stores: dict[HostId, StoreReport] = {}
        """How each host finds the checkpoint store."""

    async def start(self) -> None:
        """Have the backend bring up its hosts."""
        await self._backend.start(self)

    def agent(self, host: HostId) -> AgentClient:
        """The connection to a host's agent. Raises Unavailable when the host is lost."""
        agent = self._agents.get(host)
        if agent is None:
            raise Unavailable(f"{host} is not there: {self._failures.get(host, 'it was lost')}")
        return agent.client

    def spec(self, host: HostId) -> HostSpec | None:
        """What its agent said of a host; None while it is lost."""
        agent = self._agents.get(host)
        return agent.spec if agent else None

    def hosts(self) -> tuple[HostId, ...]:
        """Those whose agents are attached."""
        return tuple(self._agents)

    def has(self, host: HostId) -> bool:
        """Whether the host's agent is attached."""
        return host in self._agents

    async def wait_for_a_host(self) -> None:
        """Until a host is there. Raises LaunchFailed with the reason when none could be started."""
        async with self._changed:
            await self._changed.wait_for(lambda: bool(self._agents or self._failures))
        if not self._agents:
            reason = next(iter(self._failures.values()))
            raise LaunchFailed(f"no host of the cluster could be started: {reason}")

    @property
    def host_count(self) -> int:
        """Hosts that the backend has given, started or has not got rid of yet."""
        return self._backend.host_count

    async def request_hosts(self, count: int) -> None:
        """Ask the backend for `count` hosts in all; that it has none to give is told."""
        try:
            await self._backend.request_hosts(count)
        except NotebookOSError as error:
            self._listener.no_more_hosts(error.message)

    async def release(self, host: HostId, incarnation: str) -> HostSpec | None:
        """End a host's agent and give the host back; None when it is not that one any more."""
        agent = self._agents.get(host)
        if agent is None or agent.spec.incarnation != incarnation:
            return None
        # From here on its end is no loss.
        del self._agents[host]
        self._addresses.pop(host, None)
        self.use.pop(host, None)
        self.members.pop(host, None)
        self.store_bytes.pop(host, None)
        self.stores.pop(host, None)
        if agent.lease is not None:
            agent.lease.cancel()
        self._listening.discard(host)
        self._failures[host] = "it was given back"
        self._tell_peers()
        await asyncio.wait([agent.client.send(StopAgent(delete_logs=True))], timeout=STOP_GRACE_S)
        await self._backend.release_host(host, grace_s=STOP_GRACE_S)
        agent.client.close()
        log.info("%s was given back", host)
        return agent.spec

    async def read_members(self, *, with_store: bool = False) -> None:
        """Ask every host how its members of Raft groups are; one that does not answer keeps."""
        for host, agent in list(self._agents.items()):
            try:
                answer = await agent.client.request(
                    ReadMembers(with_store=with_store), MemberReports, ANSWER_S
                )
            except NotebookOSError as error:
                log.debug("no report of %s's members: %s", host, error)
                continue
            if host in self._agents:
                self.members[host] = {status.kernel: status for status in answer.members}
                if with_store:
                    self.store_bytes[host] = answer.store_bytes

    async def read_stores(self) -> None:
        """Ask every host how it finds the checkpoint store; one that does not answer keeps."""
        for host, agent in list(self._agents.items()):
            try:
                answer = await agent.client.request(ReadStore(), StoreReport, ANSWER_S)
            except NotebookOSError as error:
                log.debug("no report of the store by %s: %s", host, error)
                continue
            self.note_store(host, answer)

    def note_store(self, host: HostId, report: StoreReport) -> None:
        """A host tells how it finds the checkpoint store."""
        if host in self._agents:
            self.stores[host] = report

    async def read_use(self) -> None:
        """Read the use of every device; a host that does not answer keeps its last reading."""
        for host, agent in list(self._agents.items()):
            try:
                answer = await agent.client.request(ReadInventory(), Inventory, ANSWER_S)
            except NotebookOSError as error:
                log.debug("no reading of %s: %s", host, error)
                continue
            self.use[host] = {use.device: use for use in answer.devices}

    async def stop(self, *, delete_logs: bool) -> None:
        """End every agent. Nothing of the cluster runs afterwards."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for agent in self._agents.values():
            if agent.lease is not None:
                agent.lease.cancel()
        answers = [a.client.send(StopAgent(delete_logs=delete_logs)) for a in self._agents.values()]
        if answers:
            await asyncio.wait(answers, timeout=STOP_GRACE_S)
        await self._backend.stop(grace_s=STOP_GRACE_S)
        for agent in self._agents.values():
            agent.client.close()
        self._agents.clear()

    # ---- the backend's voice ----------------------------------------------------------------

    def host_up(self, host: HostId, control_path: str, *, adopted: bool) -> None:
        """Attach to an agent that listens."""
        self._listening.add(host)
        self._spawn(self._attach(host, control_path, adopted=adopted))

    def host_down(self, host: HostId, reason: str) -> None:
        """Its process is gone."""
        if self._stopping:
            return
        if host in self._agents:
            self._lose(host, reason)
        if host in self._listening:
            # It had come up; that its connection broke was told already.
            self._listening.discard(host)
            return
        self._failures[host] = reason
        self._listener.warn(f"{host} could not be started: {reason}")
        self._listener.no_more_hosts(f"{host} could not be started: {reason}")
        self._spawn(self._notify())

    # ---- attaching --------------------------------------------------------------------------

    async def _attach(self, host: HostId, path: str, *, adopted: bool) -> None:
        try:
            client, attached = await connect(
                path,
                token=self._token,
                controller=self._controller,
                lease_s=self._lease_s,
                on_notice=lambda notice: self._listener.notice(host, notice),
                on_lost=lambda reason: self._connection_lost(host, reason),
            )
        except NotebookOSError as error:
            log.warning("%s was not attached: %s", host, error)
            self._failures[host] = str(error)
            self._backend.failed(host)
            await self._notify()
            return
        if adopted:
            await self._forget_the_past(client, attached)
        self._agents[host] = agent = Agent(client, attached.spec, attached.peer_address)
        self._addresses[host] = attached.peer_address
        self._failures.pop(host, None)
        self._backend.attached(host)
        agent.lease = self._spawn(self._renew(host, client))
        self._tell_peers()
        log.info("%s joined%s", host, " (adopted)" if adopted else "")
        self._listener.host_joined(attached.spec)
        await self._notify()

    async def _forget_the_past(self, client: AgentClient, attached: Attached) -> None:
        """Kernels of an earlier controller are ended; their logs stay on the host."""
        try:
            for replica in attached.replicas:
                await self._end(client, replica)
            for kernel in attached.kernels:
                await client.request(CloseMember(kernel=kernel, delete=False), Done, ANSWER_S)
        except NotebookOSError as error:
            log.warning("what an adopted agent ran could not be ended: %s", error)

    async def _end(self, client: AgentClient, replica: RunningReplica) -> None:
        log.info("replica %s of an earlier server is ended", replica.replica)
        await client.request(StopReplica(replica=replica.replica, grace_s=1.0), Done, ANSWER_S)

    async def _renew(self, host: HostId, client: AgentClient) -> None:
        """Renew the lease every quarter of it; an agent that stays silent is given up."""
        try:
            while True:
                await asyncio.sleep(self._lease_s / 4)
                await client.request(RenewLease(lease_s=self._lease_s), Done, self._lease_s / 2)
        except NotebookOSError as error:
            client.close()
            self._connection_lost(host, str(error))

    def _connection_lost(self, host: HostId, reason: str) -> None:
        agent = self._agents.get(host)
        if self._stopping or agent is None or not agent.client.lost:
            return
        self._lose(host, reason)
        self._backend.failed(host)

    def _lose(self, host: HostId, reason: str) -> None:
        agent = self._agents.pop(host)
        if agent.lease is not None and agent.lease is not asyncio.current_task():
            agent.lease.cancel()
        self._failures[host] = reason
        self.use.pop(host, None)
        self.members.pop(host, None)
        self.store_bytes.pop(host, None)
        self.stores.pop(host, None)
        agent.client.close()
        log.warning("%s is lost: %s", host, reason)
        # First the peers, so that a group whose leader it was elects another one at once.
        self._tell_peers()
        self._listener.host_lost(agent.spec, reason)

    def _tell_peers(self) -> None:
        lost = tuple(host for host in self._addresses if host not in self._agents)
        addresses = {str(host): address for host, address in self._addresses.items()}
        for agent in self._agents.values():
            agent.client.send(SetPeers(addresses=addresses, lost=lost))

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _spawn(self, coroutine: Coroutine[object, object, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
