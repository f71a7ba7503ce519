"""Whatever is put, committed, superseded and swept, in any order: a named chunk is never lost."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import Executor, Future
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from notebookos_ext.agent.chunks import TRUSTED_S, Chunks
from notebookos_ext.clock import VirtualClock
from notebookos_ext.cluster.digests import chunk_digest
from notebookos_ext.storage.memory import MemoryStore

HOSTS = 2
CHUNKS = [bytes([number]) * 8 for number in range(2)]
DIGESTS = [chunk_digest(data) for data in CHUNKS]
SPARED_S = 1800.0
"""The least that the settings allow."""

hosts = st.integers(0, HOSTS - 1)
chunks = st.integers(0, len(CHUNKS) - 1)
some_chunks = st.sets(chunks, min_size=1)


class Inline(Executor):
    """Calls at once: which call comes between which others is the machine's choice."""

    def submit(self, call: Any, *arguments: Any, **named: Any) -> Future[Any]:  # type: ignore[override]
        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments, **named))
        except Exception as error:  # noqa: BLE001 - the caller sees it
            future.set_exception(error)
        return future


class Sweeping(RuleBasedStateMachine):
    """Hosts that share a store, one log, and a sweep whose two steps lie apart."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = VirtualClock(10_000.0)
        self.store = MemoryStore(clock=self.clock)
        self.hosts = [self._host() for _ in range(HOSTS)]
        self.log: set[str] = set()
        """What counts now."""
        self.under_way: list[tuple[int, frozenset[str]]] = []
        """Commits whose chunks are there, and whose entries are not committed yet."""
        self.read: tuple[float, set[str]] | None = None

    def _host(self) -> Chunks:
        return Chunks(self.store, Inline(), clock=self.clock, rng=random.Random(1))

    @initialize()
    def begin(self) -> None:
        self.store.put(DIGESTS[0], CHUNKS[0])

    @rule(host=hosts, chunk=chunks)
    def put(self, host: int, chunk: int) -> None:
        async def putting() -> None:
            done = asyncio.Event()
            self.hosts[host].put(DIGESTS[chunk], CHUNKS[chunk], done.set)
            await done.wait()

        self.loop.run_until_complete(putting())

    @rule(host=hosts, named=some_chunks)
    def propose(self, host: int, named: set[int]) -> None:
        """A replica may name what it put long ago: its agent looks whether it is there."""
        digests = frozenset(DIGESTS[n] for n in named)
        if not self.loop.run_until_complete(self.hosts[host].failures(digests)):
            self.under_way.append((host, digests))

    @precondition(lambda self: self.under_way)
    @rule(newest=st.booleans())
    def commit(self, newest: bool) -> None:
        host, digests = self.under_way.pop(-1 if newest else 0)
        self.log |= digests
        self.hosts[host].committed(digests)

    @rule(named=some_chunks)
    def supersede(self, named: set[int]) -> None:
        self.log -= {DIGESTS[n] for n in named}

    @rule(seconds=st.sampled_from([2 * SPARED_S, TRUSTED_S - 1]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(host=hosts)
    def restart(self, host: int) -> None:
        """With the agent goes what it remembers, and what it had not committed."""
        self.hosts[host] = self._host()
        self.under_way = [each for each in self.under_way if each[0] != host]

    @precondition(lambda self: self.read is None)
    @rule()
    def read_chunks(self) -> None:
        named = set(self.log)
        for host in self.hosts:
            host.doubt()
            named.update(host.loose())
        for _, digests in self.under_way:
            named |= digests
        self.read = (self.clock.monotonic(), named)

    @precondition(lambda self: self.read is not None)
    @rule()
    def sweep(self) -> None:
        assert self.read is not None
        read_at, named = self.read
        self.read = None
        self.store.sweep(frozenset(named), SPARED_S + self.clock.monotonic() - read_at)

    @precondition(lambda self: self.read is None)
    @rule()
    def sweep_at_once(self) -> None:
        self.read_chunks()
        self.sweep()

    @invariant()
    def nothing_that_is_named_is_lost(self) -> None:
        assert self.log <= self.store._chunks.keys()

    def teardown(self) -> None:
        self.loop.close()


TestSweeping = Sweeping.TestCase
TestSweeping.settings = settings(max_examples=100, stateful_step_count=50)
