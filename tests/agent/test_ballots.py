"""Elections on real agents: ballots are committed, told by everybody in order, and bind nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from host_agents import HANG_S, KERNEL, Hosts, begin, until

from notebookos_ext.cluster.messages.control import (
    AttemptBegun,
    AttemptEnded,
    BallotCommitted,
    CastBallot,
    Done,
    Failure,
)
from notebookos_ext.cluster.model import CellId, KernelId, replica_id

pytestmark = pytest.mark.apart

OTHER = KernelId("kernel-2")


def run(story: Coroutine[object, object, None]) -> None:
    asyncio.run(asyncio.wait_for(story, HANG_S))


def cast(attempt: int, replica: int, gpus: int = 1) -> CastBallot:
    return CastBallot(
        kernel=KERNEL,
        cell=CellId(f"c{attempt}"),
        attempt=attempt,
        replica=replica_id(KERNEL, replica),
        gpus=gpus,
    )


def told(hosts: Hosts, host: int, attempt: int) -> list[BallotCommitted]:
    """What one host has told of an election, in its order."""
    notices = hosts[f"host-{host}"].notices
    return [n for n in notices if isinstance(n, BallotCommitted) and n.attempt == attempt]


async def opened(hosts: Hosts) -> None:
    await hosts.open_kernel()
    await asyncio.gather(*(hosts.launch(n) for n in (1, 2, 3)))


def test_every_host_tells_the_ballots_in_the_order_of_the_log(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path, count=3) as hosts:
            await opened(hosts)
            await asyncio.gather(*(hosts[f"host-{n}"].request(cast(1, n), Done) for n in (1, 2, 3)))
            await until(lambda: all(len(told(hosts, n, 1)) == 3 for n in (1, 2, 3)))
            assert told(hosts, 1, 1) == told(hosts, 2, 1) == told(hosts, 3, 1)
            for ballot in told(hosts, 1, 1):
                host = ballot.replica.rpartition(":")[2]
                assert (ballot.lead, ballot.devices) == (True, (f"SIM-host-{host}-0",))
            # Nothing is bound: any of them can still lead, and only one does.
            begun = begin("commit x", 1, replica=2, devices=("SIM-host-2-0",))
            await hosts["host-2"].request(begun, AttemptBegun)
            await hosts["host-2"].notice(AttemptEnded)

    run(story())


def test_a_host_without_enough_free_gpus_yields(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path, count=3) as hosts:
            await opened(hosts)
            await hosts.open_kernel(OTHER)
            await hosts.launch(1, kernel=OTHER)
            taken = begin("await-interrupt", 1, kernel=OTHER, devices=("SIM-host-1-0",))
            await hosts["host-1"].request(taken, AttemptBegun)
            await hosts["host-1"].request(cast(1, 1, gpus=2), Done)
            (ballot,) = told(hosts, 1, 1)
            assert (ballot.lead, ballot.devices) == (False, ())
            assert ballot.reason == "host-1 has 1 of 2 GPUs free"
            await hosts["host-1"].request(cast(2, 1, gpus=1), Done)
            (ballot,) = told(hosts, 1, 2)
            assert (ballot.lead, ballot.devices) == (True, ("SIM-host-1-1",))
            await hosts["host-1"].request(cast(3, 1, gpus=0), Done)
            assert told(hosts, 1, 3)[0].lead

    run(story())


def test_a_replica_that_is_not_there_yields(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path, count=3) as hosts:
            await hosts.open_kernel()
            await hosts["host-2"].request(cast(1, 2), Done)
            (ballot,) = told(hosts, 2, 1)
            assert not ballot.lead
            assert "does not run on host-2" in ballot.reason

    run(story())


def test_a_ballot_that_comes_too_late_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path, count=3) as hosts:
            await opened(hosts)
            await hosts["host-1"].request(begin("commit x", 2), AttemptBegun)
            await hosts["host-1"].notice(AttemptEnded)
            answer: Any = await hosts["host-2"].ask(cast(2, 2))
            assert isinstance(answer, Failure)
            assert answer.error == "Refused"
            assert not told(hosts, 2, 2)

    run(story())


def test_an_attempt_that_nobody_closed_does_not_stop_the_next_election(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path, count=3) as hosts:
            await opened(hosts)
            await hosts["host-1"].request(begin("await-interrupt", 1), AttemptBegun)
            await hosts["host-2"].request(cast(2, 2), Done)
            assert [ballot.lead for ballot in told(hosts, 2, 2)] == [True]

    run(story())
