"""Members in real processes, whose logs are compacted all the time: nothing acknowledged is lost.

They are killed, stopped, without room on their disks and without power, at random moments.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from power_cut import cut

HOSTS = ("h1", "h2", "h3")
HANG_S = 60.0

PROCESS = Path(__file__).parent.parent / "member_process.py"


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
            str(PROCESS),
            self.host,
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

    @contextlib.contextmanager
    def without_room(self) -> Iterator[None]:
        """Its disk is full."""
        sign = self.folder / f"{self.host}.full"
        sign.touch()
        yield
        sign.unlink()

    async def lose_power(self) -> None:
        """Its machine keeps what was flushed."""
        await self.kill()
        cut(self.folder / self.host, self.folder / f"{self.host}.kept")

    async def status(self) -> dict[str, object]:
        answer = await self.ask(do="status")
        assert answer is not None
        return answer["result"]  # type: ignore[return-value]

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
    agents: list[Agent],
    rng: random.Random,
    acknowledged: set[str],
    done: asyncio.Event,
    prefix: str = "p",
) -> None:
    number = 0
    while not done.is_set():
        number += 1
        text = f"{prefix}{number}"
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


async def restart(agents: list[Agent], *, power: bool) -> None:
    """All at once."""
    await asyncio.gather(*(agent.lose_power() if power else agent.kill() for agent in agents))
    await asyncio.gather(*(agent.start() for agent in agents))


async def until_failed(agent: Agent, failed: bool) -> None:
    failure: object = None
    try:
        async with asyncio.timeout(HANG_S):
            while bool(failure := (await agent.status())["failure"]) is not failed:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"{agent.host} says {failure!r} all the time") from None


async def disturb(victim: Agent, what: str, rng: random.Random) -> None:
    match what:
        case "kill" | "power":
            await restart([victim], power=what == "power")
        case "stop":
            victim.signal(signal.SIGSTOP)
            # Past the limit after which its peers give it up, or not.
            await asyncio.sleep(rng.choice([0.2, 1.5]))
            victim.signal(signal.SIGCONT)
        case "full disk":
            with victim.without_room():
                await until_failed(victim, True)
            await until_failed(victim, False)


KINDS = ("kill", "stop", "power", "full disk")
SEEDS = range(1, 21 if os.environ.get("NOTEBOOKOS_FULL") else 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_disturbed_at_random(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)

    async def story() -> None:
        acknowledged: set[str] = set()
        done = asyncio.Event()
        async with running(tmp_path) as agents:
            client = asyncio.create_task(
                propose_all_the_time(agents, random.Random(seed), acknowledged, done)
            )
            # Each kind at least once, in any order.
            for what in rng.sample((*KINDS, "kill", "power"), 6):
                enough = len(acknowledged) + rng.randrange(1, 40)
                async with asyncio.timeout(HANG_S):
                    while len(acknowledged) < enough:  # noqa: ASYNC110
                        await asyncio.sleep(0.005)
                await disturb(rng.choice(agents), what, rng)
            done.set()
            await client
            check(await logs_of(agents), acknowledged)
            for power in (False, True):
                await restart(agents, power=power)
                check(await logs_of(agents), acknowledged)
            statuses = [await agent.status() for agent in agents]
            assert all(status["snapshot_index"] for status in statuses), "nothing was forgotten"

    asyncio.run(story())


def test_all_hosts_lose_power_while_they_work(tmp_path: Path) -> None:
    async def story() -> None:
        acknowledged: set[str] = set()
        async with running(tmp_path) as agents:
            for seed in range(3):
                done = asyncio.Event()
                rng = random.Random(seed)
                client = asyncio.create_task(
                    propose_all_the_time(agents, rng, acknowledged, done, f"{seed}-")
                )
                enough = len(acknowledged) + rng.randrange(1, 60)
                async with asyncio.timeout(HANG_S):
                    while len(acknowledged) < enough:  # noqa: ASYNC110
                        await asyncio.sleep(0.001)
                # What they have on their way is lost with the power, or not.
                await restart(agents, power=True)
                done.set()
                await client
                check(await logs_of(agents), acknowledged)

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
