"""Kernels go into the checkpoint store, hosts forget them, and new groups begin with them."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest
from host_agents import KERNEL, LOG_KEY, Hosts, begin

from notebookos_ext.cluster.messages.control import (
    AttemptBegun,
    AttemptEnded,
    CloseMember,
    Done,
    Failure,
    KeepState,
    NewEpoch,
    OpenKernel,
    RestoreState,
    StateKept,
)
from notebookos_ext.cluster.snapshots import StoredState

pytestmark = pytest.mark.apart

NEW_KEY = b"n" * 32


async def cell(hosts: Hosts, host: str, words: str, attempt: int, replica: int = 1) -> None:
    await hosts[host].request(begin(words, attempt, replica=replica), AttemptBegun)
    await hosts[host].notice(AttemptEnded, lambda n: n.attempt == attempt)


async def kept(hosts: Hosts, epoch: int = 0) -> StoredState:
    answer = await hosts["host-1"].request(KeepState(KERNEL, epoch), StateKept)
    return StoredState(
        kernel=KERNEL,
        key=LOG_KEY,
        epoch=answer.epoch,
        at=1.0,
        replica_count=len(hosts.names),
        index=answer.index,
        document=answer.document,
        chunks=answer.chunks,
        size_bytes=answer.size_bytes,
    )


async def forgotten(hosts: Hosts, root: Path) -> None:
    """The kernel is closed everywhere, and no host has anything of it."""
    for host in hosts.names:
        await hosts[host].request(CloseMember(KERNEL, delete=True), Done)
        assert not (root / host / "kernels" / KERNEL).exists()
        for path in (root / host / "replicas").glob("*"):
            path.unlink()


async def opened_anew(hosts: Hosts) -> None:
    opening = [
        hosts[host].request(
            OpenKernel(KERNEL, tuple(hosts.names), NEW_KEY, campaign=host == "host-1"), Done
        )
        for host in hosts.names
    ]
    await asyncio.gather(*opening)


@pytest.mark.parametrize("compact_entries", [10, 4000])
def test_a_new_group_begins_with_what_the_store_has(tmp_path: Path, compact_entries: int) -> None:
    async def story() -> None:
        async with Hosts(tmp_path, count=3, compact_entries=compact_entries) as hosts:
            await hosts.open_kernel()
            await hosts["host-1"].request(NewEpoch(KERNEL, 2), Done)
            await hosts.launch(1, epoch=2, free=True)
            for attempt in range(1, 12):
                await cell(hosts, "host-1", f"commit x{attempt % 3}", attempt)
            await cell(hosts, "host-1", "store chunked 5000", 12)
            # Long enough for several entries of the new log.
            for attempt in range(13, 20):
                await cell(hosts, "host-1", f"commit big{attempt} 700000", attempt)
            state = await kept(hosts, epoch=2)
            assert (state.epoch, len(state.document)) == (2, 1)
            await forgotten(hosts, tmp_path)
            await opened_anew(hosts)
            await hosts["host-2"].request(RestoreState(KERNEL, state), Done)
            again = await hosts["host-3"].request(RestoreState(KERNEL, state), Done)
            assert again == Done(), "it is there already"
            bigs = {f"big{attempt}" for attempt in range(13, 20)}
            for number in (2, 3):
                await hosts.launch(number, epoch=2, free=True)
                assert {"x0", "x1", "x2", "chunked"} | bigs == set(hosts.applied(number))
            # Attempts go on where they were, and what comes now is told to all.
            late = await hosts["host-2"].ask(begin("commit late", 19, replica=2))
            assert not isinstance(late, AttemptBegun)
            for attempt in range(20, 40):
                await cell(hosts, "host-2", f"commit y{attempt % 2}", attempt, replica=2)
            await hosts.launch(1, epoch=2)
            names = {"x0", "x1", "x2", "y0", "y1", "chunked"}
            assert names | bigs == set(hosts.applied(1))

    asyncio.run(story())


def test_a_host_that_fails_in_the_middle_is_followed_by_another(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path, count=3) as hosts:
            await hosts.open_kernel()
            await hosts.launch(1, free=True)
            for attempt in range(1, 6):
                await cell(hosts, "host-1", f"commit big{attempt} 700000", attempt)
            state = await kept(hosts)
            await forgotten(hosts, tmp_path)
            await opened_anew(hosts)
            # All of them at once, and one of them dies of it.
            asked = [hosts[host].ask(RestoreState(KERNEL, state)) for host in hosts.names]
            hosts.processes["host-1"].kill()
            await asyncio.gather(*asked, return_exceptions=True)
            await hosts.tell_peers(lost=("host-1",))
            await hosts["host-2"].request(RestoreState(KERNEL, state), Done)
            await hosts.launch(2)
            assert set(hosts.applied(2)) == {f"big{attempt}" for attempt in range(1, 6)}

    asyncio.run(story())


def test_what_is_not_at_rest_is_not_stored(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_kernel()
            await hosts.launch(1)

            async def refusal(epoch: int = 0) -> str:
                failure = await hosts["host-1"].ask(KeepState(KERNEL, epoch))
                assert isinstance(failure, Failure)
                assert failure.error == "Refused"
                return failure.message

            assert "epoch 0, not in 1" in await refusal(1)
            await cell(hosts, "host-1", "commit x", 1)
            assert "socket_of_mine (a test says so)" in await refusal()
            await hosts["host-1"].request(begin("await-interrupt;commit x", 2), AttemptBegun)
            assert "has not ended" in await refusal()

    asyncio.run(story())


def test_a_state_that_is_damaged_or_of_somebody_else_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_kernel()
            await hosts.launch(1, free=True)
            await cell(hosts, "host-1", "store kept 5000", 1)
            state = await kept(hosts)
            await forgotten(hosts, tmp_path)
            await opened_anew(hosts)

            async def refusal(state: StoredState) -> str:
                failure = await hosts["host-1"].ask(RestoreState(KERNEL, state))
                assert isinstance(failure, Failure)
                return failure.message

            other = msgspec.structs.replace(state, key=b"of another kernel")
            assert "not signed with its key" in await refusal(other)
            chunks = {path.name: path for path in (tmp_path / "store" / "chunks").glob("*/*")}
            assert chunks.keys() == set(state.chunks)
            (document,) = state.document
            for digest, path in chunks.items():
                aside = shutil.move(path, tmp_path / "aside")
                message = await refusal(state)
                assert "not in the" in message or "never put into" in message
                if digest == document.digest:
                    path.write_bytes(b"something else")
                    assert "does not match its digest" in await refusal(state)
                shutil.move(aside, path)
            await hosts["host-1"].request(RestoreState(KERNEL, state), Done)
            await hosts.launch(1)
            assert hosts.applied(1) == ["kept"]

    asyncio.run(story())


def test_a_log_that_has_begun_takes_no_state(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_kernel()
            await hosts.launch(1, free=True)
            await cell(hosts, "host-1", "commit x", 1)
            failure = await hosts["host-1"].ask(RestoreState(KERNEL, await kept(hosts)))
            assert isinstance(failure, Failure)
            assert "has begun without its state" in failure.message

    asyncio.run(story())
