"""One line of arrangement per test: hosts, kernels and cells, and a scheduler under watch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from notebookos_ext.cluster import actions as a
from notebookos_ext.cluster import events as e
from notebookos_ext.cluster.invariants import check
from notebookos_ext.cluster.model import (
    Cell,
    CellId,
    DeviceId,
    DeviceKind,
    DeviceSpec,
    ExecutorPreference,
    HeldName,
    HostId,
    HostSpec,
    KernelId,
    KernelSpec,
    Outcome,
    ReplicaId,
)
from notebookos_ext.cluster.options import Options
from notebookos_ext.cluster.replicas import Kernel, Replica
from notebookos_ext.cluster.scheduler import Scheduler

A = TypeVar("A")
GIB = 1024**3


def device(name: str, index: int = 0, kind: DeviceKind = DeviceKind.SIMULATED) -> DeviceSpec:
    """One GPU."""
    return DeviceSpec(DeviceId(name), index, kind, "Simulated GPU", 16 * GIB)


def host_spec(
    name: str,
    gpus: int | Iterable[str] = 2,
    *,
    incarnation: str = "first",
    kind: DeviceKind = DeviceKind.SIMULATED,
) -> HostSpec:
    """A host with so many GPUs of its own, or with the named ones, which others may list too."""
    names = [f"{name}/{n}" for n in range(gpus)] if isinstance(gpus, int) else list(gpus)
    devices = tuple(device(gpu, index, kind) for index, gpu in enumerate(names))
    return HostSpec(HostId(name), incarnation, "machine", devices)


def only(actions: Iterable[object], kind: type[A]) -> A:
    """The one action of that kind; there must be exactly one."""
    found = [action for action in actions if isinstance(action, kind)]
    assert len(found) == 1, f"expected one {kind.__name__} in {list(actions)}"
    return found[0]


def none_of(actions: Iterable[object], kind: type[A]) -> None:
    """There is no action of that kind."""
    found = [action for action in actions if isinstance(action, kind)]
    assert not found


class Cluster:
    """A scheduler whose invariants are checked after every event, with a clock that tests move."""

    def __init__(
        self,
        hosts: int = 3,
        gpus: int | Iterable[str] = 2,
        *,
        max_hosts: int = 8,
        kind: DeviceKind = DeviceKind.SIMULATED,
        policy: str = "replicated",
        options: Options | None = None,
    ) -> None:
        self.scheduler = Scheduler(policy, max_hosts=max_hosts, options=options)
        self.now = 0.0
        self._pids = 0
        for number in range(1, hosts + 1):
            self.join(f"host-{number}", gpus, kind=kind)

    def do(self, event: e.Event) -> list[a.Action]:
        """Say an event, check what must hold, return the actions."""
        actions = self.scheduler.handle(event)
        check(self.scheduler.state)
        return actions

    # ---- hosts and replicas

    def join(
        self,
        name: str,
        gpus: int | Iterable[str] = 2,
        *,
        incarnation: str = "first",
        kind: DeviceKind = DeviceKind.SIMULATED,
    ) -> list[a.Action]:
        spec = host_spec(name, gpus, incarnation=incarnation, kind=kind)
        return self.do(e.HostJoined(spec, self.now))

    def prewarmed(self, name: str, *, failed: bool = False) -> list[a.Action]:
        host, incarnation = HostId(name), self.incarnation(name)
        if failed:
            return self.do(e.PrewarmedLost(host, incarnation, False, "no memory", self.now))
        return self.do(e.PrewarmedStarted(host, incarnation, self.now))

    def stored(self, kernel: str = "k", *, failed: bool = False) -> list[a.Action]:
        reason = "the store is full" if failed else ""
        return self.do(e.KernelStored(KernelId(kernel), not failed, reason, self.now))

    def needed(self, kernel: str = "k") -> list[a.Action]:
        return self.do(e.KernelNeeded(KernelId(kernel), self.now))

    def ballot(
        self, cell: str, replica: str, lead: bool, devices: Iterable[str] = (), *, kernel: str = "k"
    ) -> list[a.Action]:
        election = self.scheduler.state.kernels[KernelId(kernel)].election
        assert election is not None
        offered = tuple(DeviceId(name) for name in devices)
        return self.do(
            e.BallotCast(
                KernelId(kernel),
                CellId(cell),
                election.attempt,
                ReplicaId(replica),
                lead,
                offered,
                "",
                self.now,
            )
        )

    def drain(self, name: str, *, release: bool = False) -> list[a.Action]:
        return self.do(e.HostDrainRequested(HostId(name), self.now, release))

    def undrain(self, name: str) -> list[a.Action]:
        return self.do(e.HostDrainCancelled(HostId(name), self.now))

    def remove_host(self, name: str) -> list[a.Action]:
        return self.do(e.HostRemoved(HostId(name), self.incarnation(name), self.now))

    def move(
        self, kernel: str = "k", replica: str | None = None, target: str | None = None
    ) -> list[a.Action]:
        """Ask for a migration by hand."""
        which = ReplicaId(replica) if replica else None
        where = HostId(target) if target else None
        return self.do(e.MigrationRequested(KernelId(kernel), which, where, self.now))

    def members_changed(self, kernel: str = "k", *members: str, reason: str = "") -> list[a.Action]:
        """Answer ChangeMembers; without members as it asked."""
        found = self.scheduler.state.kernels[KernelId(kernel)].migration
        assert found is not None
        now = tuple(HostId(name) for name in members) or found.members
        return self.do(e.MembersChanged(KernelId(kernel), now, reason, self.now))

    def member_lost(self, kernel: str, host: str) -> list[a.Action]:
        return self.do(e.MemberLost(KernelId(kernel), HostId(host), "damaged", self.now))

    def member_back(self, kernel: str, host: str) -> list[a.Action]:
        return self.do(e.MemberBack(KernelId(kernel), HostId(host), self.now))

    def go_on(self, kernel: str = "k") -> list[a.Action]:
        """Somebody asks for it."""
        return self.do(e.UnprotectedRequested(KernelId(kernel), self.now))

    def went_on(self, kernel: str, host: str) -> list[a.Action]:
        found, reason = (HostId(host), "") if host else (None, "no host answered")
        return self.do(e.WentOnUnprotected(KernelId(kernel), found, reason, self.now))

    def lose_host(self, name: str, reason: str = "its agent ended") -> list[a.Action]:
        return self.do(e.HostLost(HostId(name), self.incarnation(name), reason, self.now))

    def incarnation(self, name: str) -> str:
        return self.scheduler.state.hosts[HostId(name)].spec.incarnation

    def replica_started(self, replica: str) -> list[a.Action]:
        _, found = self.replica(replica)
        self._pids += 1
        return self.do(
            e.ReplicaStarted(
                found.id, found.host, self.incarnation(found.host), self._pids, self.now
            )
        )

    def replica_lost(self, replica: str, reason: str = "killed by signal 9") -> list[a.Action]:
        _, found = self.replica(replica)
        incarnation = self.incarnation(found.host)
        return self.do(e.ReplicaLost(found.id, found.host, incarnation, reason, self.now))

    def replica(self, replica: str) -> tuple[Kernel, Replica]:
        found = self.scheduler.state.find_replica(ReplicaId(replica))
        assert found is not None
        return found

    def start_all(self, actions: Iterable[a.Action]) -> list[a.Action]:
        """Answer each StartReplica of some actions with ReplicaStarted."""
        return [
            following
            for action in list(actions)
            if isinstance(action, a.StartReplica)
            for following in self.replica_started(action.replica)
        ]

    # ---- kernels

    def request(
        self,
        kernel: str = "k",
        replicas: int = 3,
        *,
        gpus_per_cell: int = 0,
        preference: ExecutorPreference = ExecutorPreference.LAST,
        user: str = "",
        priority: int = 0,
    ) -> list[a.Action]:
        spec = KernelSpec(
            KernelId(kernel),
            replicas,
            gpus_per_cell,
            executor_preference=preference,
            user=user,
            priority=priority,
        )
        return self.do(e.KernelRequested(spec, self.now))

    def revive(
        self,
        kernel: str,
        members: Iterable[str],
        *,
        epoch: int = 0,
        last_attempt: int = 0,
        stored: int = 0,
        wanted: int = 0,
        former: str = "",
    ) -> list[a.Action]:
        """`stored`: in the store alone, with so many replicas to come; `wanted`: it went on with
        fewer, and may have a log left on the host `former`.
        """
        hosts = tuple(HostId(member) for member in members)
        spec = KernelSpec(KernelId(kernel), stored or wanted or len(hosts))
        event = e.KernelRevived(
            spec,
            hosts,
            epoch,
            last_attempt,
            self.now,
            stored=bool(stored),
            former=(HostId(former),) if former else (),
            unprotected=bool(wanted),
        )
        return self.do(event)

    def kernel(
        self,
        kernel: str = "k",
        replicas: int = 3,
        *,
        gpus_per_cell: int = 0,
        preference: ExecutorPreference = ExecutorPreference.LAST,
    ) -> Kernel:
        """A kernel whose replicas have all started."""
        self.start_all(
            self.request(kernel, replicas, gpus_per_cell=gpus_per_cell, preference=preference)
        )
        return self.scheduler.state.kernels[KernelId(kernel)]

    def restart(self, kernel: str = "k") -> list[a.Action]:
        return self.do(e.KernelRestarted(KernelId(kernel), self.now))

    def stop(self, kernel: str = "k") -> list[a.Action]:
        return self.do(e.KernelStopped(KernelId(kernel), self.now))

    def settings(
        self,
        kernel: str = "k",
        *,
        gpus: int | None = None,
        replicas: int | None = None,
        gpu_type: str | None = None,
        gpu_wait_s: float | None = None,
    ) -> list[a.Action]:
        return self.do(
            e.KernelSettingsChanged(
                KernelId(kernel),
                gpus,
                replicas,
                self.now,
                gpu_type=gpu_type,
                gpu_wait_s=gpu_wait_s,
            )
        )

    # ---- cells

    def submit(
        self,
        cell: str,
        gpus: int = 0,
        *,
        kernel: str = "k",
        replica: int | None = None,
        near: str | None = None,
    ) -> list[a.Action]:
        where = ReplicaId(near) if near else None
        asked = Cell(KernelId(kernel), CellId(cell), gpus, "test", replica, where)
        return self.do(e.CellSubmitted(asked, self.now))

    def cancel(self, cell: str, *, kernel: str = "k") -> list[a.Action]:
        return self.do(e.CellCancelled(KernelId(kernel), CellId(cell), self.now))

    def number(self, kernel: str = "k") -> int:
        """The kernel's latest attempt."""
        return self.scheduler.state.kernels[KernelId(kernel)].last_attempt

    def started(
        self, cell: str, *, kernel: str = "k", attempt: int | None = None
    ) -> list[a.Action]:
        number = attempt or self.number(kernel)
        return self.do(e.AttemptStarted(KernelId(kernel), CellId(cell), number, self.now))

    def refused(
        self,
        cell: str,
        *,
        kernel: str = "k",
        reason: str = "not now",
        busy: tuple[str, ...] = (),
        recycle: bool = False,
    ) -> list[a.Action]:
        devices = tuple(DeviceId(name) for name in busy)
        return self.do(
            e.AttemptRefused(
                KernelId(kernel),
                CellId(cell),
                self.number(kernel),
                reason,
                devices,
                recycle,
                self.now,
            )
        )

    def closed(
        self,
        cell: str,
        outcome: Outcome = Outcome.DONE,
        *,
        kernel: str = "k",
        attempt: int | None = None,
    ) -> list[a.Action]:
        number = attempt or self.number(kernel)
        return self.do(e.AttemptClosed(KernelId(kernel), CellId(cell), number, outcome, self.now))

    def released(
        self, cell: str, *, kernel: str = "k", attempt: int | None = None
    ) -> list[a.Action]:
        number = attempt or self.number(kernel)
        return self.do(e.GpusReleased(KernelId(kernel), CellId(cell), number, self.now))

    def run(self, cell: str, gpus: int = 0, *, kernel: str = "k") -> a.StartAttempt:
        """A cell that starts at once and is running."""
        start = only(self.submit(cell, gpus, kernel=kernel), a.StartAttempt)
        self.started(cell, kernel=kernel)
        return start

    def finish(self, cell: str, *, kernel: str = "k") -> list[a.Action]:
        """End a running cell and give its GPUs back."""
        actions = self.closed(cell, kernel=kernel)
        for release in [x for x in actions if isinstance(x, a.ReleaseGpus)]:
            actions += self.released(cell, kernel=kernel, attempt=release.attempt)
        return actions

    def hold(self, replica: str, *names: str) -> list[a.Action]:
        kernel, found = self.replica(replica)
        held = tuple(HeldName(name, "socket", "it is open") for name in names)
        return self.do(e.HoldChanged(kernel.id, found.id, held, self.now))

    def pending(self, replica: str, *names: str) -> list[a.Action]:
        kernel, found = self.replica(replica)
        return self.do(e.DurabilityChanged(kernel.id, found.id, names, self.now))

    def tick(self, seconds: float = 1.0) -> list[a.Action]:
        """Let time pass."""
        self.now += seconds
        return self.do(e.Ticked(self.now))
