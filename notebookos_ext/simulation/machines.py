"""The hosts of the simulated world: asked for, booted, lost, come back, given back; their pools."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from notebookos_ext.cluster import actions as a
from notebookos_ext.cluster import events as e
from notebookos_ext.cluster.model import (
    DeviceId,
    DeviceKind,
    DeviceSpec,
    HostId,
    HostSpec,
    ReplicaId,
)
from notebookos_ext.errors import Defect
from notebookos_ext.simulation.faults import after_s
from notebookos_ext.simulation.ground import Ground

GIB = 1024**3


class HostShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What each host of the cluster has."""

    gpus: int = 8
    gpu_name: str = "V100"
    gpu_memory_bytes: int = 16 * GIB
    millicpus: int = 64_000
    memory_bytes: int = 488 * GIB


@dataclass(slots=True)
class Machine:
    """One host that has been asked for, from then on until it is given back."""

    spec: HostSpec
    lives: int = 0
    """How often it has joined; 0 while it boots."""
    up: bool = False
    leaving: bool = False
    """It is being given back."""
    prewarmed: int = 0
    """Pre-warmed replicas that are ready."""
    replicas: set[ReplicaId] = field(default_factory=set)
    """Replicas whose process lives or starts here."""


class Machines:
    """All hosts. `lost` is told, before the scheduler is, which host has gone with all it had."""

    def __init__(
        self, ground: Ground, shape: HostShape, hosts_max: int, lost: Callable[[Machine], None]
    ) -> None:
        self.ground = ground
        self.shape = shape
        self.hosts_max = hosts_max
        self._lost = lost
        self._machines: dict[HostId, Machine] = {}
        self._number = 0
        self.carry: dict[type, Callable[..., None]] = {
            a.RequestHosts: self._request_hosts,
            a.ReleaseHost: self._release_host,
            a.StartPrewarmed: self._start_prewarmed,
            a.StopPrewarmed: self._stop_prewarmed,
        }

    def get(self, host: HostId) -> Machine | None:
        """The host of that name, if it exists."""
        return self._machines.get(host)

    def living(self, host: HostId, action: a.Action) -> Machine:
        """The host that an action is about. Raises Defect when it is not there."""
        machine = self._machines.get(host)
        if machine is None or not machine.up:
            raise Defect(f"{host} is not there for {action}")
        return machine

    def add(self, *, boot_s: float) -> None:
        """One more host is paid for from now on, and joins after its boot."""
        self._number += 1
        number, shape = self._number, self.shape
        host = HostId(f"host-{number}")
        devices = tuple(
            DeviceSpec(
                DeviceId(f"SIM-{number}-{index}"),
                index,
                DeviceKind.SIMULATED,
                shape.gpu_name,
                shape.gpu_memory_bytes,
            )
            for index in range(shape.gpus)
        )
        spec = HostSpec(
            host,
            "",
            str(host),
            devices,
            millicpus=shape.millicpus,
            memory_bytes=shape.memory_bytes,
            gpu_type=shape.gpu_name,
        )
        self._machines[host] = Machine(spec)
        self.ground.recorder.provisioned.add(self.ground.now_s, shape.gpus)
        self.ground.recorder.counts["hosts added"] += 1
        self.ground.agenda.after(boot_s, self._join, host)

    # ---- what the scheduler asks for

    def _request_hosts(self, action: a.RequestHosts) -> None:
        staying = sum(1 for machine in self._machines.values() if not machine.leaving)
        for _ in range(min(action.count, self.hosts_max) - staying):
            self.add(boot_s=self.ground.delays.host_boot_s)

    def _release_host(self, action: a.ReleaseHost) -> None:
        machine = self.living(action.host, action)
        if machine.replicas or machine.leaving:
            raise Defect(f"{action.host} was given back with {sorted(machine.replicas)} on it")
        machine.leaving = True
        self.ground.agenda.after(self.ground.delays.release_host_s, self._remove, action)

    def _remove(self, action: a.ReleaseHost) -> None:
        machine = self._machines.pop(action.host)
        if machine.replicas:
            raise Defect(f"{sorted(machine.replicas)} came to {action.host}, which was given back")
        now_s = self.ground.now_s
        self.ground.recorder.provisioned.add(now_s, -self.shape.gpus)
        self.ground.recorder.counts["hosts given back"] += 1
        self.ground.say(e.HostRemoved(action.host, machine.spec.incarnation, now_s))

    def _start_prewarmed(self, action: a.StartPrewarmed) -> None:
        machine = self.living(action.host, action)
        for _ in range(action.count):
            starts_s = self.ground.delays.replica_start_cold_s
            fails = self.ground.happens(self.ground.faults.start_failure_share)
            self.ground.agenda.after(starts_s, self._prewarmed, machine, machine.lives, fails)

    def _prewarmed(self, machine: Machine, life: int, fails: bool) -> None:
        if not machine.up or machine.lives != life or machine.spec.host not in self._machines:
            return
        host, incarnation, now_s = machine.spec.host, machine.spec.incarnation, self.ground.now_s
        if fails:
            self.ground.say(
                e.PrewarmedLost(host, incarnation, ready=False, reason="it ended", at=now_s)
            )
            return
        machine.prewarmed += 1
        self.ground.say(e.PrewarmedStarted(host, incarnation, now_s))

    def _stop_prewarmed(self, action: a.StopPrewarmed) -> None:
        machine = self.living(action.host, action)
        if machine.prewarmed < action.count:
            raise Defect(f"{action.host} has {machine.prewarmed} pre-warmed replicas for {action}")
        machine.prewarmed -= action.count

    # ---- what happens to them

    def _join(self, host: HostId) -> None:
        machine = self._machines.get(host)
        if machine is None or machine.up:
            return
        machine.lives += 1
        machine.up = True
        machine.spec = msgspec.structs.replace(machine.spec, incarnation=str(machine.lives))
        lasts_s = after_s(self.ground.faults.host_losses_per_day, self.ground.rng)
        if lasts_s is not None:
            self.ground.agenda.after(lasts_s, self._lose, host, machine.lives)
        self.ground.say(e.HostJoined(machine.spec, self.ground.now_s))

    def _lose(self, host: HostId, life: int) -> None:
        machine = self._machines.get(host)
        if machine is None or not machine.up or machine.lives != life or machine.leaving:
            return
        machine.up = False
        machine.prewarmed = 0
        self._lost(machine)
        returns_s = self.ground.faults.host_returns_after_s * self.ground.rng.uniform(0.5, 1.5)
        self.ground.agenda.after(returns_s, self._join, host)
        incarnation = machine.spec.incarnation
        self.ground.say(e.HostLost(host, incarnation, "its machine failed", self.ground.now_s))
