"""Pre-warmed replicas of a real agent: they wait, become what is launched, and are counted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import psutil
from fake_interpreter import write_interpreter
from host_agents import HANG_S, Controller, Hosts, is_running, kill, until

from notebookos_ext.cluster.messages.control import (
    Done,
    LaunchReplica,
    PrewarmedExited,
    PrewarmedReady,
    ReplicaReady,
    StartPrewarmed,
    StopPrewarmed,
)


def hosts(root: Path, **settings: Any) -> Hosts:
    python = write_interpreter(root / "usual")
    return Hosts(root, python=python, templates=(python,), **settings)


def ready(host: Controller) -> list[int]:
    return [notice.pid for notice in host.notices if isinstance(notice, PrewarmedReady)]


async def prewarm(host: Controller, count: int) -> list[int]:
    """Start so many more; their processes."""
    before = ready(host)
    await host.request(StartPrewarmed(count), Done)
    await until(lambda: len(ready(host)) == len(before) + count)
    return [pid for pid in ready(host) if pid not in before]


async def launch(hosts: Hosts, **changes: Any) -> int:
    """Launch the replica from the pool; its process."""
    request: LaunchReplica = msgspec.structs.replace(
        hosts.launch_request(1), prewarmed=True, **changes
    )
    host = hosts["host-1"]
    await host.request(request, Done)
    notice = await host.notice(ReplicaReady, lambda n: n.launch == request.launch)
    return notice.pid


def test_one_that_waits_becomes_the_replica_that_is_launched(tmp_path: Path) -> None:
    async def body() -> None:
        async with hosts(tmp_path) as agents:
            await agents.open_kernel()
            waiting = await prewarm(agents["host-1"], 2)
            pid = await launch(agents, env={"PLAN": "{}", "GREETING": "hello"}, cwd="/")
            assert pid in waiting
            assert psutil.Process(pid).cwd() == "/"
            # What it says goes into its own log, as with any other replica.
            assert agents.replica_log(1)[0]["seed"] == "7"
            other = await launch(agents)
            assert {pid, other} == set(waiting)
            await until(lambda: not is_running(pid))
            # The pool is empty: it starts as always.
            assert await launch(agents) not in waiting

    asyncio.run(asyncio.wait_for(body(), HANG_S))


def test_one_that_ends_is_told_and_no_longer_counted_on(tmp_path: Path) -> None:
    async def body() -> None:
        async with hosts(tmp_path) as agents:
            await agents.open_kernel()
            host = agents["host-1"]
            (pid,) = await prewarm(host, 1)
            kill(pid)
            exited = await host.notice(PrewarmedExited)
            assert exited.ready
            assert "killed by signal 9" in exited.reason
            assert await launch(agents) != pid

    asyncio.run(asyncio.wait_for(body(), HANG_S))


def test_they_end_when_they_are_not_wanted_and_with_their_agent(tmp_path: Path) -> None:
    async def body() -> None:
        async with hosts(tmp_path) as agents:
            host = agents["host-1"]
            waiting = await prewarm(host, 3)
            await host.request(StopPrewarmed(2), Done)
            await until(lambda: sum(is_running(pid) for pid in waiting) == 1)
            agents.processes["host-1"].kill()
            await until(lambda: not any(is_running(pid) for pid in waiting))
            assert not [n for n in host.notices if isinstance(n, PrewarmedExited)]

    asyncio.run(asyncio.wait_for(body(), HANG_S))


def test_another_controller_begins_to_count_anew(tmp_path: Path) -> None:
    async def body() -> None:
        async with hosts(tmp_path) as agents:
            waiting = await prewarm(agents["host-1"], 2)
            await agents.attach("host-1")
            await until(lambda: not any(is_running(pid) for pid in waiting))
            assert len(await prewarm(agents["host-1"], 1)) == 1

    asyncio.run(asyncio.wait_for(body(), HANG_S))


def test_the_pool_follows_the_interpreter_that_is_launched(tmp_path: Path) -> None:
    async def body() -> None:
        async with hosts(tmp_path) as agents:
            await agents.open_kernel()
            host = agents["host-1"]
            waiting = await prewarm(host, 1)
            other = write_interpreter(tmp_path / "other")
            pid = await launch(agents, python=other)
            assert pid not in waiting
            # It was counted as used, so it must not stay.
            await until(lambda: not is_running(waiting[0]))
            (next_pid,) = await prewarm(host, 1)
            assert await launch(agents, python=other) == next_pid

    asyncio.run(asyncio.wait_for(body(), HANG_S))


def test_what_cannot_be_started_is_told(tmp_path: Path) -> None:
    async def body() -> None:
        async with hosts(tmp_path, environment={"BREAK_TEMPLATE": "1"}) as agents:
            host = agents["host-1"]
            await host.request(StartPrewarmed(1), Done)
            exited = await host.notice(PrewarmedExited)
            assert not exited.ready
            assert "has no module ipykernel" in exited.reason

    asyncio.run(asyncio.wait_for(body(), HANG_S))


def test_a_launch_that_is_refused_uses_its_one_up(tmp_path: Path) -> None:
    async def body() -> None:
        async with hosts(tmp_path) as agents:
            await agents.open_kernel()
            host = agents["host-1"]
            first = agents.launch_request(1)
            await launch(agents)
            (pid,) = await prewarm(host, 1)
            late = msgspec.structs.replace(first, prewarmed=True)
            answer = await host.ask(late)
            assert "is over" in answer.message
            await until(lambda: not is_running(pid))

    asyncio.run(asyncio.wait_for(body(), HANG_S))
