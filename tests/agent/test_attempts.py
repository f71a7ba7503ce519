"""Attempts on real agents: from BeginAttempt to the commit, and everything that can go wrong."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from host_agents import HANG_S, KERNEL, Hosts, begin, kill, on_hosts, until

from notebookos_ext.cluster.consensus.ready import Role
from notebookos_ext.cluster.messages.control import (
    AgentWarning,
    AttemptBegun,
    AttemptEnded,
    AttemptNotBegun,
    DevicesReleased,
    Done,
    InterruptReplica,
    LoseAttempt,
    MemberReports,
    NamespaceReport,
    NewEpoch,
    ReadMembers,
    ReleaseDevices,
    ReplicaExited,
    ReplicaProgress,
)
from notebookos_ext.cluster.model import CellId, DeviceId, KernelId, Outcome, replica_id

pytestmark = pytest.mark.apart

OTHER = KernelId("kernel-2")
SIM_0, SIM_1 = "SIM-host-1-0", "SIM-host-1-1"
COMMITTED = {"answered": "Committed", "error": ""}


def release(cell: str, attempt: int, *devices: str) -> ReleaseDevices:
    return ReleaseDevices(
        kernel=KERNEL,
        cell=CellId(cell),
        attempt=attempt,
        replica=replica_id(KERNEL, 1),
        devices=tuple(map(DeviceId, devices)),
    )


def lose(cell: str, attempt: int, replica: int = 1) -> LoseAttempt:
    return LoseAttempt(
        kernel=KERNEL, cell=CellId(cell), attempt=attempt, replica=replica_id(KERNEL, replica)
    )


@on_hosts(count=3, replicas=3)
async def test_a_cell_is_led_committed_and_applied_on_the_standbys(hosts: Hosts) -> None:
    await hosts["host-1"].request(begin("commit x", 1), AttemptBegun)
    ended = await hosts["host-1"].notice(AttemptEnded)
    assert (ended.attempt, ended.outcome) == (1, Outcome.DONE)
    # The report comes first: who may run the next cell depends on it.
    kinds = [type(notice) for notice in hosts["host-1"].notices]
    assert kinds.index(NamespaceReport) < kinds.index(AttemptEnded)
    report = await hosts["host-1"].notice(NamespaceReport)
    assert [held.name for held in report.held] == ["socket_of_mine"]
    await until(lambda: hosts.applied(2) == hosts.applied(3) == ["x"])
    # The next cell runs elsewhere, and the old executor is told what changed.
    await hosts["host-2"].request(begin("commit y", 2, replica=2), AttemptBegun)
    await until(lambda: hosts.applied(1) == ["y"] and hosts.applied(3) == ["x", "y"])
    assert COMMITTED in hosts.replica_log(1)
    progress = await hosts["host-3"].notice(ReplicaProgress, lambda n: n.applied == n.committed > 0)
    assert progress.replica == replica_id(KERNEL, 3)


@on_hosts(count=3, replicas=3)
async def test_the_leader_of_the_group_follows_the_executor(hosts: Hosts) -> None:
    async def leads(host: str) -> bool:
        told = await hosts[host].request(ReadMembers(), MemberReports)
        return told.members[0].role is Role.LEADER

    for attempt, replica in enumerate((2, 3, 1), 1):
        host = f"host-{replica}"
        await hosts[host].request(
            begin(f"commit x{attempt}", attempt, replica=replica), AttemptBegun
        )
        await hosts[host].notice(AttemptEnded, lambda n, a=attempt: n.attempt == a)
        async with asyncio.timeout(HANG_S):
            while not await leads(host):  # noqa: ASYNC110 - as in `until`
                await asyncio.sleep(0.01)
    await until(lambda: hosts.applied(2) == ["x2", "x3"])


@on_hosts(count=3, replicas=3)
async def test_the_old_executor_learns_at_once_that_another_one_leads(hosts: Hosts) -> None:
    await hosts["host-1"].request(begin("commit x", 1), AttemptBegun)
    await hosts["host-1"].notice(AttemptEnded)
    await hosts["host-2"].request(begin("await-interrupt", 2, replica=2), AttemptBegun)
    await until(
        lambda: any(
            fact.get("executor") == replica_id(KERNEL, 2) and fact["names"] == []
            for fact in hosts.replica_log(1)
        )
    )


@on_hosts(count=3, replicas=3)
async def test_a_large_block_goes_through_the_store(hosts: Hosts) -> None:
    await hosts["host-1"].request(begin("store big 3000000", 1), AttemptBegun)
    await hosts["host-1"].notice(AttemptEnded)
    await until(lambda: {"answered": "Chunk", "error": ""} in hosts.replica_log(2))


@on_hosts(count=3, replicas=3)
async def test_a_delta_too_long_for_the_log_is_moved_to_the_store(
    hosts: Hosts, tmp_path: Path
) -> None:
    await hosts["host-1"].request(begin("commit x 5000000", 1), AttemptBegun)
    await hosts["host-1"].notice(AttemptEnded)
    await until(lambda: hosts.applied(2) == ["x"])
    stored = [p for p in (tmp_path / "store" / "chunks").glob("*/*") if p.is_file()]
    assert sum(path.stat().st_size for path in stored) == 5_000_000


@on_hosts(replicas=1)
async def test_a_missing_chunk_closes_the_attempt_and_leaves_the_name_pending(hosts: Hosts) -> None:
    await hosts["host-1"].request(begin("claim x", 1), AttemptBegun)
    ended = await hosts["host-1"].notice(AttemptEnded)
    assert ended.outcome is Outcome.DONE
    report = await hosts["host-1"].notice(NamespaceReport)
    assert report.pending == ("x",)
    warning = await hosts["host-1"].notice(AgentWarning)
    assert warning.message.startswith("x: chunk ")
    await until(lambda: {"answered": "AgentFailure", "error": "NotFound"} in hosts.replica_log(1))


@on_hosts(count=3, replicas=3)
async def test_late_parts_count_until_the_next_cell_is_led(hosts: Hosts) -> None:
    await hosts["host-1"].request(begin("commit x;late y", 1), AttemptBegun)
    await until(lambda: hosts.applied(2) == ["x", "y"])
    waiting = begin("commit x;await-interrupt;late z", 2)
    await hosts["host-1"].request(waiting, AttemptBegun)
    await hosts["host-1"].notice(AttemptEnded, lambda n: n.attempt == 2)
    await hosts["host-2"].request(begin("commit w", 3, replica=2), AttemptBegun)
    await hosts["host-2"].notice(AttemptEnded, lambda n: n.attempt == 3)
    await hosts["host-1"].request(InterruptReplica(replica_id(KERNEL, 1)), Done)
    await until(lambda: {"answered": "AgentFailure", "error": "Refused"} in hosts.replica_log(1))
    assert "z" not in hosts.applied(2)


# ---- devices ------------------------------------------------------------------------------------


@on_hosts()
async def test_devices_are_bound_for_one_cell_at_a_time(hosts: Hosts) -> None:
    host = hosts["host-1"]
    for kernel in (KERNEL, OTHER):
        await hosts.open_kernel(kernel)
        await hosts.launch(1, kernel=kernel)
    await host.request(begin("commit x", 1, devices=(SIM_0, SIM_1)), AttemptBegun)
    await host.notice(AttemptEnded)
    prepared = [f for f in hosts.replica_log(1) if "prepared" in f]
    assert prepared == [{"prepared": [SIM_0, SIM_1], "visible": "", "simulated": True}]
    # The cell has ended, the devices are not given back yet.
    refused = await host.request(
        begin("commit x", 1, devices=(SIM_1,), kernel=OTHER), AttemptNotBegun
    )
    assert refused.busy == (SIM_1,)
    assert "bound to kernel-1:1" in refused.reason
    released = await host.request(release("commit x", 1, SIM_0, SIM_1), DevicesReleased)
    assert released.residual_bytes == 0
    await host.request(begin("commit x", 2, devices=(SIM_1,), kernel=OTHER), AttemptBegun)


@on_hosts()
async def test_a_replica_takes_its_devices_over_and_a_late_release_does_not_part_them(
    hosts: Hosts,
) -> None:
    host = hosts["host-1"]
    for kernel in (KERNEL, OTHER):
        await hosts.open_kernel(kernel)
        await hosts.launch(1, kernel=kernel)
    for attempt in (1, 2):
        await host.request(begin("commit x", attempt, devices=(SIM_0,)), AttemptBegun)
        await host.notice(AttemptEnded, lambda n, a=attempt: n.attempt == a)  # type: ignore[misc]
    await host.request(release("commit x", 1, SIM_0), DevicesReleased)
    other = begin("commit x", 1, devices=(SIM_0,), kernel=OTHER)
    await host.request(other, AttemptNotBegun)
    await host.request(release("commit x", 2, SIM_0), DevicesReleased)
    await host.request(other, AttemptBegun)


@on_hosts(replicas=1)
async def test_a_device_of_another_host_is_refused(hosts: Hosts) -> None:
    refused = await hosts["host-1"].request(
        begin("commit x", 1, devices=("GPU-elsewhere",)), AttemptNotBegun
    )
    assert refused.reason == "this host has no device GPU-elsewhere"


@on_hosts()
async def test_a_dead_replica_holds_no_devices(hosts: Hosts) -> None:
    host = hosts["host-1"]
    for kernel in (KERNEL, OTHER):
        await hosts.open_kernel(kernel)
        await hosts.launch(1, kernel=kernel)
    await host.request(begin("kill", 1, devices=(SIM_0,)), AttemptBegun)
    await host.notice(ReplicaExited)
    await host.request(begin("commit x", 1, devices=(SIM_0,), kernel=OTHER), AttemptBegun)
    # What the scheduler still asks for changes nothing.
    await host.request(release("kill", 1, SIM_0), DevicesReleased)


# ---- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [(), (SIM_0,)])
@on_hosts(count=3)
async def test_a_replica_that_refuses_leaves_nothing_behind(
    hosts: Hosts, devices: tuple[str, ...]
) -> None:
    host = hosts["host-1"]
    await hosts.open_kernel()
    await hosts.launch(1, refuse="CUDA was initialised elsewhere", recycle=True)
    await hosts.launch(2)
    refused = await host.request(begin("commit x", 1, devices=devices), AttemptNotBegun)
    assert refused.reason == "CUDA was initialised elsewhere"
    assert refused.recycle
    await hosts["host-2"].request(begin("commit y", 2, replica=2), AttemptBegun)
    ended = await hosts["host-2"].notice(AttemptEnded)
    assert (ended.attempt, ended.outcome) == (2, Outcome.DONE)
    await hosts.open_kernel(OTHER)
    await hosts.launch(1, kernel=OTHER)
    other = begin("commit z", 1, devices=devices, kernel=OTHER)
    await host.request(other, AttemptBegun)


@on_hosts(count=3)
async def test_a_variable_that_cannot_be_loaded_is_named(hosts: Hosts) -> None:
    await hosts.open_kernel()
    await asyncio.gather(hosts.launch(1), hosts.launch(2, broken="x"), hosts.launch(3))
    await hosts["host-1"].request(begin("commit x", 1), AttemptBegun)
    await hosts["host-1"].notice(AttemptEnded)
    refused = await hosts["host-2"].request(begin("commit y", 2, replica=2), AttemptNotBegun)
    assert refused.reason == "x cannot be loaded here"
    await hosts["host-3"].request(begin("commit y", 3, replica=3), AttemptBegun)


@on_hosts()
async def test_an_attempt_number_is_used_once(hosts: Hosts) -> None:
    host = hosts["host-1"]
    await hosts.open_kernel()
    await hosts.launch(1)
    await host.request(begin("commit x", 2), AttemptBegun)
    await host.notice(AttemptEnded)
    for attempt in (1, 2):
        refused = await host.request(begin("commit y", attempt), AttemptNotBegun)
        assert "another attempt" in refused.reason


@on_hosts()
async def test_a_replica_that_does_not_run_cannot_lead(hosts: Hosts) -> None:
    await hosts.open_kernel()
    refused = await hosts["host-1"].request(begin("commit x", 1), AttemptNotBegun)
    assert refused.reason == "replica kernel-1:1 does not run on host-1"


# ---- losses -------------------------------------------------------------------------------------


@on_hosts(count=3)
async def test_an_executor_killed_in_its_cell_is_told_and_its_attempt_lost(hosts: Hosts) -> None:
    await hosts.open_kernel()
    ready = [await hosts.launch(n) for n in (1, 2, 3)]
    await hosts["host-1"].request(begin("await-interrupt", 1), AttemptBegun)
    kill(ready[0].pid)
    exited = await hosts["host-1"].notice(ReplicaExited)
    assert exited.reason == "killed by signal 9 (SIGKILL): perhaps out of memory"
    assert not exited.requested
    assert exited.pid == ready[0].pid
    # Any agent that is left can close the attempt.
    await hosts["host-3"].request(lose("await-interrupt", 1), Done)
    ended = await hosts["host-3"].notice(AttemptEnded)
    assert ended.outcome is Outcome.LOST
    await hosts["host-2"].request(begin("commit y", 2, replica=2), AttemptBegun)
    await hosts["host-2"].notice(AttemptEnded)


@on_hosts(count=3)
async def test_a_commit_that_was_sent_counts_although_the_process_died_at_once(
    hosts: Hosts,
) -> None:
    host = hosts["host-1"]
    await hosts.open_kernel()
    await asyncio.gather(*(hosts.launch(n) for n in (1, 2, 3)))
    cell = "store big 9000000;kill"
    await host.request(begin(cell, 1), AttemptBegun)
    await host.notice(ReplicaExited)
    kinds = [type(notice) for notice in host.notices]
    assert kinds.index(AttemptEnded) < kinds.index(ReplicaExited)
    # Losing it now changes nothing, and the answer tells how it really ended.
    await hosts["host-2"].request(lose(cell, 1), Done)
    ended = await hosts["host-2"].notice(AttemptEnded)
    assert ended.outcome is Outcome.DONE
    await until(lambda: hosts.applied(2) == hosts.applied(3) == ["big"])


@on_hosts(count=3, replicas=3)
async def test_a_replica_whose_attempt_was_lost_cannot_commit(hosts: Hosts) -> None:
    cell = "await-interrupt;commit x"
    await hosts["host-1"].request(begin(cell, 1), AttemptBegun)
    await hosts["host-2"].request(lose(cell, 1), Done)
    await hosts["host-2"].request(begin("commit y", 2, replica=2), AttemptBegun)
    await hosts["host-2"].notice(AttemptEnded, lambda n: n.attempt == 2)
    await hosts["host-1"].request(InterruptReplica(replica_id(KERNEL, 1)), Done)
    await until(lambda: {"answered": "AgentFailure", "error": "Refused"} in hosts.replica_log(1))
    assert hosts.applied(3) == ["y"]


@on_hosts(count=3, replicas=3)
async def test_an_attempt_that_nobody_closed_does_not_block_the_kernel(hosts: Hosts) -> None:
    await hosts["host-1"].request(begin("await-interrupt", 1), AttemptBegun)
    await hosts["host-2"].request(begin("commit y", 2, replica=2), AttemptBegun)
    await hosts["host-2"].notice(AttemptEnded, lambda n: n.attempt == 2)
    await hosts["host-3"].request(lose("await-interrupt", 1), Done)
    ended = await hosts["host-3"].notice(AttemptEnded)
    assert ended.outcome is Outcome.LOST


@on_hosts(count=3, replicas=3)
async def test_a_new_epoch_fences_what_came_before(hosts: Hosts) -> None:
    await hosts["host-1"].request(begin("commit old", 1), AttemptBegun)
    await hosts["host-1"].notice(AttemptEnded)
    cell = "await-interrupt;commit x"
    await hosts["host-1"].request(begin(cell, 2), AttemptBegun)
    for _ in range(2):
        await hosts["host-2"].request(NewEpoch(KERNEL, 1), Done)
    await hosts.launch(2, epoch=1)
    await hosts["host-1"].request(InterruptReplica(replica_id(KERNEL, 1)), Done)
    await until(lambda: {"answered": "AgentFailure", "error": "Refused"} in hosts.replica_log(1))
    refused = await hosts["host-1"].request(begin("commit x", 3), AttemptNotBegun)
    assert "earlier epoch" in refused.reason
    await hosts["host-2"].request(begin("commit new", 4, replica=2), AttemptBegun)
    await hosts["host-2"].notice(AttemptEnded, lambda n: n.attempt == 4)
    await hosts.launch(3, epoch=1)
    # The third replica's log goes on: it had "old" in its first life only.
    assert hosts.applied(3) == ["old", "new"]


@on_hosts(count=3, replicas=3)
async def test_without_a_majority_nothing_begins_and_afterwards_everything_does(
    hosts: Hosts,
) -> None:
    await hosts["host-1"].request(begin("await-interrupt;commit x", 1), AttemptBegun)
    for host in ("host-2", "host-3"):
        hosts.processes[host].kill()
        hosts.processes[host].wait()
    await hosts["host-1"].request(InterruptReplica(replica_id(KERNEL, 1)), Done)
    await hosts["host-1"].notice(AgentWarning)
    assert not any(isinstance(n, AttemptEnded) for n in hosts["host-1"].notices)
    for host in ("host-2", "host-3"):
        hosts.control_path(host).unlink()
        hosts.start(host)
        await hosts.attach(host)
    await hosts.tell_peers()
    await hosts.open_kernel()
    ended = await hosts["host-1"].notice(AttemptEnded)
    assert ended.outcome is Outcome.DONE
    # A replica that starts from an agent's log of disk has everything.
    await hosts.launch(2)
    assert hosts.applied(2) == ["x"]
