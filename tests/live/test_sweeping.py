"""When the checkpoint store is swept, of what, and when it is not because too little is known."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from notebookos_ext.clock import VirtualClock
from notebookos_ext.cluster.events import KernelStopped
from notebookos_ext.cluster.messages.control import NamedChunks, ReadChunks, StoreSwept, SweepStore
from notebookos_ext.cluster.model import HostId, KernelId, KernelSpec
from notebookos_ext.errors import NoMajority, Unavailable
from notebookos_ext.live import sweeping
from notebookos_ext.live.fleet import Fleet
from notebookos_ext.live.kernel_records import KernelRecord, LaunchPlan
from notebookos_ext.live.sweeping import AFTER_KERNEL_S, Sweeper

KERNEL = KernelId("k")
ONE, TWO = HostId("host-1"), HostId("host-2")
EVERY_S, SPARED_S = 3600.0, 1800.0
PLAN = LaunchPlan("notebookos", "python", {}, "/", b"key")


class Agents:
    """A fleet whose agents name what the test puts in."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.named: dict[HostId, tuple[str, ...]] = {ONE: ("a", "b"), TWO: ("b", "c")}
        self.open = {ONE: (KERNEL,), TWO: (KERNEL,)}
        self.swept: list[tuple[HostId, SweepStore]] = []
        self.error: Exception | None = None

    def hosts(self) -> tuple[HostId, ...]:
        return tuple(self.named)

    def has(self, host: HostId) -> bool:
        return host in self.named

    def agent(self, host: HostId) -> Agent:
        return Agent(self, host)


class Agent:
    def __init__(self, agents: Agents, host: HostId) -> None:
        self._agents = agents
        self._host = host

    async def request(self, body: Any, expected: Any, timeout_s: float) -> Any:
        if isinstance(body, ReadChunks):
            if self._agents.error is not None:
                raise self._agents.error
            self._agents.clock.advance(2.0)
            return NamedChunks(self._agents.named[self._host], self._agents.open[self._host])
        self._agents.swept.append((self._host, body))
        return StoreSwept(3, 300)


class World:
    def __init__(self, every_s: float = EVERY_S) -> None:
        self.clock = VirtualClock(1000.0)
        self.agents = Agents(self.clock)
        record = KernelRecord(KernelSpec(KERNEL), PLAN)
        record.members = (ONE, TWO)
        self.records = {KERNEL: record}
        self.why = ""
        self.sweeper = Sweeper(
            fleet=cast("Fleet", self.agents),
            records=self.records,
            unknown=lambda: self.why,
            named=lambda: {"stored"},
            clock=self.clock,
            every_s=every_s,
            spared_s=SPARED_S,
        )

    def sweep(self, *, dry_run: bool = False) -> StoreSwept:
        return asyncio.run(self.sweeper.sweep(dry_run=dry_run))

    def refusal(self) -> str:
        with pytest.raises(Unavailable) as refused:
            self.sweep()
        assert self.agents.swept == []
        return refused.value.message


def test_what_any_log_or_stored_kernel_names_is_spared() -> None:
    world = World()
    assert world.sweep() == StoreSwept(3, 300)
    ((host, asked),) = world.agents.swept
    assert (host, asked.named, asked.dry_run) == (ONE, ("a", "b", "c", "stored"), False)
    # What was put while the hosts were asked is spared, too.
    assert asked.older_than_s == SPARED_S + 4.0
    world.sweep(dry_run=True)
    assert world.agents.swept[1][1].dry_run


def test_nothing_is_swept_while_a_host_with_a_log_is_away() -> None:
    world = World()
    del world.agents.named[TWO]
    assert "host-2 is away and has a log of kernel k" in world.refusal()
    # Of a kernel that is shut down nothing is needed.
    world.records[KERNEL].closed = True
    assert world.sweep().chunks == 3


def test_nothing_is_swept_while_a_host_has_not_opened_its_log() -> None:
    world = World()
    world.agents.open[TWO] = ()
    assert "host-2 has not opened its log of kernel k yet" in world.refusal()


def test_nothing_is_swept_while_a_kernel_of_an_earlier_server_is_not_back() -> None:
    world = World()
    world.why = "kernel old of an earlier server is not back"
    assert "(kernel old of an earlier server is not back); nothing was swept" in world.refusal()


def test_nothing_is_swept_while_a_host_cannot_say_what_it_needs() -> None:
    world = World()
    world.agents.error = NoMajority("kernel k has no majority")
    assert world.refusal() == (
        "host-1 does not say which chunks it needs: kernel k has no majority; nothing was swept"
    )


def test_nothing_is_swept_without_hosts() -> None:
    world = World()
    world.records.clear()
    world.agents.named.clear()
    assert "no host is there" in world.refusal()


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(sweeping, "LOOK_S", 0.0)
    return World()


async def looks(world: World, times: int = 5) -> int:
    """How often it has swept after a few looks at the clock."""
    for _ in range(times):
        for _ in range(5):
            await asyncio.sleep(0)
    return len(world.agents.swept)


def test_it_sweeps_now_and_then_and_soon_after_a_kernel_ended(running: World) -> None:
    async def story() -> None:
        world = running
        task = asyncio.create_task(world.sweeper.run())
        assert await looks(world) == 0
        world.clock.advance(EVERY_S)
        assert await looks(world) == 1
        world.clock.advance(EVERY_S - 10.0)
        # A sweep that cannot be is no end: the next one comes.
        world.agents.error = NoMajority("no majority")
        world.clock.advance(10.0)
        assert await looks(world) == 1
        world.agents.error = None
        world.sweeper.observe(KernelStopped(KERNEL, 0.0), [])
        assert await looks(world) == 1
        world.clock.advance(AFTER_KERNEL_S)
        assert await looks(world) == 2
        task.cancel()

    asyncio.run(story())


def test_it_may_be_told_to_sweep_only_when_asked() -> None:
    world = World(every_s=0.0)
    asyncio.run(world.sweeper.run())
    assert world.agents.swept == []
    assert world.sweep().chunks == 3
