"""The controller between a router and agents that do as the test says, at the worst moments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from live_rig import until
from scripted_agents import HOLD, KERNEL, ScriptedCluster

from notebookos_ext.cluster.messages import control as messages
from notebookos_ext.cluster.model import CellId, Outcome, ReplicaId
from notebookos_ext.cluster.routing import CellReplied, InterruptAsked, ShutdownAsked
from notebookos_ext.errors import Infeasible, NotFound, Unavailable
from notebookos_ext.live import attempts
from notebookos_ext.notebook_settings import NotebookSettings

R1, R2, R3 = (ReplicaId(f"{KERNEL}:{n}") for n in (1, 2, 3))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ScriptedCluster]:
    made = ScriptedCluster(tmp_path)
    until(lambda: made.read(lambda i: len(i.view.hosts)) == 3, "three hosts")
    yield made
    made.close()


def begun(_request: Any) -> messages.AttemptBegun:
    return messages.AttemptBegun(index=1)


def held(_request: Any) -> object:
    return HOLD


def on_all(cluster: ScriptedCluster, kind: type, answer: Callable[[Any], Any]) -> None:
    for agent in cluster.agents:
        agent.script[kind] = answer


def open_kernel(cluster: ScriptedCluster) -> None:
    """Three replicas that are ready; the first was the first."""
    cluster.start_kernel()
    for number in (1, 2, 3):
        agent = cluster.host_of(number)
        until(lambda agent=agent: agent.of(messages.LaunchReplica), "a launch")
        cluster.ready(number)
    until(lambda: cluster.view()[1] == ["idle"] * 3, "three idle replicas")


def test_a_member_is_opened_before_its_replica_is_launched(cluster: ScriptedCluster) -> None:
    on_all(cluster, messages.OpenKernel, held)
    cluster.start_kernel()
    agent = cluster.host_of(1)
    until(lambda: messages.OpenKernel in agent.held, "the opening")
    assert agent.of(messages.LaunchReplica) == []
    agent.answer(messages.OpenKernel, messages.Done())
    (launch,) = until(lambda: agent.of(messages.LaunchReplica), "the launch")
    assert (launch.replica, launch.launch, launch.epoch) == (R1, 1, 0)
    (opening,) = agent.of(messages.OpenKernel)
    assert opening.campaign is (opening.members[0] == agent.host)


def test_a_cell_is_started_when_its_attempt_has_begun(cluster: ScriptedCluster) -> None:
    open_kernel(cluster)
    on_all(cluster, messages.BeginAttempt, held)
    cluster.cell("c1")
    agent = cluster.host_of(1)
    until(lambda: messages.BeginAttempt in agent.held, "the attempt")
    assert cluster.router.of("start_cell") == []
    agent.answer(messages.BeginAttempt, messages.AttemptBegun(index=3))
    assert until(lambda: cluster.router.of("start_cell"), "its start") == [
        ("start_cell", KERNEL, "c1", 1, R1)
    ]


def test_an_interrupt_while_the_attempt_begins_takes_the_cell_back(
    cluster: ScriptedCluster,
) -> None:
    open_kernel(cluster)
    on_all(cluster, messages.BeginAttempt, held)
    cluster.cell("c1")
    agent = cluster.host_of(1)
    until(lambda: messages.BeginAttempt in agent.held, "the attempt")
    cluster.controller.from_router(InterruptAsked(KERNEL))
    until(lambda: cluster.router.of("abort_cell"), "the cell is aborted")
    agent.answer(messages.BeginAttempt, messages.AttemptBegun(index=3))
    until(lambda: any(a.of(messages.LoseAttempt) for a in cluster.agents), "LOST is proposed")
    until(lambda: cluster.view()[0] == "idle", "the kernel is idle")
    assert cluster.router.of("start_cell") == []
    assert agent.of(messages.InterruptReplica) == []


def test_an_interrupt_reaches_the_executor_of_a_running_cell(cluster: ScriptedCluster) -> None:
    open_kernel(cluster)
    on_all(cluster, messages.BeginAttempt, begun)
    cluster.cell("c1")
    until(lambda: cluster.router.of("start_cell"), "its start")
    cluster.controller.from_router(InterruptAsked(KERNEL))
    agent = cluster.host_of(1)
    (signal,) = until(lambda: agent.of(messages.InterruptReplica), "the signal")
    assert signal == messages.InterruptReplica(replica=R1, cell=CellId("c1"))


def test_a_refused_attempt_is_tried_elsewhere(cluster: ScriptedCluster) -> None:
    open_kernel(cluster)
    on_all(cluster, messages.BeginAttempt, begun)
    cluster.host_of(1).script[messages.BeginAttempt] = lambda _: messages.AttemptNotBegun(
        reason="the replica lags"
    )
    cluster.cell("c1")
    ((_, _, cell, attempt, replica),) = until(
        lambda: cluster.router.of("start_cell"), "its start elsewhere"
    )
    assert (cell, attempt) == ("c1", 2)
    assert replica in (R2, R3)


def test_an_agent_that_fails_is_a_refusal(cluster: ScriptedCluster) -> None:
    open_kernel(cluster)
    on_all(cluster, messages.BeginAttempt, begun)
    cluster.host_of(1).script[messages.BeginAttempt] = lambda _: messages.Failure(
        error="NoMajority", message="no majority"
    )
    cluster.cell("c1")
    assert until(lambda: cluster.router.of("start_cell"), "its start elsewhere")[0][4] in (R2, R3)


def test_a_lost_executor_ends_its_cell_after_lost_is_committed(cluster: ScriptedCluster) -> None:
    open_kernel(cluster)
    on_all(cluster, messages.BeginAttempt, begun)
    on_all(cluster, messages.LoseAttempt, held)
    cluster.cell("c1")
    until(lambda: cluster.router.of("start_cell"), "its start")
    cluster.exited(1)
    agent = until(
        lambda: next((a for a in cluster.agents if messages.LoseAttempt in a.held), None), "LOST"
    )
    assert ("replica_gone", KERNEL, R1) in cluster.router.said
    assert cluster.router.of("fail_cell") == []
    agent.answer(messages.LoseAttempt, messages.Done())
    ((_, _, cell, name, value, hint),) = until(
        lambda: cluster.router.of("fail_cell"), "the cell ends"
    )
    assert (cell, name) == ("c1", "ExecutorLost")
    assert "killed by signal 9" in value
    assert "earlier cells" in hint


def test_lost_goes_through_another_member_when_one_cannot(cluster: ScriptedCluster) -> None:
    open_kernel(cluster)
    on_all(cluster, messages.BeginAttempt, begun)
    failing = messages.Failure(error="OutcomeUnknown", message="stepped down")
    cluster.agents[0].script[messages.LoseAttempt] = lambda _: failing
    cluster.cell("c1")
    until(lambda: cluster.router.of("start_cell"), "its start")
    cluster.exited(1)
    until(lambda: cluster.router.of("fail_cell"), "the cell ends")
    assert sum(len(agent.of(messages.LoseAttempt)) for agent in cluster.agents) >= 1


def test_a_cell_whose_end_nobody_can_tell_is_not_called_undone(
    cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "PAUSE_S", 0.01)
    monkeypatch.setattr(attempts, "CLOSE_ALL_S", 0.1)
    open_kernel(cluster)
    on_all(cluster, messages.BeginAttempt, begun)
    full = messages.Failure(error="StorageFull", message="no space is left")
    on_all(cluster, messages.LoseAttempt, lambda _: full)
    cluster.cell("c1")
    until(lambda: cluster.router.of("start_cell"), "its start")
    cluster.exited(1)
    ((*_, value, hint),) = until(lambda: cluster.router.of("fail_cell"), "the cell ends")
    assert "whether its changes are kept" in value
    assert "before you run" in hint


def test_a_commit_that_won_is_told_with_the_lost_reply(cluster: ScriptedCluster) -> None:
    open_kernel(cluster)
    on_all(cluster, messages.BeginAttempt, begun)
    on_all(cluster, messages.LoseAttempt, held)
    cluster.cell("c1")
    until(lambda: cluster.router.of("start_cell"), "its start")
    cluster.exited(1)
    agent = until(
        lambda: next((a for a in cluster.agents if messages.LoseAttempt in a.held), None), "LOST"
    )
    agent.notice(
        messages.AttemptEnded(kernel=KERNEL, cell="c1", attempt=1, outcome=Outcome.DONE)  # type: ignore[arg-type]
    )
    agent.answer(messages.LoseAttempt, messages.Done())
    ((*_, value, hint),) = until(lambda: cluster.router.of("fail_cell"), "the cell ends")
    assert "its changes are kept" in value
    assert hint == ""


def test_a_reply_that_was_lost_after_the_commit_does_not_hang_its_client(
    cluster: ScriptedCluster,
) -> None:
    open_kernel(cluster)
    on_all(cluster, messages.BeginAttempt, begun)
    cluster.cell("c1")
    until(lambda: cluster.router.of("start_cell"), "its start")
    ended = messages.AttemptEnded(kernel=KERNEL, cell=CellId("c1"), attempt=1, outcome=Outcome.DONE)
    cluster.host_of(1).notice(ended)
    until(lambda: cluster.view()[0] == "idle", "the attempt is closed")
    cluster.exited(1)
    ((*_, value),) = until(lambda: cluster.router.of("fail_cell"), "the cell ends")
    assert "its changes are kept" in value
    gone = cluster.router.said.index(("replica_gone", KERNEL, R1))
    failed = next(n for n, said in enumerate(cluster.router.said) if said[0] == "fail_cell")
    assert gone < failed, "the router hears the replica out before it gives up on the reply"


def test_a_cell_is_known_by_its_place_in_the_notebook(cluster: ScriptedCluster) -> None:
    open_kernel(cluster)
    on_all(cluster, messages.BeginAttempt, begun)
    cluster.cell("c1", metadata={"cellId": "a3f0"})
    until(lambda: cluster.router.of("start_cell"), "its start")
    cluster.controller.from_router(CellReplied(KERNEL, "c1", 1, "ok"))  # type: ignore[arg-type]
    cluster.cell("c2", metadata={"cellId": 7})
    until(lambda: cluster.router.of("cell_waits"), "the second waits")
    assert cluster.read(lambda i: [c.notebook_cell for c in i.records[KERNEL].cells]) == [
        "",
        "a3f0",
    ]


def test_the_next_cell_waits_for_the_commit_of_the_last(cluster: ScriptedCluster) -> None:
    open_kernel(cluster)
    on_all(cluster, messages.BeginAttempt, begun)
    cluster.cell("c1")
    until(lambda: cluster.router.of("start_cell"), "its start")
    cluster.controller.from_router(CellReplied(KERNEL, "c1", 1, "ok"))  # type: ignore[arg-type]
    cluster.cell("c2")
    until(lambda: cluster.router.of("cell_waits"), "the second waits")
    cluster.host_of(1).notice(
        messages.AttemptEnded(kernel=KERNEL, cell="c1", attempt=1, outcome=Outcome.DONE)  # type: ignore[arg-type]
    )
    until(lambda: len(cluster.router.of("start_cell")) == 2, "the second starts")
    assert cluster.read(lambda i: [c.state for c in i.records[KERNEL].cells]) == ["running", "done"]


def test_words_about_an_older_process_change_nothing(cluster: ScriptedCluster) -> None:
    open_kernel(cluster)
    cluster.exited(1)
    agent = cluster.host_of(1)
    until(lambda: len(agent.of(messages.LaunchReplica)) == 2, "the second launch")
    cluster.ready(1, launch=1)
    cluster.ready(1, launch=2)
    until(lambda: cluster.view()[1] == ["idle"] * 3, "three idle replicas")
    cluster.exited(1, launch=1)
    assert cluster.view()[1] == ["idle"] * 3
    assert len(cluster.router.of("replica_ready")) == 4


def test_a_broken_connection_is_a_lost_host_that_comes_back(cluster: ScriptedCluster) -> None:
    open_kernel(cluster)
    agent = cluster.host_of(2)
    agent.drop()
    until(lambda: agent.attached == 2, "the host is back")
    assert cluster.backend.given_up == [agent.host]
    assert ("replica_gone", KERNEL, R2) in cluster.router.said
    until(lambda: len(agent.of(messages.LaunchReplica)) == 2, "its replica is launched again")
    others = [a for a in cluster.agents if a is not agent]
    lost = [p.lost for a in others for p in a.of(messages.SetPeers) if p.lost]
    assert lost == [(agent.host,)] * 2


def test_requests_that_are_no_cells_follow_the_living(cluster: ScriptedCluster) -> None:
    open_kernel(cluster)
    assert cluster.router.of("set_executor") == [("set_executor", KERNEL, R1)]
    cluster.exited(1)
    _, _, now = until(lambda: cluster.router.of("set_executor")[1:], "another is asked")[0]
    assert now in (R2, R3)


def test_when_no_replica_is_left_requests_wait(cluster: ScriptedCluster) -> None:
    cluster.start_kernel(replicas=1)
    agent = cluster.host_of(1)
    until(lambda: agent.of(messages.LaunchReplica), "a launch")
    cluster.ready(1)
    until(lambda: cluster.view()[1] == ["idle"], "an idle replica")
    cluster.exited(1)
    until(lambda: ("set_executor", KERNEL, None) in cluster.router.said, "requests wait")


def test_a_restart_commits_the_epoch_before_it_launches(cluster: ScriptedCluster) -> None:
    open_kernel(cluster)
    on_all(cluster, messages.NewEpoch, held)
    cluster.start_kernel()
    assert ("restart_kernel", KERNEL) in cluster.router.said
    agent = until(
        lambda: next((a for a in cluster.agents if messages.NewEpoch in a.held), None), "the epoch"
    )
    assert all(len(a.of(messages.LaunchReplica)) == 1 for a in cluster.agents)
    agent.answer(messages.NewEpoch, messages.Done())
    for one in cluster.agents:
        launched = until(lambda one=one: one.of(messages.LaunchReplica)[1:], "the new launch")
        assert (launched[0].epoch, launched[0].launch) == (1, 2)
        assert len(one.of(messages.StopReplica)) == 1


def test_an_epoch_that_is_not_committed_is_proposed_elsewhere(cluster: ScriptedCluster) -> None:
    open_kernel(cluster)
    failing = messages.Failure(error="OutcomeUnknown", message="stepped down")
    cluster.host_of(1).script[messages.NewEpoch] = lambda _: failing
    cluster.start_kernel()
    until(lambda: len(cluster.agents[0].of(messages.LaunchReplica)) == 2, "the new launch")
    assert sum(len(agent.of(messages.NewEpoch)) for agent in cluster.agents) == 2


def test_a_stopped_kernel_is_closed_everywhere_and_forgotten(cluster: ScriptedCluster) -> None:
    open_kernel(cluster)
    cluster.controller.stop_kernel(KERNEL).result(30)
    for agent in cluster.agents:
        (closing,) = agent.of(messages.CloseMember)
        assert closing.delete
    assert cluster.read(lambda i: (dict(i.records), dict(i.view.kernels))) == ({}, {})
    cluster.cell("late")
    until(lambda: cluster.router.of("abort_cell"), "its late cell is aborted")


def test_a_shutdown_request_ends_the_kernel_for_its_owner(cluster: ScriptedCluster) -> None:
    open_kernel(cluster)
    assert cluster.controller.exit_code(KERNEL) is None
    cluster.controller.from_router(ShutdownAsked(KERNEL, restart=False))
    until(lambda: cluster.controller.exit_code(KERNEL) == 0, "the owner sees it")
    until(lambda: all(a.of(messages.CloseMember) for a in cluster.agents), "its end")
    cluster.start_kernel()
    assert cluster.controller.exit_code(KERNEL) is None


def test_a_restart_request_keeps_the_replicas_until_the_owner_restarts(
    cluster: ScriptedCluster,
) -> None:
    open_kernel(cluster)
    cluster.controller.from_router(ShutdownAsked(KERNEL, restart=True))
    cluster.controller.shutdown(KERNEL, restart=True).result(30)
    assert cluster.controller.exit_code(KERNEL) == 0
    assert cluster.view()[1] == ["idle"] * 3
    cluster.start_kernel()
    assert cluster.controller.exit_code(KERNEL) is None
    assert cluster.read(lambda i: i.view.kernels[KERNEL].epoch) == 1


def test_what_no_cluster_could_have_is_rejected_and_forgotten(cluster: ScriptedCluster) -> None:
    with pytest.raises(Infeasible):
        cluster.start_kernel(replicas=5)
    assert cluster.read(lambda i: dict(i.records)) == {}


def test_settings_of_an_unknown_kernel_are_not_found(cluster: ScriptedCluster) -> None:
    with pytest.raises(NotFound, match="no NotebookOS kernel"):
        cluster.controller.change_settings(KERNEL, NotebookSettings(replica_count=1)).result(30)


def test_a_restart_takes_what_the_notebook_newly_asks_for(cluster: ScriptedCluster) -> None:
    from scripted_agents import PLAN

    from notebookos_ext.cluster.model import KernelSpec

    open_kernel(cluster)
    cluster.controller.change_settings(KERNEL, NotebookSettings(1, 1)).result(30)
    spec = KernelSpec(kernel=KERNEL)
    cluster.controller.start_kernel(spec, PLAN, NotebookSettings(gpus_per_cell=0)).result(30)
    until(lambda: cluster.view()[1] in (["starting"], ["idle"]), "one replica, as was set")

    def keys() -> set[bytes]:
        return {o.log_key for agent in cluster.agents for o in agent.of(messages.OpenKernel)}

    until(lambda: len(keys()) == 2, "the new group's own key: nothing of the old one counts in it")
    assert cluster.read(lambda i: i.records[KERNEL].gpus_per_cell) == 0


def test_a_stopped_controller_says_so(tmp_path: Path) -> None:
    stopped = ScriptedCluster(tmp_path, hosts=1)
    stopped.close()
    with pytest.raises(Unavailable, match="was stopped"):
        stopped.read(lambda i: i.at)
    assert stopped.controller.exit_code(KERNEL) == 0


def test_a_silent_agent_is_given_up(tmp_path: Path) -> None:
    silent = ScriptedCluster(tmp_path, hosts=1, lease_s=2.0)
    try:
        agent = silent.agents[0]
        until(lambda: agent.attached, "the host")
        until(lambda: agent.of(messages.RenewLease), "the lease is renewed")
        agent.script[messages.RenewLease] = held
        until(lambda: agent.attached == 2, "another takes its place")
        assert silent.backend.given_up == [agent.host]
    finally:
        silent.close()


def test_held_and_pending_names_are_passed_on_and_forgotten_with_the_process(
    cluster: ScriptedCluster,
) -> None:
    from notebookos_ext.cluster.model import HeldName

    open_kernel(cluster)
    name = HeldName("sock", "socket", "an open socket")
    report = messages.NamespaceReport(
        kernel=KERNEL, replica=R1, held=(name,), pending=("model",), gpu_names=("torch",)
    )
    cluster.host_of(1).notice(report)
    until(
        lambda: (
            cluster.read(lambda i: (i.view.kernels[KERNEL].held, i.view.kernels[KERNEL].pending))
            == ((name,), ("model",))
        ),
        "the names",
    )
    assert cluster.read(lambda i: i.records[KERNEL].gpu_names) == {"torch"}
    cluster.exited(1)
    until(lambda: cluster.read(lambda i: i.view.kernels[KERNEL].held) == (), "no hold")
    agent = cluster.host_of(1)
    until(lambda: len(agent.of(messages.LaunchReplica)) == 2, "the second launch")
    cluster.ready(1, launch=2)
    until(lambda: cluster.view()[1] == ["idle"] * 3, "three idle replicas")
    agent.notice(report)
    until(lambda: cluster.read(lambda i: i.view.kernels[KERNEL].held) == (name,), "held again")


def test_an_agent_that_refuses_the_token_is_tried_again(tmp_path: Path) -> None:
    refusals = iter([messages.Failure(error="Refused", message="the token is another one")])
    agent_script = {messages.Attach: lambda _: next(refusals, None)}
    refusing = ScriptedCluster(tmp_path, hosts=1, script=agent_script)
    try:
        until(lambda: refusing.read(lambda i: len(i.view.hosts)) == 1, "the host")
        assert refusing.backend.given_up == ["host-1"]
        assert len(refusing.agents[0].of(messages.Attach)) == 2
    finally:
        refusing.close()


def test_nonsense_on_the_wire_is_a_lost_host(cluster: ScriptedCluster) -> None:
    agent = cluster.agents[0]
    agent.write(b"\xff\xff\xff\xff")
    until(lambda: agent.attached == 2, "the host is back")
    assert cluster.backend.given_up == [agent.host]


def test_what_an_agent_warns_of_is_kept_once(cluster: ScriptedCluster) -> None:
    warning = messages.AgentWarning(kernel=None, message="the disk is full")
    for _ in range(3):
        cluster.agents[0].notice(warning)
    until(lambda: cluster.changes.count((None, "warning")) == 3, "three warnings")
    found = cluster.read(lambda i: i.warnings)
    assert [w.message for w in found] == ["host-1: the disk is full"]
