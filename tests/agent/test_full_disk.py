"""A host whose disk takes no more: what runs there is given up in words, and comes back later."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest
from host_agents import KERNEL, Hosts, begin, until

from notebookos_ext.cluster.messages.control import (
    AgentWarning,
    AttemptBegun,
    AttemptEnded,
    CloseMember,
    Done,
    ReplicaExited,
)

pytestmark = pytest.mark.apart

LONGEST_FILE_BYTES = 200_000
"""To a process that may write no longer files its disk is as good as full."""


def test_a_log_that_cannot_grow_ends_the_replica_and_is_opened_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            host = hosts["host-1"]
            await hosts.open_kernel()
            await hosts.launch(1)
            agent = psutil.Process(hosts.processes["host-1"].pid)
            agent.rlimit(psutil.RLIMIT_FSIZE, (LONGEST_FILE_BYTES, psutil.RLIM_INFINITY))
            kept = 0
            for attempt in range(1, 10):
                answer = await host.ask(begin(f"commit x{attempt} 60000", attempt))
                if not isinstance(answer, AttemptBegun):
                    break
                await until(
                    lambda a=attempt: any(
                        isinstance(n, ReplicaExited)
                        or (isinstance(n, AttemptEnded) and n.attempt == a)
                        for n in host.notices
                    )
                )
                kept += not any(isinstance(n, ReplicaExited) for n in host.notices)
            assert kept >= 1
            exited = await host.notice(ReplicaExited)
            warning = await host.notice(AgentWarning)
            assert "member.wal" in exited.reason
            assert warning.message == exited.reason
            agent.rlimit(psutil.RLIMIT_FSIZE, (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY))
            await hosts.launch(1)
            assert hosts.applied(1) == [f"x{n}" for n in range(1, kept + 1)]
            await host.request(begin("commit y", 50), AttemptBegun)
            await host.notice(AttemptEnded, lambda n: n.attempt == 50)
            await host.request(CloseMember(KERNEL, delete=True), Done)

    asyncio.run(story())
