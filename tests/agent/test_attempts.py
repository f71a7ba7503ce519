"""Attempts on real agents: from BeginAttempt to the commit, and everything that can go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path

from host_agents import KERNEL, Hosts, begin, kill, until
from notebookos_ext.cluster.messages import (
    AttemptBegun,
    AttemptEnded,
    AttemptNotBegun,
    Done,
    LoseAttempt,
    NamespaceReport,
    ReplicaExited,
)
from notebookos_ext.cluster.model import CellId, Outcome, ReplicaId


def run(coroutine: Coroutine[object, object, None]) -> None:
    asyncio.run(coroutine)


def test_a_cell_is_led_committed_and_applied_on_the_standbys(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path, count=3) as hosts:
            await hosts.open_kernel()
            await asyncio.gather(*(hosts.launch(n) for n in (1, 2, 3)))
            await hosts["host-1"].request(begin("commit x", 1), AttemptBegun)
            ended = await hosts["host-1"].notice(AttemptEnded)
            assert (ended.attempt, ended.outcome) == (1, Outcome.DONE)
            report = await hosts["host-1"].notice(NamespaceReport)
            assert [held.name for held in report.held] == ["socket_of_mine"]
            await until(lambda: hosts.applied(2) == hosts.applied(3) == ["x"])
            # The next cell runs elsewhere, and the old executor is told what changed.
            await hosts["host-2"].request(begin("commit y", 2, replica=2), AttemptBegun)
            await until(lambda: hosts.applied(1) == ["y"] and hosts.applied(3) == ["x", "y"])
            assert {"answered": "Committed", "error": ""} in hosts.replica_log(1)

    run(story())
