"""A replica that was stopped and is not let go on is ended; its kernel is told why."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from host_agents import Hosts

from notebookos_ext.agent.watchdog import StoppedProcesses, Watchdog
from notebookos_ext.cluster.messages.control import ReplicaExited


def test_only_looks_in_a_row_count() -> None:
    states = {1: "T", 2: "S", 3: "T"}
    stopped = StoppedProcesses(3, lambda pid: states.get(pid, ""))
    assert stopped.look([1, 2, 3]) == []
    assert stopped.look([1, 2, 3]) == []
    states[3] = "R"
    assert stopped.look([1, 2, 3]) == [1]
    # It was told; it may take a moment to end.
    assert stopped.look([1, 2, 3]) == []
    states[3] = "T"
    assert stopped.look([3]) == []


def test_what_a_debugger_holds_is_left_alone() -> None:
    stopped = StoppedProcesses(1, lambda _pid: "t")
    assert stopped.look([1]) == []


@pytest.mark.parametrize(("limit_s", "looks"), [(30.0, 15), (1.0, 1), (5.0, 3)])
def test_the_limit_is_a_number_of_looks(limit_s: float, looks: int) -> None:
    slept: list[float] = []
    ended: list[str] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    def end(_pid: int, reason: str) -> None:
        ended.append(reason)
        raise asyncio.CancelledError

    dog = Watchdog(limit_s, pids=lambda: [1], end=end, sleep=sleep, state_of=lambda _pid: "T")
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(dog.watch())
    assert len(slept) == looks
    assert ended == [f"its process was stopped (SIGSTOP) for {limit_s:g} s"]


def test_without_a_limit_nobody_looks() -> None:
    def pids() -> list[int]:
        raise AssertionError

    asyncio.run(Watchdog(0.0, pids=pids, end=lambda _pid, _reason: None).watch())


def test_a_replica_that_stands_still_is_ended_and_told(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path, stopped_replica_s=0.2) as hosts:
            await hosts.open_kernel()
            ready = await hosts.launch(1)
            os.kill(ready.pid, signal.SIGSTOP)
            ended = await hosts["host-1"].notice(ReplicaExited)
            assert ended.pid == ready.pid
            assert ended.reason == "its process was stopped (SIGSTOP) for 0.2 s"
            assert not ended.requested

    asyncio.run(story())
