"""Members of several hosts in one process: real logs on disk, messages passed by hand."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path

import msgspec

from notebookos_ext.agent.compaction import CompactionLimits
from notebookos_ext.agent.members import Members
from notebookos_ext.clock import SystemClock
from notebookos_ext.cluster.consensus.messages import Entry, Envelope
from notebookos_ext.cluster.consensus.ready import Role
from notebookos_ext.cluster.model import HostId, KernelId

K = KernelId("kernel-1")
HOSTS = (HostId("h1"), HostId("h2"), HostId("h3"))
A, B, C = HOSTS
HANG_S = 30.0
TICK_S = 0.01


class Wire:
    """Between the hosts: delivers in the next turn of the loop, and can be cut."""

    def __init__(self) -> None:
        self.hosts: dict[HostId, Host] = {}
        self.cut: set[frozenset[HostId]] = set()
        self.carried: list[tuple[HostId, HostId, Envelope]] = []

    def carry(self, sender: HostId, to: HostId, envelopes: Sequence[Envelope]) -> None:
        if frozenset((sender, to)) in self.cut:
            return
        self.carried += [(sender, to, envelope) for envelope in envelopes]
        asyncio.get_running_loop().call_soon(self._deliver, sender, to, list(envelopes))

    def _deliver(self, sender: HostId, to: HostId, envelopes: list[Envelope]) -> None:
        if host := self.hosts.get(to):
            host.members.receive(sender, envelopes)

    def separate(self, host: HostId, *, noticed: bool = True) -> None:
        for other in HOSTS:
            if other != host:
                self.cut.add(frozenset((host, other)))
                if noticed:
                    self._tell(host, other, back=False)

    def rejoin(self, host: HostId) -> None:
        for other in HOSTS:
            if other != host:
                self.cut.discard(frozenset((host, other)))
                self._tell(host, other, back=True)

    def _tell(self, one: HostId, two: HostId, *, back: bool) -> None:
        for here, there in ((one, two), (two, one)):
            if here in self.hosts:
                members = self.hosts[here].members
                (members.peer_back if back else members.peer_lost)(there)


class HostCarrier:
    def __init__(self, wire: Wire, host: HostId) -> None:
        self.wire = wire
        self.host = host

    @property
    def up(self) -> frozenset[HostId]:
        return frozenset(
            other for other in HOSTS if frozenset((self.host, other)) not in self.wire.cut
        )

    def send(self, host: HostId, messages: Sequence[Envelope]) -> None:
        self.wire.carry(self.host, host, messages)

    def flush(self) -> None:
        """What is sent here has left already."""


class Host:
    """One host's members, and what it was told is committed."""

    def __init__(
        self, wire: Wire, host: HostId, folder: Path, limits: CompactionLimits | None = None
    ) -> None:
        self.committed: dict[KernelId, list[Entry]] = {}
        self.state: list[bytes] = []
        """What the application has made of the entries of `K`: their payloads."""
        self.restored: list[int] = []
        self.compacted_at: list[int] = []
        self.leaders: list[HostId | None] = []
        self.members = Members(
            host=host,
            folder=folder / host,
            transport=HostCarrier(wire, host),
            clock=SystemClock(),
            rng=random.Random(host),
            on_committed=self._on_committed,
            on_leader_change=lambda _kernel, leader: self.leaders.append(leader),
            hooks=None if limits is None else self,
            limits=limits,
            tick_s=TICK_S,
        )
        wire.hosts[host] = self

    def _on_committed(self, kernel: KernelId, entries: Sequence[Entry]) -> None:
        self.committed.setdefault(kernel, []).extend(entries)
        if kernel == K:
            self.state += [entry.payload for entry in entries]

    def capture(self, kernel: KernelId) -> Callable[[], Awaitable[bytes]]:
        captured = msgspec.msgpack.encode(self.state)

        async def make() -> bytes:
            await asyncio.sleep(0)
            return captured

        return make

    def compacted(self, kernel: KernelId, index: int) -> None:
        self.compacted_at.append(index)

    def restore(self, kernel: KernelId, index: int, state: bytes) -> None:
        self.restored.append(index)
        self.state = msgspec.msgpack.decode(state, type=list[bytes])

    def payloads(self, kernel: KernelId = K) -> list[bytes]:
        return [entry.payload for entry in self.committed.get(kernel, [])]


class Cluster:
    def __init__(self, folder: Path, limits: CompactionLimits | None = None) -> None:
        self.folder = folder
        self.limits = limits
        self.wire = Wire()
        for host in HOSTS:
            self.start(host)

    def start(self, host: HostId) -> Host:
        return Host(self.wire, host, self.folder, self.limits)

    def __getitem__(self, host: HostId) -> Host:
        return self.wire.hosts[host]

    async def open(self, kernel: KernelId = K, *, lead: HostId = A) -> None:
        for host in HOSTS:
            await self[host].members.open(kernel, HOSTS, campaign=host == lead)

    async def shut_down(self) -> None:
        for host in self.wire.hosts.values():
            await host.members.shut_down()
        self.wire.hosts.clear()

    async def restart(self) -> None:
        await self.shut_down()
        for host in HOSTS:
            self.start(host)
        await self.open()

    def leader(self, kernel: KernelId = K) -> HostId | None:
        leaders = {
            host: status
            for host in self.wire.hosts
            if (status := self[host].members.status(kernel)).role is Role.LEADER
        }
        return max(leaders, key=lambda host: leaders[host].term, default=None)


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition; the limit only ends hangs."""
    async with asyncio.timeout(HANG_S):
        while not condition():  # noqa: ASYNC110 - conditions of several objects at once
            await asyncio.sleep(TICK_S / 2)


def run(
    folder: Path,
    story: Callable[[Cluster], Coroutine[object, object, None]],
    limits: CompactionLimits | None = None,
) -> None:
    async def whole() -> None:
        cluster = Cluster(folder, limits)
        try:
            await story(cluster)
        finally:
            await cluster.shut_down()

    asyncio.run(whole())
