"""The cluster's metrics as Prometheus reads them, from a real scheduler's events."""

from __future__ import annotations

import msgspec
import pytest
from builders import Cluster
from prometheus_client import CollectorRegistry

from notebookos_ext.cluster import actions as a
from notebookos_ext.cluster import events as e
from notebookos_ext.cluster.consensus.ready import Role
from notebookos_ext.cluster.consensus.replicated_log import MemberStatus
from notebookos_ext.cluster.model import HostId, KernelId, Outcome
from notebookos_ext.cluster.options import Options, PrewarmOptions
from notebookos_ext.live.metrics import Metrics


class Measured(Cluster):
    """A scheduler with metrics."""

    def __init__(self, options: Options | None = None) -> None:
        self.registry = CollectorRegistry()
        self.metrics: Metrics | None = None
        super().__init__(hosts=3, gpus=2, options=options)
        self.metrics = Metrics(self.scheduler.view, self.registry)

    def do(self, event: e.Event) -> list[a.Action]:
        actions = super().do(event)
        if self.metrics is not None:
            self.metrics.observe(event, actions)
        return actions

    def value(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)


@pytest.fixture
def cluster() -> Measured:
    return Measured()


def test_gauges_tell_the_cluster_at_each_tick(cluster: Measured) -> None:
    cluster.kernel(gpus_per_cell=2)
    cluster.run("c", 2)
    cluster.lose_host("host-3")
    cluster.tick()
    assert cluster.value("notebookos_hosts", state="ready") == 2
    assert cluster.value("notebookos_hosts", state="lost") == 1
    assert cluster.value("notebookos_gpus_provisioned") == 4
    assert cluster.value("notebookos_gpus_bound") == 2
    # Three replicas of a kernel that asks for two GPUs, over four GPUs.
    assert cluster.value("notebookos_subscription_ratio") == 1.5
    assert cluster.value("notebookos_kernels", state="busy") == 1
    assert cluster.value("notebookos_replicas", state="executing") == 1
    cluster.stop()
    cluster.tick()
    assert cluster.value("notebookos_kernels", state="busy") == 0


def test_a_gpu_cell_is_counted_once_with_what_it_held(cluster: Measured) -> None:
    cluster.kernel(gpus_per_cell=2)
    cluster.submit("c", 2)
    cluster.now = 3.0
    cluster.started("c")
    cluster.now = 13.0
    cluster.closed("c", Outcome.FAILED)
    cluster.now = 14.0
    cluster.released("c")
    assert cluster.value("notebookos_cells_total", outcome="failed") == 1
    assert cluster.value("notebookos_cell_wait_seconds_sum", gpus="2") == 3.0
    assert cluster.value("notebookos_cell_run_seconds_sum", gpus="2") == 10.0
    assert cluster.value("notebookos_gpu_seconds_bound_total") == 28.0


def test_executors_that_stay_and_change_are_told_apart(cluster: Measured) -> None:
    cluster.kernel()
    for number in range(3):
        cluster.run(f"c{number}")
        cluster.finish(f"c{number}")
    assert cluster.value("notebookos_attempts_total", executor="same") == 2
    cluster.replica_lost("k:1")
    cluster.run("elsewhere")
    assert cluster.value("notebookos_attempts_total", executor="other") == 1
    assert cluster.value("notebookos_replicas_lost_total") == 1


def test_members_are_told_by_role_with_what_their_logs_hold(cluster: Measured) -> None:
    assert cluster.metrics is not None
    leader = MemberStatus(KernelId("k"), Role.LEADER, 3, HostId("host-1"), 9, 9, 9, False)
    behind = msgspec.structs.replace(
        leader, role=Role.FOLLOWER, delivered_index=4, log_bytes=100, leader_changes=2
    )
    k = KernelId("k")
    hosts = [HostId(f"host-{number}") for number in (1, 2, 3)]
    cluster.metrics.note_members(
        {host: {k: member} for host, member in zip(hosts, (leader, behind, behind), strict=True)}
    )
    assert cluster.value("notebookos_members", role="leader") == 1
    assert cluster.value("notebookos_members", role="follower") == 2
    assert cluster.value("notebookos_log_bytes") == 200
    assert cluster.value("notebookos_entries_behind") == 5
    assert cluster.value("notebookos_leader_changes") == 4
    one = {"kernel": "k", "host": "host-2"}
    assert cluster.value("notebookos_member_role", **one, role="follower") == 1
    of_one = {
        "term": 3,
        "last_index": 9,
        "commit_index": 9,
        "applied_index": 4,
        "entries_behind": 5,
        "snapshot_index": 0,
        "log_bytes": 100,
        "leader_changes": 2,
    }
    for name, value in of_one.items():
        assert cluster.value(f"notebookos_member_{name}", **one) == value, name
    leads = msgspec.structs.replace(behind, role=Role.LEADER)
    cluster.metrics.note_members({HostId("host-2"): {k: leads}})
    assert cluster.value("notebookos_member_role", **one, role="leader") == 1
    assert cluster.value("notebookos_member_role", **one, role="follower") is None
    cluster.metrics.note_members({})
    assert cluster.value("notebookos_members", role="leader") == 0
    assert cluster.value("notebookos_member_term", **one) is None


def test_of_many_members_those_furthest_behind_are_told(
    cluster: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster.metrics is not None
    monkeypatch.setattr("notebookos_ext.live.metrics.MEMBERS_TOLD_MAX", 2)
    host = HostId("host-1")
    cluster.metrics.note_members(
        {
            host: {
                KernelId(name): MemberStatus(
                    KernelId(name), Role.LEADER, 1, host, 9, 9, applied, False
                )
                for name, applied in (("a", 9), ("b", 3), ("c", 8))
            }
        }
    )
    assert cluster.value("notebookos_members_untold") == 1
    for kernel, behind in (("b", 6), ("c", 1)):
        told = cluster.value("notebookos_member_entries_behind", kernel=kernel, host="host-1")
        assert told == behind
    of_a = cluster.value("notebookos_member_entries_behind", kernel="a", host="host-1")
    assert of_a is None


def test_launches_out_of_the_pool_are_told_apart() -> None:
    cluster = Measured(Options(prewarm=PrewarmOptions(per_host=1)))
    cluster.tick()
    cluster.prewarmed("host-1")
    cluster.prewarmed("host-2")
    cluster.tick()
    assert cluster.value("notebookos_prewarmed_replicas") == 2
    cluster.request("k", 3)
    cluster.tick()
    assert cluster.value("notebookos_replica_launches_total", prewarmed="yes") == 2
    assert cluster.value("notebookos_replica_launches_total", prewarmed="no") == 1
    assert cluster.value("notebookos_prewarmed_replicas") == 0


def test_elections_are_counted() -> None:
    cluster = Measured(Options(hints=False))
    cluster.kernel()
    cluster.submit("c", 1)
    assert cluster.value("notebookos_elections_total") == 1
