"""Host agents whose logs forget: kernels come back, hosts that lost their log join anew."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from pathlib import Path

import pytest
from host_agents import KERNEL, LOG_KEY, Hosts, begin, kill, until

from notebookos_ext.cluster.messages.control import (
    AddLearner,
    AttemptBegun,
    AttemptEnded,
    ChangeMembers,
    CloseMember,
    Done,
    Failure,
    Joined,
    JoinGroup,
    MemberReports,
    MembersAre,
    NamedChunks,
    OpenKernel,
    ReadChunks,
    ReadMembers,
    ReplicaExited,
    StoreSwept,
    SweepStore,
)

pytestmark = pytest.mark.apart


async def cell(hosts: Hosts, host: str, words: str, attempt: int, replica: int = 1) -> None:
    await hosts[host].request(begin(words, attempt, replica=replica), AttemptBegun)
    await hosts[host].notice(AttemptEnded, lambda n: n.attempt == attempt)


async def report(hosts: Hosts, host: str):
    answer = await hosts[host].request(ReadMembers(), MemberReports)
    return next(status for status in answer.members if status.kernel == KERNEL)


async def killed(hosts: Hosts, *names: str) -> None:
    """The agents are gone with all that they did not save."""
    for host in names:
        kill(hosts.processes[host].pid)
    for host in names:
        await asyncio.to_thread(hosts.processes[host].wait)
        # Its successor listens under the same name.
        hosts.control_path(host).unlink(missing_ok=True)


async def restarted(hosts: Hosts, *names: str) -> None:
    for host in names:
        hosts.start(host)
    for host in names:
        await hosts.attach(host)
    await hosts.tell_peers()


def opening(hosts: Hosts, *, is_new: bool) -> OpenKernel:
    return OpenKernel(KERNEL, tuple(hosts.names), LOG_KEY, campaign=False, is_new=is_new)


def test_a_replica_gets_what_is_left_of_a_log_that_forgot(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path, compact_entries=20) as hosts:
            await hosts.open_kernel()
            await hosts.launch(1)
            for attempt in range(1, 51):
                await cell(hosts, "host-1", f"commit x{attempt % 3}", attempt)
            await until(lambda: any((tmp_path / "host-1" / "kernels").rglob("snapshot-*")))
            status = await report(hosts, "host-1")
            assert status.snapshot_index >= 20
            assert status.commit_index >= 100
            assert status.log_bytes < 20_000
            # The whole agent is killed: what comes back is the snapshot and the rest of the log.
            await killed(hosts, "host-1")
            await restarted(hosts, "host-1")
            await hosts["host-1"].request(opening(hosts, is_new=False), Done)
            before = len(hosts.applied(1))
            await hosts.launch(1)
            names = hosts.applied(1)[before:]
            assert set(names) == {"x0", "x1", "x2"}
            assert len(names) < 40
            await cell(hosts, "host-1", "commit y", 51)
            await hosts["host-1"].request(CloseMember(KERNEL, delete=True), Done)
            assert not (tmp_path / "host-1" / "kernels" / KERNEL).exists()

    asyncio.run(story())


def test_large_values_of_a_snapshot_go_to_the_store_and_unnamed_chunks_go(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path, compact_entries=20) as hosts:
            await hosts.open_kernel()
            await hosts.launch(1)
            for attempt in range(1, 13):
                await cell(hosts, "host-1", f"commit big{attempt % 8} 700000", attempt)
            await cell(hosts, "host-1", "store kept 5000", 13)
            await cell(hosts, "host-1", "store gone 5000", 14)
            await cell(hosts, "host-1", "store gone 5000", 15)
            log = tmp_path / "host-1" / "kernels"
            await until(lambda: any(log.rglob("snapshot-*")))
            (snapshot,) = log.rglob("snapshot-*")
            assert snapshot.stat().st_size < 6_000_000
            for attempt in range(16, 40):
                await cell(hosts, "host-1", "commit small", attempt)
            chunks = tmp_path / "store" / "chunks"
            before = {path.name for path in chunks.glob("*/*")}
            await until(lambda: list(log.rglob("snapshot-*")) != [snapshot])
            named = set((await hosts["host-1"].request(ReadChunks(), NamedChunks)).digests)
            assert named <= {path.name for path in chunks.glob("*/*")}
            spared = await hosts["host-1"].request(SweepStore(tuple(named), 3600.0), StoreSwept)
            assert spared.chunks == 0, "all of it is new"
            for path in chunks.glob("*/*"):
                os.utime(path, (1, 1))
            swept = await hosts["host-1"].request(SweepStore(tuple(named), 3600.0), StoreSwept)
            assert swept.chunks == len(before - named) > 0
            for _ in range(2):
                asked = ReadMembers(with_store=True)
                told = await hosts["host-1"].request(asked, MemberReports)
                left = sum(path.stat().st_size for path in chunks.glob("*/*"))
                assert told.store_bytes == {KERNEL: left}
            assert (await hosts["host-1"].request(ReadMembers(), MemberReports)).store_bytes == {}
            await hosts.launch(1)
            assert {"kept", "gone", "small", "big1"} <= set(hosts.applied(1))

    asyncio.run(story())


@pytest.mark.parametrize("damage", ["gone", "flipped"])
def test_a_host_whose_log_is_lost_joins_anew_and_counts(tmp_path: Path, damage: str) -> None:
    async def story() -> None:
        async with Hosts(tmp_path, count=3, compact_entries=20) as hosts:
            await hosts.open_kernel()
            await hosts.launch(1)
            for attempt in range(1, 31):
                await cell(hosts, "host-1", f"commit x{attempt % 3}", attempt)
            await killed(hosts, "host-3")
            (path,) = (tmp_path / "host-3" / "kernels").rglob("member.wal")
            if damage == "gone":
                path.unlink()
            else:
                content = bytearray(path.read_bytes())
                content[len(content) // 3] ^= 1
                path.write_bytes(content)
            await restarted(hosts, "host-3")
            failure = await hosts["host-3"].ask(opening(hosts, is_new=False))
            assert isinstance(failure, Failure)
            assert failure.error == "LogLost"
            joined = await hosts["host-3"].request(JoinGroup(KERNEL, LOG_KEY), Joined)
            assert joined.member.startswith("host-3#")
            await hosts["host-2"].request(AddLearner(KERNEL, joined.member), Done)
            everywhere = ChangeMembers(KERNEL, tuple(hosts.names))
            changed = await hosts["host-2"].request(everywhere, MembersAre)
            assert set(changed.members) == set(hosts.names)
            await hosts.launch(3)
            assert set(hosts.applied(3)) >= {"x0", "x1", "x2"}
            # With it and one other the group still commits.
            await killed(hosts, "host-2")
            await hosts.tell_peers(lost=("host-2",))
            await cell(hosts, "host-3", "commit z", 31, replica=3)
            status = await report(hosts, "host-3")
            assert status.member == joined.member
            assert status.failure == ""

    asyncio.run(story())


def test_a_host_that_was_away_gets_the_snapshot_and_its_replica_begins_anew(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with Hosts(tmp_path, count=3, compact_entries=20) as hosts:
            await hosts.open_kernel()
            for number in (1, 3):
                await hosts.launch(number)
            for attempt in range(1, 4):
                await cell(hosts, "host-1", f"commit x{attempt}", attempt)
            await until(lambda: hosts.applied(3) == ["x1", "x2", "x3"])
            stopped = hosts.processes["host-3"]
            stopped.send_signal(19)
            try:
                # In memory a log keeps more than on disk, for those who lag a little.
                for attempt in range(4, 110):
                    await cell(hosts, "host-1", f"commit x{attempt % 3}", attempt)
                await cell(hosts, "host-1", "commit last", 110)
            finally:
                stopped.send_signal(18)
            exited = await hosts["host-3"].notice(ReplicaExited)
            assert "was away for so long" in exited.reason
            await hosts.launch(3)
            assert hosts.applied(3)[-1] == "last"
            await cell(hosts, "host-3", "commit y", 111, replica=3)

    asyncio.run(story())


def test_killed_at_random_moments_with_compaction_on_nothing_is_lost(tmp_path: Path) -> None:
    """All agents at once, and single ones; the replica's host among them."""
    rng = random.Random(7)

    async def story() -> None:
        async with Hosts(tmp_path, count=3, compact_entries=15) as hosts:
            await hosts.open_kernel()
            acknowledged: set[str] = set()
            attempt = 0
            for _ in range(4):
                await hosts.launch(1)
                goal = attempt + rng.randrange(15, 40)
                with contextlib.suppress(Exception):
                    while attempt < goal:
                        attempt += 1
                        name = f"v{attempt}"
                        async with asyncio.timeout(20):
                            await cell(hosts, "host-1", f"commit {name}", attempt)
                        acknowledged.add(name)
                victims = rng.choice([hosts.names, ["host-2", "host-3"], ["host-1"]])
                await killed(hosts, *victims)
                await restarted(hosts, *victims)
                opened = [hosts[h].request(opening(hosts, is_new=False), Done) for h in victims]
                await asyncio.gather(*opened)
                if "host-1" not in victims:
                    continue
                before = len(hosts.applied(1))
                await hosts.launch(1)
                assert acknowledged <= set(hosts.applied(1)[before:])
            statuses = [await report(hosts, host) for host in hosts.names]
            assert all(status.failure == "" for status in statuses)
            assert any(status.snapshot_index > 0 for status in statuses)

    asyncio.run(story())
