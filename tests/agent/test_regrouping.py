"""A host that goes on with a kernel alone: what it knows counts, what the others say does not."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest
from host_agents import KERNEL, LOG_KEY, Hosts, begin, until

from notebookos_ext.agent.kernels import group_of
from notebookos_ext.cluster.messages.control import (
    AddLearner,
    AttemptBegun,
    AttemptEnded,
    ChangeMembers,
    CloseMember,
    Done,
    Failure,
    GroupPrepared,
    InterruptReplica,
    Joined,
    JoinGroup,
    MemberReports,
    MembersAre,
    NewEpoch,
    OpenKernel,
    PrepareGroup,
    ReadMembers,
    ReplicaReady,
    SwitchGroup,
)
from notebookos_ext.cluster.model import HostId, Outcome, replica_id

pytestmark = pytest.mark.apart

NEW_KEY = b"n" * 32
OTHERS = ("host-2", "host-3")


async def cell(hosts: Hosts, words: str, attempt: int, replica: int = 1) -> None:
    host = hosts[f"host-{replica}"]
    await host.request(begin(words, attempt, replica=replica), AttemptBegun)
    await host.notice(AttemptEnded, lambda n: n.attempt == attempt)


async def lose_others(hosts: Hosts) -> None:
    for host in OTHERS:
        hosts.processes[host].kill()
        hosts.processes[host].wait()
        await hosts[host].until_lost()
        hosts.control_path(host).unlink()
    await hosts.tell_peers(lost=OTHERS)


async def bring_back(hosts: Hosts) -> None:
    for host in OTHERS:
        hosts.start(host)
        await hosts.attach(host)
    await hosts.tell_peers()


async def last_index(hosts: Hosts, host: str) -> int:
    told = await hosts[host].request(ReadMembers(), MemberReports)
    return told.members[0].last_index


def groups(root: Path, host: str) -> set[str]:
    return {path.parent.name for path in (root / host / "kernels" / KERNEL).glob("*/member.wal")}


async def go_on(hosts: Hosts) -> GroupPrepared:
    prepared = await hosts["host-1"].request(PrepareGroup(KERNEL, NEW_KEY), GroupPrepared)
    await hosts["host-1"].request(SwitchGroup(KERNEL, NEW_KEY), Done)
    return prepared


@pytest.mark.parametrize("compact_entries", [10, 4000])
def test_what_runs_runs_on_and_its_commit_counts(tmp_path: Path, compact_entries: int) -> None:
    async def story() -> None:
        async with Hosts(tmp_path, count=3, compact_entries=compact_entries) as hosts:
            await hosts.open_kernel()
            ready = await hosts.launch(1, free=True)
            for attempt in range(1, 13):
                await cell(hosts, f"commit x{attempt % 3}", attempt)
            request = begin("await-interrupt;commit late", 13)
            await hosts["host-1"].request(request, AttemptBegun)
            before = await last_index(hosts, "host-1")
            await lose_others(hosts)
            # The cell ends, and its end is in no other log.
            await hosts["host-1"].request(InterruptReplica(replica_id(KERNEL, 1)), Done)
            while await last_index(hosts, "host-1") == before:  # noqa: ASYNC110 - as in `until`
                await asyncio.sleep(0.01)
            prepared = await go_on(hosts)
            assert prepared.uncertain >= 1
            assert prepared.last_closed_attempt == 13
            ended = await hosts["host-1"].notice(AttemptEnded, lambda n: n.attempt == 13)
            assert ended.outcome is Outcome.DONE
            assert groups(tmp_path, "host-1") == {group_of(NEW_KEY)}
            # The same process goes on, and a new one has everything.
            for attempt in range(14, 40):
                await cell(hosts, f"commit y{attempt % 2}", attempt)
            assert not [n for n in hosts["host-1"].notices if isinstance(n, ReplicaReady)][1:]
            assert ready.pid
            await hosts.launch(1, free=True)
            names = set(hosts.applied(1))
            assert {"x0", "x1", "x2", "late", "y0", "y1"} <= names

            # The agent itself may end: the new group is what it finds.
            hosts.processes["host-1"].send_signal(signal.SIGKILL)
            hosts.processes["host-1"].wait()
            await hosts["host-1"].until_lost()
            hosts.control_path("host-1").unlink()
            hosts.start("host-1")
            await hosts.attach("host-1")
            opening = OpenKernel(KERNEL, (HostId("host-1"),), NEW_KEY, campaign=True, is_new=False)
            await hosts["host-1"].request(opening, Done)
            await hosts.launch(1, free=True)
            await cell(hosts, "commit z", 40)

    asyncio.run(story())


def test_old_members_that_come_back_cannot_vote_and_learn_anew(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path, count=3) as hosts:
            await hosts.open_kernel()
            await hosts["host-1"].request(NewEpoch(KERNEL, 1), Done)
            await hosts.launch(1, epoch=1, free=True)
            await cell(hosts, "commit a", 1)
            await lose_others(hosts)
            await go_on(hosts)
            await cell(hosts, "commit b", 2)
            await bring_back(hosts)
            # Whoever still had the old key could open the old group: the new one hears none of it.
            for host in OTHERS:
                opening = OpenKernel(KERNEL, tuple(hosts.names), LOG_KEY, False, is_new=False)
                await hosts[host].request(opening, Done)
            await hosts["host-2"].request(NewEpoch(KERNEL, 2), Done)
            await cell(hosts, "commit c", 3)
            told = await hosts["host-1"].request(ReadMembers(), MemberReports)
            assert told.members[0].membership.everybody == ("host-1",)
            # One that has the old group open does not take part in the new one.
            refused = await hosts["host-2"].ask(JoinGroup(KERNEL, NEW_KEY))
            assert isinstance(refused, Failure)
            assert "another log key" in refused.message
            for host in OTHERS:
                await hosts[host].request(CloseMember(KERNEL, delete=True), Done)
                assert groups(tmp_path, host) == set()
                joined = await hosts[host].request(JoinGroup(KERNEL, NEW_KEY), Joined)
                assert joined.member != host, "a name that voted is never given again"
                await hosts["host-1"].request(AddLearner(KERNEL, joined.member), Done)
            voters = await hosts["host-1"].request(
                ChangeMembers(KERNEL, tuple(hosts.names)), MembersAre
            )
            assert set(voters.members) == set(hosts.names)
            await hosts.launch(2, epoch=1, free=True)
            assert {"a", "b", "c"} == set(hosts.applied(2))
            # The survivor is one of three now.
            hosts.processes["host-1"].kill()
            await cell(hosts, "commit d", 4, replica=2)

    asyncio.run(story())


def test_what_cannot_be_founded_leaves_the_old_group_as_it_was(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path, count=3) as hosts:
            await hosts.open_kernel()
            await hosts.launch(1, free=True)
            await cell(hosts, "commit a", 1)
            await lose_others(hosts)
            in_the_way = tmp_path / "host-1" / "kernels" / KERNEL / group_of(NEW_KEY)
            in_the_way.touch()
            failed = await hosts["host-1"].ask(PrepareGroup(KERNEL, NEW_KEY))
            assert isinstance(failed, Failure)
            in_the_way.unlink()
            # Switching to what was never prepared changes nothing.
            unknown = await hosts["host-1"].ask(SwitchGroup(KERNEL, NEW_KEY))
            assert isinstance(unknown, Failure)
            await bring_back(hosts)
            for host in OTHERS:
                opening = OpenKernel(KERNEL, tuple(hosts.names), LOG_KEY, False, is_new=False)
                await hosts[host].request(opening, Done)
            await cell(hosts, "commit b", 2)
            await hosts.launch(2, free=True)
            assert {"a", "b"} == set(hosts.applied(2))

    asyncio.run(story())


@pytest.mark.parametrize("again", ["opened", "prepared"])
def test_who_did_not_hear_that_it_was_prepared_goes_on(tmp_path: Path, again: str) -> None:
    """In the old group when others come back, or in a new one; its replica runs on."""

    async def story() -> None:
        async with Hosts(tmp_path, count=3) as hosts:
            await hosts.open_kernel()
            await hosts.launch(1, free=True)
            await cell(hosts, "commit a", 1)
            await lose_others(hosts)
            await hosts["host-1"].request(PrepareGroup(KERNEL, b"l" * 32), GroupPrepared)
            if again == "opened":
                opening = OpenKernel(KERNEL, tuple(hosts.names), LOG_KEY, False, is_new=False)
                await hosts["host-1"].request(opening, Done)
                late = await hosts["host-1"].ask(SwitchGroup(KERNEL, b"l" * 32))
                assert isinstance(late, Failure)
                await bring_back(hosts)
                for host in OTHERS:
                    await hosts[host].request(opening, Done)
            else:
                await go_on(hosts)
                assert groups(tmp_path, "host-1") == {group_of(NEW_KEY)}
            await cell(hosts, "commit b", 2)
            assert len([n for n in hosts["host-1"].notices if isinstance(n, ReplicaReady)]) == 1
            await hosts.launch(1, free=True)
            assert {"a", "b"} == set(hosts.applied(1))

    asyncio.run(story())


def test_a_group_that_was_prepared_and_never_used_is_forgotten(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path, count=3) as hosts:
            await hosts.open_kernel()
            await hosts.launch(1, free=True)
            await cell(hosts, "commit a", 1)
            await lose_others(hosts)
            await hosts["host-1"].request(PrepareGroup(KERNEL, NEW_KEY), GroupPrepared)
            # The controller ends here; the next one knows the old key alone.
            await hosts.attach("host-1")
            await hosts["host-1"].request(CloseMember(KERNEL, delete=False), Done)
            await bring_back(hosts)
            await hosts.open_kernel()
            await until(lambda: groups(tmp_path, "host-1") == {group_of(LOG_KEY)})
            await hosts.launch(1, free=True)
            await cell(hosts, "commit b", 2)
            await hosts.launch(3, free=True)
            assert {"a", "b"} == set(hosts.applied(3))

    asyncio.run(story())
