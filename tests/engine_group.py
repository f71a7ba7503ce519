"""Three hosts in one process with either consensus engine, and the network between them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from notebookos_ext.agent.members import Members
from notebookos_ext.agent.raftos_members import RaftosMembers
from notebookos_ext.clock import SystemClock
from notebookos_ext.cluster.consensus.messages import Append, Entry, Envelope, Foreign
from notebookos_ext.cluster.consensus.ready import Role
from notebookos_ext.cluster.model import HostId, KernelId

K = KernelId("kernel-1")
HOSTS = (HostId("h1"), HostId("h2"), HostId("h3"))
HANG_S = 30.0


def kept_by_raft_only(
    what_raftos_does: str, raises: type[Exception]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Marks a promise that the published raftos breaks, and how that shows."""
    return pytest.mark.parametrize(
        "engine",
        [
            "raft",
            pytest.param(
                "raftos",
                marks=pytest.mark.xfail(strict=True, reason=what_raftos_does, raises=raises),
            ),
        ],
    )


kept_by_both = pytest.mark.parametrize("engine", ["raft", "raftos"])


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition; the limit only ends hangs."""
    async with asyncio.timeout(HANG_S):
        while not condition():  # noqa: ASYNC110 - conditions of several objects at once
            await asyncio.sleep(0.005)


class Network:
    """Delivers in the next turn of the loop; a silenced host is heard by nobody."""

    def __init__(self) -> None:
        self.hosts: dict[HostId, EngineHost] = {}
        self.silenced: set[HostId] = set()
        self.silence_after: tuple[HostId, str] | None = None
        self._carried_to: set[HostId] = set()

    def carry(self, sender: HostId, to: HostId, envelopes: Sequence[Envelope]) -> None:
        for envelope in envelopes:
            if sender in self.silenced:
                return
            self._watch(sender, to, envelope)
            asyncio.get_running_loop().call_soon(self._deliver, sender, to, [envelope])

    def _watch(self, sender: HostId, to: HostId, envelope: Envelope) -> None:
        """Silence a host as soon as an entry of its has reached another and been answered."""
        if self.silence_after is None:
            return
        host, proposal_id = self.silence_after
        if sender == host and proposal_id in carried(envelope):
            self._carried_to.add(to)
        elif to == host and sender in self._carried_to:
            self.silenced.add(host)
            self.silence_after = None

    def _deliver(self, sender: HostId, to: HostId, envelopes: list[Envelope]) -> None:
        if host := self.hosts.get(to):
            host.engine.receive(sender, envelopes)


def carried(envelope: Envelope) -> str:
    """What entries a message holds, as text in which their ids occur."""
    match envelope.message:
        case Append(entries=entries):
            return " ".join(entry.proposal_id for entry in entries)
        case Foreign(payload=payload):
            return payload.decode("latin-1")
    return ""


class EngineHost:
    """One host: its engine, and what it was told is committed. It is its own carrier."""

    def __init__(
        self,
        network: Network,
        host: HostId,
        folder: Path,
        engine: str,
        *,
        heartbeat_s: float = 0.05,
    ) -> None:
        self.committed: list[Entry] = []
        self.network = network
        self.host = host
        rng = random.Random(host)
        self.engine: Members | RaftosMembers
        if engine == "raftos":
            self.engine = RaftosMembers(
                host=host,
                folder=folder / host,
                transport=self,
                rng=rng,
                on_committed=self._on_committed,
                heartbeat_s=heartbeat_s,
            )
        else:
            self.engine = Members(
                host=host,
                folder=folder / host,
                transport=self,
                clock=SystemClock(),
                rng=rng,
                on_committed=self._on_committed,
                tick_s=heartbeat_s / 2,
            )
        network.hosts[host] = self

    def _on_committed(self, kernel: KernelId, entries: Sequence[Entry]) -> None:
        assert kernel == K
        self.committed += entries

    @property
    def up(self) -> frozenset[HostId]:
        return frozenset(HOSTS) - {self.host}

    def send(self, host: HostId, messages: Sequence[Envelope]) -> None:
        self.network.carry(self.host, host, messages)

    def flush(self) -> None:
        """What is sent here has left already."""

    @property
    def payloads(self) -> list[bytes]:
        return [entry.payload for entry in self.committed]


class EngineGroup:
    """A group of three. `heartbeat_s`: a leader that is held up for five of them is replaced."""

    def __init__(self, folder: Path, engine: str, heartbeat_s: float) -> None:
        self.folder = folder
        self.engine = engine
        self.network = Network()
        self._heartbeat_s = heartbeat_s

    def __getitem__(self, host: HostId) -> EngineHost:
        return self.network.hosts[host]

    async def start(self, *hosts: HostId) -> None:
        """Open the members on these hosts; on all of them, the first leads soon."""
        for host in hosts or (*HOSTS[1:], HOSTS[0]):
            new = EngineHost(
                self.network, host, self.folder, self.engine, heartbeat_s=self._heartbeat_s
            )
            await new.engine.open(K, HOSTS, campaign=not hosts and host == HOSTS[0])
        if not hosts:
            await until(self.leader)

    async def stop(self, *hosts: HostId) -> None:
        for host in hosts or tuple(self.network.hosts):
            await self.network.hosts.pop(host).engine.shut_down()

    def leader(self) -> HostId | None:
        """The host whose member leads according to itself, in the newest term."""
        leading = {
            status.term: host
            for host in self.network.hosts
            if (status := self[host].engine.status(K)).role is Role.LEADER
        }
        return leading[max(leading)] if leading else None

    async def followers(self) -> list[HostId]:
        await until(self.leader)
        return [host for host in self.network.hosts if host != self.leader()]
