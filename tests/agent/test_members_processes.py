"""Members in real processes, killed and stopped at random moments: nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

HOSTS = ("h1", "h2", "h3")
HANG_S = 60.0

AGENT = """
import asyncio, json, random, sys
from pathlib import Path
from notebookos_ext.agent.members import Members
from notebookos_ext.agent.transport import PeerTransport
from notebookos_ext.clock import SystemClock
from notebookos_ext.errors import NotebookOSError

HOSTS, host, folder, sockets = ("h1", "h2", "h3"), *sys.argv[1:4]

async def answer(members, line):
    request = json.loads(line)
    try:
        if request["do"] == "propose":
            payload = request["id"].encode() + bytes(request.get("size", 0))
            result = await members.propose("k", payload, request["id"], 3.0)
        else:
            await members.read_barrier("k", 20.0)
            result = [entry.proposal_id for entry in members.committed_from("k", 0)]
        print(json.dumps({"n": request["n"], "result": result}), flush=True)
    except NotebookOSError as error:
        print(json.dumps({"n": request["n"], "error": type(error).__name__}), flush=True)

async def main():
    transport = PeerTransport(
        host, f"{sockets}/{host}.peer", b"t" * 32,
        lambda peer, messages: members.receive(peer, messages),
        lambda peer, up: (members.peer_back if up else members.peer_lost)(peer),
        rng=random.Random(), ping_s=0.1, silent_pings=10,
    )
    members = Members(
        host=host, folder=Path(folder) / host, transport=transport, clock=SystemClock(),
        rng=random.Random(), on_committed=lambda kernel, entries: None, tick_s=0.05,
    )
    await transport.start()
    transport.set_peers({peer: f"{sockets}/{peer}.peer" for peer in HOSTS})
    await members.open("k", HOSTS, campaign=host == "h1")
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    tasks = set()
    while line := await reader.readline():
        tasks.add(asyncio.create_task(answer(members, line)))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await members.shut_down()
    await transport.close()

asyncio.run(main())
"""


class Agent:
    """One process; requests fail with None when it dies."""

    def __init__(self, host: str, folder: Path) -> None:
        self.host = host
        self.folder = folder
        self.process: asyncio.subprocess.Process | None = None
        self.stopped = False
        self._asked: dict[int, asyncio.Future[dict[str, object] | None]] = {}
        self._answers = False
        self._count = 0
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            AGENT,
            self.host,
            str(self.folder),
            str(self.folder),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self.stopped = False
        self._answers = True
        self._reader = asyncio.create_task(self._read(self.process))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            answer = json.loads(line)
            waiting = self._asked.pop(answer["n"], None)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)
        self._answers = False
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_result(None)
        self._asked.clear()

    async def ask(self, **request: str | int) -> dict[str, object] | None:
        if not self._answers:
            return None
        assert self.process is not None
        assert self.process.stdin is not None
        self._count += 1
        number = self._count
        self._asked[number] = asyncio.get_running_loop().create_future()
        with contextlib.suppress(ConnectionError):
            self.process.stdin.write(json.dumps({"n": number, **request}).encode() + b"\n")
        waiting = self._asked[number]
        async with asyncio.timeout(HANG_S):
            return await waiting

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.stopped = number is signal.SIGSTOP
        self.process.send_signal(number)

    async def kill(self) -> None:
        if self.process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        await self.process.wait()
        assert self._reader is not None
        await self._reader

    async def end(self) -> int:
        """Let it end by itself."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.close()
        async with asyncio.timeout(HANG_S):
            code = await self.process.wait()
        assert self._reader is not None
        await self._reader
        return code


@contextlib.asynccontextmanager
async def running(folder: Path) -> AsyncIterator[list[Agent]]:
    agents = [Agent(host, folder) for host in HOSTS]
    try:
        for agent in agents:
            await agent.start()
        yield agents
    finally:
        for agent in agents:
            await agent.kill()


async def logs_of(agents: list[Agent]) -> list[list[str]]:
    """Every member's committed proposals, once each has caught up."""
    logs = []
    for agent in agents:
        answer = await agent.ask(do="read")
        assert answer is not None
        assert "result" in answer, answer
        logs.append(answer["result"])
    return logs  # type: ignore[return-value]


def check(logs: list[list[str]], acknowledged: set[str]) -> None:
    longest = max(logs, key=len)
    for log in logs:
        assert log == longest[: len(log)], "two orders"
        assert len(set(log)) == len(log), "applied twice"
        assert acknowledged <= set(log), "acknowledged and lost"


async def propose_all_the_time(
    agents: list[Agent], rng: random.Random, acknowledged: set[str], done: asyncio.Event
) -> None:
    number = 0
    while not done.is_set():
        number += 1
        text = f"p{number}"
        size = rng.choice([0, 0, 0, 2_000, 100_000])
        while not done.is_set():
            # A client repeats with the same id, with whoever is there, until it is told.
            agent = rng.choice(agents)
            if agent.stopped:
                await asyncio.sleep(0.01)
                continue
            answer = await agent.ask(do="propose", id=text, size=size)
            if answer and "result" in answer:
                acknowledged.add(text)
                break
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_and_stopped_at_random(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)

    async def story() -> None:
        acknowledged: set[str] = set()
        done = asyncio.Event()
        async with running(tmp_path) as agents:
            client = asyncio.create_task(
                propose_all_the_time(agents, random.Random(seed), acknowledged, done)
            )
            for _ in range(5):
                enough = len(acknowledged) + rng.randrange(1, 40)
                async with asyncio.timeout(HANG_S):
                    while len(acknowledged) < enough:  # noqa: ASYNC110
                        await asyncio.sleep(0.005)
                victim = rng.choice(agents)
                if rng.random() < 0.7:
                    await victim.kill()
                    await victim.start()
                else:
                    victim.signal(signal.SIGSTOP)
                    # Past the limit after which its peers give it up, or not.
                    await asyncio.sleep(rng.choice([0.2, 1.5]))
                    victim.signal(signal.SIGCONT)
            done.set()
            await client
            check(await logs_of(agents), acknowledged)
            # All at once, as when the machine loses power (but for what its disk cached).
            for agent in agents:
                await agent.kill()
            for agent in agents:
                await agent.start()
            check(await logs_of(agents), acknowledged)
            assert len(acknowledged) > 5

    asyncio.run(story())


def test_agents_end_cleanly_and_start_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(tmp_path) as agents:
            answers = await asyncio.gather(
                *(agent.ask(do="propose", id=agent.host) for agent in agents)
            )
            assert all(answer and "result" in answer for answer in answers)
            assert [await agent.end() for agent in agents] == [0, 0, 0]
            assert not list(tmp_path.glob("*.peer"))  # noqa: ASYNC240
            for agent in agents:
                await agent.start()
            check(await logs_of(agents), set(HOSTS))

    asyncio.run(story())
