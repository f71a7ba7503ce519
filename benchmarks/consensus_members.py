"""One process of a measured group: a member of ours, of PySyncObj with the same duties, or raftos.

    python -m benchmarks.consensus_members ENGINE NUMBER FOLDER PORT PORT PORT

It answers JSON requests, one a line, in any order. PySyncObj is made to keep the same promises:
what leaves a process is on its disk before (it flushes nothing by itself), and all is encrypted.
raftos is as it is behind our interface: encrypted by us, and never flushed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import random
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from notebookos_ext.agent.members import Members
from notebookos_ext.agent.raftos_members import RaftosMembers
from notebookos_ext.agent.transport import PeerTransport
from notebookos_ext.clock import SystemClock
from notebookos_ext.cluster.model import HostId, KernelId
from notebookos_ext.errors import NotebookOSError

HOSTS = tuple(HostId(f"h{number}") for number in range(3))
GROUP = KernelId("group-0")
CLOCK = SystemClock()


class Engine(Protocol):
    """What is measured of either."""

    async def open(self, groups: int) -> None:
        """Have so many groups at work."""

    async def commit(self, payload: bytes, patience_s: float) -> bool:
        """Return when it is committed in the first group; False: not this time, try again."""

    def leads(self) -> bool:
        """Whether this process leads the first group."""


class Ours:
    """Members as a host agent has them."""

    def __init__(self, number: int, folder: Path, ports: list[int]) -> None:
        rng = random.Random()
        self._host = HOSTS[number]
        self._peers = {h: f"127.0.0.1:{p}" for h, p in zip(HOSTS, ports, strict=True)}
        self._transport = PeerTransport(
            self._host,
            self._peers[self._host],
            b"t" * 32,
            lambda *arrived: self._members.receive(*arrived),  # noqa: PLW0108 - made below
            lambda peer, up: (self._members.peer_back if up else self._members.peer_lost)(peer),
            rng=rng,
        )
        self._members = self._engine(folder / self._host, rng)
        self._count = itertools.count()
        self._name = f"{self._host}-{rng.getrandbits(32):x}"

    def _engine(self, folder: Path, rng: random.Random) -> Members | RaftosMembers:
        return Members(
            host=self._host,
            folder=folder,
            transport=self._transport,
            clock=CLOCK,
            rng=rng,
            on_committed=lambda *_: None,
        )

    async def open(self, groups: int) -> None:
        if not self._members.kernels:
            await self._transport.start()
            self._transport.set_peers(self._peers)
        for number in range(groups):
            group = KernelId(f"group-{number}")
            await self._members.open(group, HOSTS, campaign=self._host == HOSTS[0])
        await self._members.read_barrier(KernelId(f"group-{groups - 1}"), 120.0)

    async def commit(self, payload: bytes, patience_s: float) -> bool:
        name = f"{self._name}-{next(self._count)}"
        try:
            await self._members.propose(GROUP, payload, name, patience_s)
        except NotebookOSError:
            return False
        return True

    def leads(self) -> bool:
        return self._members.status(GROUP).leader == self._host


class Raftos(Ours):
    """The published raftos, each member a process of its own below this one."""

    def _engine(self, folder: Path, rng: random.Random) -> RaftosMembers:
        return RaftosMembers(
            host=self._host,
            folder=folder,
            transport=self._transport,
            rng=rng,
            on_committed=lambda *_: None,
        )


class PySyncObj:
    """Its replicated object, with the fastest settings that it was stable with."""

    def __init__(self, number: int, folder: Path, ports: list[int]) -> None:
        self._number = number
        self._folder = folder
        self._ports = ports
        self._groups: list[Any] = []

    async def open(self, groups: int) -> None:
        for group in range(len(self._groups), groups):
            self._groups.append(_replicated(self._number, self._folder, self._ports, group))
        for replicated in self._groups:
            while not replicated.isReady():  # noqa: ASYNC110 - it has no event for this
                await asyncio.sleep(0.01)

    async def commit(self, payload: bytes, patience_s: float) -> bool:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[bool] = loop.create_future()

        def finish(_result: object, error: object) -> None:
            loop.call_soon_threadsafe(lambda: done.done() or done.set_result(error == 0))

        self._groups[0].put(payload, callback=finish)
        try:
            async with asyncio.timeout(patience_s):
                return await done
        except TimeoutError:
            return False

    def leads(self) -> bool:
        leader = self._groups[0]._getLeader()
        return leader is not None and leader.address.endswith(f":{self._ports[self._number]}")


def _replicated(number: int, folder: Path, ports: list[int], group: int) -> Any:
    import pysyncobj  # noqa: PLC0415 - only where it is measured
    from pysyncobj import journal, syncobj, transport  # noqa: PLC0415

    # It reports each reconnection; what is measured of them is the time.
    logging.disable(logging.CRITICAL)

    class FlushedJournal(journal.FileJournal):
        """Knows whether the disk lacks anything."""

        dirty = False

        def add(self, *entry: object) -> None:
            super().add(*entry)
            self.dirty = True

        def deleteEntriesFrom(self, first: int) -> None:  # noqa: N802
            super().deleteEntriesFrom(first)
            self.dirty = True

        def flush(self) -> None:
            if self.dirty:
                super().flush()
                self.dirty = False

    class FlushingTransport(transport.TCPTransport):
        """Nothing leaves that the disk has not."""

        def send(self, node: object, message: object) -> bool:
            self._syncObj._SyncObj__raftLog.flush()
            return bool(super().send(node, message))

    class Replicated(pysyncobj.SyncObj):
        """Keeps nothing, so that only its log is measured."""

        def __init__(self, own: str, others: list[str], conf: object) -> None:
            super().__init__(own, others, conf, transportClass=FlushingTransport)

        @pysyncobj.replicated
        def put(self, payload: bytes) -> int:
            return len(payload)

    syncobj.createJournal = FlushedJournal
    addresses = [f"127.0.0.1:{port + 3 * group}" for port in ports]
    own = addresses.pop(number)
    conf = pysyncobj.SyncObjConf(
        password="measured",
        journalFile=str(folder / f"{number}-{group}.journal"),
        autoTickPeriod=0.02,
        raftMinTimeout=0.16,
        raftMaxTimeout=0.35,
        appendEntriesPeriod=0.05,
        appendEntriesUseBatch=False,
        # Longer entries than a batch are cut, and at some lengths put together wrongly.
        appendEntriesBatchSizeBytes=2**22,
        commandsWaitLeader=False,
        # Nor do our members compact here. Without a dump file its compaction would keep in memory
        # alone what the journal forgets, and no member would be ready again after a restart.
        logCompactionMinEntries=2**31,
        logCompactionMinTime=2**31,
        connectionRetryTime=0.1,
        bindAddress=own,
        bindRetryTime=0.1,
    )
    return Replicated(own, addresses, conf)


ENGINES: dict[str, Callable[[int, Path, list[int]], Engine]] = {
    "ours": Ours,
    "pysyncobj": PySyncObj,
    "raftos": Raftos,
}


async def surely_commit(engine: Engine, payload: bytes, patience_s: float = 10.0) -> None:
    """Again and again, until it is."""
    while not await engine.commit(payload, patience_s):  # noqa: ASYNC110 - it tries, and rests
        await asyncio.sleep(0.01)


async def one_after_the_other(
    engine: Engine, count: int, size: int, patience_s: float
) -> list[float]:
    """Milliseconds of each commit."""
    times_ms = []
    for _ in range(count):
        payload = random.randbytes(size)
        begun = CLOCK.monotonic()
        await surely_commit(engine, payload, patience_s)
        times_ms.append((CLOCK.monotonic() - begun) * 1000)
    return times_ms


async def pipelined(engine: Engine, count: int, size: int, window: int, patience_s: float) -> float:
    """Seconds for `count` commits, `window` of them on their way at a time."""
    left = iter(range(count))

    async def one_lane() -> None:
        for _ in left:
            await surely_commit(engine, random.randbytes(size), patience_s)

    begun = CLOCK.monotonic()
    await asyncio.gather(*(one_lane() for _ in range(window)))
    return CLOCK.monotonic() - begun


async def answer(engine: Engine, request: dict[str, Any]) -> object:
    """Do what was asked for."""
    match request["do"]:
        case "open":
            return await engine.open(request["groups"])
        case "leads":
            return engine.leads()
        case "commit":
            patience_s = request.get("patience_s", 10.0)
            return await one_after_the_other(engine, request["count"], request["size"], patience_s)
        case "pipeline":
            patience_s = request.get("patience_s", 10.0)
            arguments = (request["count"], request["size"], request["window"], patience_s)
            return await pipelined(engine, *arguments)
    raise ValueError(request)


async def serve(engine: Engine) -> None:
    """Until the standard input ends."""
    tasks: set[Awaitable[None]] = set()

    async def one(request: dict[str, Any]) -> None:
        result = await answer(engine, request)
        sys.stdout.write(json.dumps({"n": request["n"], "result": result}) + "\n")
        sys.stdout.flush()

    requests: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(requests.put_nowait, line)
        loop.call_soon_threadsafe(requests.put_nowait, "")

    threading.Thread(target=read, daemon=True).start()
    while line := await requests.get():
        tasks.add(asyncio.create_task(one(json.loads(line))))


if __name__ == "__main__":
    name, number, folder, *ports = sys.argv[1:]
    asyncio.run(serve(ENGINES[name](int(number), Path(folder), [int(port) for port in ports])))
