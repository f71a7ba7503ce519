"""Replica processes under real agents: started, replaced, ended, explained."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Coroutine
from pathlib import Path

import msgspec
import psutil
import pytest
from host_agents import KERNEL, Hosts, begin, is_running, until

from notebookos_ext.cluster.messages.control import (
    AttemptBegun,
    AttemptEnded,
    CloseMember,
    Done,
    InterruptReplica,
    NewEpoch,
    ReplicaExited,
    ReplicaReady,
    StopReplica,
)
from notebookos_ext.cluster.model import replica_id
from notebookos_ext.errors import LaunchFailed, NotFound, Refused

pytestmark = pytest.mark.apart


def run(coroutine: Coroutine[object, object, None]) -> None:
    asyncio.run(coroutine)


def templates_of(hosts: Hosts, host: str) -> list[psutil.Process]:
    """Children that lead no session; replicas do."""
    found = []
    for process in psutil.Process(hosts.processes[host].pid).children():
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(process.pid) != process.pid:
                found.append(process)
    return found


def test_a_launch_that_is_repeated_starts_one_process(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            host = hosts["host-1"]
            await hosts.open_kernel()
            request = hosts.launch_request(1)
            await asyncio.gather(*(host.request(request, Done) for _ in range(3)))
            await host.request(request, Done)
            await host.notice(ReplicaReady)
            greetings = [fact for fact in hosts.replica_log(1) if "seed" in fact]
            assert greetings == [{"visible": None, "seed": "7"}]

    run(story())


def test_a_later_launch_replaces_the_process_and_replays_the_log(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            host = hosts["host-1"]
            await hosts.open_kernel()
            old = hosts.launch_request(1)
            await host.request(old, Done)
            first = await host.notice(ReplicaReady)
            for attempt, name in enumerate("xyz", start=1):
                await host.request(begin(f"commit {name}", attempt), AttemptBegun)
                await host.notice(AttemptEnded, lambda n, a=attempt: n.attempt == a)  # type: ignore[misc]
            assert hosts.applied(1) == []
            second = await hosts.launch(1)
            assert hosts.applied(1) == ["x", "y", "z"]
            assert first.pid != second.pid
            assert not is_running(first.pid)
            exited = await host.notice(ReplicaExited)
            assert (exited.launch, exited.requested) == (old.launch, True)
            with pytest.raises(Refused, match="launch 1 of kernel-1:1 is over"):
                await host.request(old, Done)

    run(story())


def test_a_launch_for_an_epoch_that_is_over_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_kernel()
            await hosts["host-1"].request(NewEpoch(KERNEL, 2), Done)
            with pytest.raises(Refused, match="epoch 1 of kernel kernel-1 is over"):
                await hosts["host-1"].request(hosts.launch_request(1, epoch=1), Done)

    run(story())


def test_a_launch_for_an_epoch_to_come_is_ready_when_it_has_begun(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            host = hosts["host-1"]
            await hosts.open_kernel()
            await host.request(hosts.launch_request(1, epoch=1), Done)
            await until(lambda: hosts.replica_log(1))
            assert not any(isinstance(n, ReplicaReady) for n in host.notices)
            await host.request(NewEpoch(KERNEL, 1), Done)
            await host.notice(ReplicaReady)

    run(story())


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("exit 3", "exited with status 3"),
        ("exit 0", "exited with status 0"),
        ("kill", "killed by signal 9 (SIGKILL): perhaps out of memory"),
    ],
)
def test_how_a_process_ended_is_told_in_words(tmp_path: Path, cell: str, words: str) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_kernel()
            ready = await hosts.launch(1)
            await hosts["host-1"].request(begin(cell, 1), AttemptBegun)
            exited = await hosts["host-1"].notice(ReplicaExited)
            assert (exited.reason, exited.requested) == (words, False)
            assert (exited.pid, exited.launch) == (ready.pid, ready.launch)

    run(story())


def test_a_stopped_replica_says_that_it_was_asked_to(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            host = hosts["host-1"]
            await hosts.open_kernel()
            ready = await hosts.launch(1)
            for _ in range(2):
                await host.request(StopReplica(ready.replica, grace_s=30.0), Done)
            assert not is_running(ready.pid)
            exited = await host.notice(ReplicaExited)
            assert exited.requested

    run(story())


def test_a_replica_that_will_not_end_is_killed_after_its_grace(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            host = hosts["host-1"]
            await hosts.open_kernel()
            ready = await hosts.launch(1, stubborn=True)
            await host.request(StopReplica(ready.replica, grace_s=0.2), Done)
            assert not is_running(ready.pid)
            assert (await host.notice(ReplicaExited)).reason.startswith("killed by signal 9")

    run(story())


def test_what_a_replica_started_ends_with_it_and_at_the_latest_with_its_agent(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        children: list[int] = []
        async with Hosts(tmp_path) as hosts:
            host = hosts["host-1"]
            await hosts.open_kernel()
            await hosts.launch(1)
            await host.request(begin("spawn;spawn-in-session;await-interrupt", 1), AttemptBegun)
            await until(lambda: len([f for f in hosts.replica_log(1) if "child" in f]) == 2)
            children += [f["child"] for f in hosts.replica_log(1) if "child" in f]
            detached, attached = children
            await host.request(StopReplica(replica_id(KERNEL, 1), grace_s=0.2), Done)
            await until(lambda: not is_running(attached))
            # One that has its own session outlives its replica, as under plain Jupyter …
            assert is_running(detached)
        # … but not the cluster.
        assert not any(map(is_running, children))

    run(story())


def test_an_interrupt_reaches_the_replica(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            host = hosts["host-1"]
            await hosts.open_kernel()
            with pytest.raises(NotFound, match="does not run on host-1"):
                await host.request(InterruptReplica(replica_id(KERNEL, 1)), Done)
            await hosts.launch(1)
            await host.request(begin("await-interrupt;commit x", 1), AttemptBegun)
            await until(lambda: {"waits": True} in hosts.replica_log(1))
            await host.request(InterruptReplica(replica_id(KERNEL, 1)), Done)
            await host.notice(AttemptEnded)

    run(story())


def test_a_closed_member_leaves_no_process_and_no_file(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            host = hosts["host-1"]
            await hosts.open_kernel()
            ready = await hosts.launch(1)
            assert list((tmp_path / "host-1" / "kernels").iterdir())
            for _ in range(2):
                await host.request(CloseMember(KERNEL, delete=True), Done)
            assert not is_running(ready.pid)
            assert list((tmp_path / "host-1" / "kernels").iterdir()) == []
            assert list((tmp_path / "host-1" / "replicas").iterdir()) == []
            with pytest.raises(NotFound, match="kernel kernel-1 is not open on host-1"):
                await host.request(hosts.launch_request(1), Done)

    run(story())


def test_many_launches_leave_no_descriptor_behind(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_kernel()
            agent = psutil.Process(hosts.processes["host-1"].pid)
            await hosts.launch(1)
            await hosts.launch(1)
            before = agent.num_fds()
            for _ in range(10):
                await hosts.launch(1)
            await until(lambda: agent.num_fds() <= before)

    run(story())


def test_the_last_words_of_a_replica_that_never_served_are_told(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            host = hosts["host-1"]
            await hosts.open_kernel()
            for words in ("ModuleNotFoundError: No module named 'torch.cuda'", "no room"):
                request = hosts.launch_request(1, dead=words)
                await host.request(request, Done)
                await host.notice(ReplicaExited, lambda n, r=request: n.launch == r.launch)  # type: ignore[misc]
            first, second = (n.reason for n in host.notices if isinstance(n, ReplicaExited))
            assert "has no module torch; install it with" in first
            assert second.endswith("cannot run a replica: it exited with status 1 (no room)")

    run(story())


# ---- interpreters -------------------------------------------------------------------------------


def test_a_template_that_was_killed_is_started_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_kernel()
            await hosts.launch(1)
            (template,) = templates_of(hosts, "host-1")
            template.kill()
            await until(lambda: [p.pid for p in templates_of(hosts, "host-1")] != [template.pid])
            await until(lambda: templates_of(hosts, "host-1"))
            await hosts.launch(1)

    run(story())


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_kernel()
            request = msgspec.structs.replace(hosts.launch_request(1), python="/no/such/python")
            with pytest.raises(LaunchFailed, match="/no/such/python cannot be started: No such"):
                await hosts["host-1"].request(request, Done)

    run(story())


def test_a_module_that_an_interpreter_lacks_is_named(tmp_path: Path) -> None:
    async def story() -> None:
        async with Hosts(tmp_path, environment={"BREAK_TEMPLATE": "1"}) as hosts:
            await hosts.open_kernel()
            with pytest.raises(
                LaunchFailed, match=r"no module ipykernel; install it with: \S+ -m pip"
            ):
                await hosts["host-1"].request(hosts.launch_request(1), Done)

    run(story())


def test_an_interpreter_of_another_installation_finds_our_package_and_no_other(
    tmp_path: Path,
) -> None:
    bare = tmp_path / "bare-python"
    base = Path(sys.base_prefix) / "bin" / "python3"
    bare.write_text(f'#!/bin/sh\nexec {base} -S "$@"\n')
    bare.chmod(0o700)

    async def story() -> None:
        async with Hosts(tmp_path) as hosts:
            await hosts.open_kernel()
            request = msgspec.structs.replace(hosts.launch_request(1), python=str(bare))
            with pytest.raises(LaunchFailed, match="has no module msgspec; install it with"):
                await hosts["host-1"].request(request, Done)

    run(story())
