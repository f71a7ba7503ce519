"""The world refuses what an agent would refuse: such a request is a mistake of the scheduler."""

from __future__ import annotations

import random

import msgspec
import pytest

from notebookos_ext.cluster import actions as a
from notebookos_ext.cluster import events as e
from notebookos_ext.cluster.model import CellId, DeviceId, HostId, KernelId, ReplicaId
from notebookos_ext.errors import Defect
from notebookos_ext.simulation.agenda import Agenda
from notebookos_ext.simulation.delays import Delays
from notebookos_ext.simulation.faults import Faults
from notebookos_ext.simulation.ground import Ground
from notebookos_ext.simulation.machines import HostShape
from notebookos_ext.simulation.measures import Recorder
from notebookos_ext.simulation.world import World

HOSTS = tuple(HostId(f"host-{n}") for n in (1, 2, 3))
K = KernelId("k")


class Rig:
    """A world with three hosts that have joined, one kernel, and nobody who decides."""

    def __init__(self) -> None:
        self.said: list[e.Event] = []
        self.agenda = Agenda()
        self.recorder = Recorder()
        ground = Ground(
            self.agenda, Delays(), Faults(), self.recorder, random.Random(1), self.said.append
        )
        self.world = World(ground, HostShape(gpus=2), 4)
        for _ in HOSTS:
            self.world.machines.add(boot_s=0.0)
        self.world.open_kernel(K)
        self.run()

    def do(self, *actions: a.Action) -> list[e.Event]:
        """Carry actions out and let everything happen that follows."""
        for action in actions:
            self.world.carry[type(action)](action)
        return self.run()

    def run(self) -> list[e.Event]:
        before = len(self.said)
        while self.agenda:
            self.agenda.step()
        return self.said[before:]


def start(
    number: int, host: int, *, learner: bool = False, prewarmed: bool = False
) -> a.StartReplica:
    replica = ReplicaId(f"k:{number}")
    return a.StartReplica(K, replica, HostId(f"host-{host}"), HOSTS, 0, learner, prewarmed)


def attempt(number: int, replica: int, *devices: str) -> a.StartAttempt:
    names = tuple(DeviceId(device) for device in devices)
    host = HostId(f"host-{replica}")
    return a.StartAttempt(K, CellId(f"c{number}"), number, ReplicaId(f"k:{replica}"), host, names)


def test_a_cell_from_its_start_to_its_gpus() -> None:
    rig = Rig()
    rig.do(start(1, 1), start(2, 2), start(3, 3))
    rig.world.will_run(K, CellId("c1"), 60.0)
    said = rig.do(attempt(1, 1, "SIM-1-0"))
    assert [type(event) for event in said] == [
        e.AttemptStarted,
        e.DurabilityChanged,
        e.AttemptClosed,
        e.DurabilityChanged,
    ]
    release = a.ReleaseGpus(K, CellId("c1"), 1, ReplicaId("k:1"), HOSTS[0], (DeviceId("SIM-1-0"),))
    (released,) = rig.do(release)
    assert isinstance(released, e.GpusReleased)
    # A replica of another host waits until it has fetched the model.
    rig.world.will_run(K, CellId("c2"), 1.0)
    assert isinstance(rig.do(attempt(2, 2, "SIM-2-0"))[0], e.AttemptStarted)


@pytest.mark.parametrize(
    ("actions", "says"),
    [
        ([start(1, 4)], "host-4 is not there"),
        ([start(1, 1), start(1, 1)], "while its process lives"),
        ([start(1, 1), start(2, 1)], "another replica on host-1"),
        ([start(1, 1, learner=True)], "learner on a member's host"),
        ([attempt(1, 1)], "is not ready there"),
        ([a.StopPrewarmed(HOSTS[0], 1)], "0 pre-warmed replicas"),
        ([start(1, 1), a.ReleaseHost(HOSTS[0], "1", "idle")], "given back with"),
        ([start(1, 1), a.CloseMember(K, HOSTS[0], HOSTS)], "a member that has a vote"),
    ],
)
def test_what_an_agent_would_refuse(actions: list[a.Action], says: str) -> None:
    rig = Rig()
    with pytest.raises(Defect, match=says):
        rig.do(*actions)


def test_replicas_vote_by_what_their_hosts_have_free() -> None:
    rig = Rig()
    rig.do(start(1, 1), start(2, 2), start(3, 3))
    rig.world.carry[a.StartAttempt](attempt(1, 1, "SIM-1-0"))
    voters = (ReplicaId("k:1"), ReplicaId("k:2"))
    rig.world.carry[a.CallElection](a.CallElection(K, CellId("c2"), 2, voters, 2))
    ballots = {x.replica: x for x in rig.run() if isinstance(x, e.BallotCast)}
    assert not ballots[voters[0]].lead
    assert ballots[voters[0]].reason == "1 GPUs are free"
    assert ballots[voters[1]].devices == (DeviceId("SIM-2-0"), DeviceId("SIM-2-1"))
    with pytest.raises(Defect, match="no process that could vote"):
        rig.do(a.CallElection(K, CellId("c3"), 3, (ReplicaId("k:9"),), 1))


def test_two_attempts_and_two_bindings_are_refused() -> None:
    rig = Rig()
    rig.do(start(1, 1), start(2, 2), start(3, 3))
    rig.world.carry[a.StartAttempt](attempt(1, 1, "SIM-1-0"))
    with pytest.raises(Defect, match="two open attempts"):
        rig.world.carry[a.StartAttempt](attempt(2, 2, "SIM-2-0"))
    rig.run()
    with pytest.raises(Defect, match="came again"):
        rig.do(attempt(1, 1, "SIM-1-1"))
    m = KernelId("m")
    rig.world.open_kernel(m)
    rig.do(msgspec.structs.replace(start(1, 1), kernel=m, replica=ReplicaId("m:1")))
    with pytest.raises(Defect, match="bound twice"):
        rig.do(
            msgspec.structs.replace(attempt(1, 1, "SIM-1-0"), kernel=m, replica=ReplicaId("m:1"))
        )


def test_a_member_is_exchanged_when_both_groups_have_a_majority() -> None:
    rig = Rig()
    rig.world.machines.add(boot_s=0.0)
    rig.run()
    rig.do(start(1, 1), start(2, 2), start(3, 3))
    (started,) = rig.do(start(4, 4, learner=True))
    assert isinstance(started, e.ReplicaStarted)
    wanted = (HostId("host-4"), HOSTS[1], HOSTS[2])
    (changed,) = rig.do(a.ChangeMembers(K, wanted))
    assert isinstance(changed, e.MembersChanged)
    assert changed.members == wanted
    assert rig.recorder.counts["migrations"] == 1
    nobody = (HostId("host-8"), HostId("host-9"), HOSTS[2])
    (refused,) = rig.do(a.ChangeMembers(K, nobody))
    assert isinstance(refused, e.MembersChanged)
    assert refused.members == wanted
    assert "away" in refused.reason


def test_a_survivor_goes_on_and_no_change_of_the_old_group_counts_in_the_new_one() -> None:
    rig = Rig()
    rig.world.machines.add(boot_s=0.0)
    rig.run()
    rig.do(start(1, 1), start(2, 2), start(3, 3))
    with pytest.raises(Defect, match="has a majority"):
        rig.do(a.GoOnUnprotected(K, HOSTS[:1], HOSTS))
    for host in HOSTS[1:]:
        machine = rig.world.machines.get(host)
        assert machine is not None
        machine.up = False
    (none,) = rig.do(a.GoOnUnprotected(K, HOSTS[1:], HOSTS))
    assert isinstance(none, e.WentOnUnprotected)
    assert none.host is None
    wanted = (HostId("host-4"), HOSTS[1], HOSTS[2])
    (went,) = rig.do(a.ChangeMembers(K, wanted), a.GoOnUnprotected(K, HOSTS[:1], HOSTS))
    assert isinstance(went, e.WentOnUnprotected)
    assert went.host == HOSTS[0]
    assert rig.world.notebooks[K].members == HOSTS[:1]


def test_pre_warmed_replicas_are_used_up() -> None:
    rig = Rig()
    said = rig.do(a.StartPrewarmed(HOSTS[0], 1))
    assert [type(event) for event in said] == [e.PrewarmedStarted]
    rig.do(start(1, 1, prewarmed=True), start(2, 2, prewarmed=True))
    assert rig.recorder.counts["prewarmed starts"] == 1
    assert rig.recorder.counts["cold starts"] == 1


def test_a_stored_kernel_has_no_process_and_comes_back_with_its_state() -> None:
    rig = Rig()
    rig.do(start(1, 1), start(2, 2), start(3, 3))
    (stored,) = rig.do(a.StoreKernel(K, HOSTS, 0))
    assert isinstance(stored, e.KernelStored)
    assert stored.stored
    said = rig.do(a.RestoreKernel(K, HOSTS, 0), start(1, 1))
    assert [type(event) for event in said] == [e.ReplicaStarted]


def test_a_host_is_given_back_once_and_paid_for_until_then() -> None:
    rig = Rig()
    before = rig.recorder.provisioned.now
    (removed,) = rig.do(a.ReleaseHost(HOSTS[2], "1", "idle"))
    assert isinstance(removed, e.HostRemoved)
    assert rig.recorder.provisioned.now == before - 2
    # A request counts what stays: one more joins.
    (joined,) = rig.do(a.RequestHosts(3, "more"))
    assert isinstance(joined, e.HostJoined)
    assert joined.spec.host == HostId("host-4")
