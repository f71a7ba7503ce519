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


def test_a_cell_whose_log_cannot_grow_waits_for_space_and_loses_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            host = hosts["host-1"]
            await hosts.open_kernel()
            await hosts.launch(1)
            agent = psutil.Process(hosts.processes["host-1"].pid)
            agent.rlimit(psutil.RLIMIT_FSIZE, (LONGEST_FILE_BYTES, psutil.RLIM_INFINITY))

            def warned() -> bool:
                return any(isinstance(n, AgentWarning) for n in host.notices)

            begun = 0
            for attempt in range(1, 10):
                answer = await host.ask(begin(f"commit x{attempt} 60000", attempt))
                if not isinstance(answer, AttemptBegun):
                    # The next cell is refused with the reason, and would be tried again.
                    assert "member.wal" in answer.reason
                    break
                begun = attempt
                await until(
                    lambda a=attempt: (
                        warned()
                        or any(isinstance(n, AttemptEnded) and n.attempt == a for n in host.notices)
                    )
                )
                if warned():
                    break
            assert begun >= 1
            agent.rlimit(psutil.RLIMIT_FSIZE, (psutil.RLIM_INFINITY, psutil.RLIM_INFINITY))
            await host.notice(AttemptEnded, lambda n: n.attempt == begun)
            assert not any(isinstance(n, ReplicaExited) for n in host.notices)
            await host.request(begin("commit y", 50), AttemptBegun)
            await host.notice(AttemptEnded, lambda n: n.attempt == 50)
            await host.request(CloseMember(KERNEL, delete=True), Done)

    asyncio.run(story())
