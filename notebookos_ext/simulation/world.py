"""The world around the scheduler, in virtual time: hosts, agents and the store, and what they take.

It carries out what the scheduler asks for, with the delays and faults it was given, and keeps its
own account of who holds which device and who runs which cell: what an agent would refuse is a
Defect of the scheduler here. It never looks into the scheduler to decide what is true.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from notebookos_ext.cluster import actions as a
from notebookos_ext.cluster import events as e
from notebookos_ext.cluster.model import (
    CellId,
    DeviceId,
    DeviceKind,
    DeviceSpec,
    HostId,
    HostSpec,
    KernelId,
    Outcome,
    ReplicaId,
)
from notebookos_ext.errors import Defect
from notebookos_ext.simulation.agenda import Agenda
from notebookos_ext.simulation.delays import Delays
from notebookos_ext.simulation.faults import Faults, after_s
from notebookos_ext.simulation.measures import Recorder

GIB = 1024**3


class HostShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What each host of the cluster has."""

    gpus: int = 8
    gpu_name: str = "V100"
    gpu_memory_bytes: int = 16 * GIB


@dataclass(slots=True)
class Machine:
    """One host that has been asked for, from then on until it is given back."""

    spec: HostSpec
    lives: int = 0
    """How often it has joined; 0 while it boots."""
    up: bool = False
    replicas: set[ReplicaId] = field(default_factory=set)
    """Replicas whose process lives or starts here."""


@dataclass(slots=True)
class Process:
    """The process of a replica."""

    host: HostId
    life: int
    """The scheduler may launch a replica again: what is said of an earlier life counts no more."""
    ready: bool = False
    devices: tuple[DeviceId, ...] = ()
    """What it has set its GPUs up on."""
    fresh_at_s: float = 0.0
    """When it will have applied everything that cells before have changed."""


@dataclass(slots=True)
class Running:
    """The open attempt of a kernel, in its agents' eyes."""

    start: a.StartAttempt
    begun: bool = False


@dataclass(slots=True)
class Notebook:
    """What the world keeps of a kernel."""

    checkpoint_bytes: int
    durations_s: dict[CellId, float] = field(default_factory=dict)
    """How long each submitted cell will run."""
    processes: dict[ReplicaId, Process] = field(default_factory=dict)
    open: Running | None = None
    has_state: bool = False
    last_attempt: int = 0


class World:
    """Carries actions out; see the module. `say` hands an event to the scheduler."""

    def __init__(
        self,
        agenda: Agenda,
        delays: Delays,
        faults: Faults,
        shape: HostShape,
        recorder: Recorder,
        seed: int,
    ) -> None:
        self.agenda = agenda
        self.delays = delays
        self.faults = faults
        self.shape = shape
        self.recorder = recorder
        self.rng = random.Random(f"{seed}/world")
        self.say: Callable[[e.Event], None] = _unplugged
        self.max_hosts = 0
        self.machines: dict[HostId, Machine] = {}
        self.processes: dict[ReplicaId, Process] = {}
        self.notebooks: dict[KernelId, Notebook] = {}
        self.locks: dict[DeviceId, tuple[KernelId, int]] = {}
        self._held: dict[tuple[KernelId, int], tuple[DeviceId, ...]] = {}
        self._machine_number = 0
        self._life = 0
        self._commit_s = delays.commit_s.draw
        self.carry: dict[type, Callable[..., None]] = {
            a.StartReplica: self._start_replica,
            a.StopReplica: self._stop_replica,
            a.RequestHosts: self._request_hosts,
            a.StartEpoch: self._start_epoch,
            a.CloseKernel: self._close_kernel,
            a.StartAttempt: self._start_attempt,
            a.CloseAttempt: self._close_attempt,
            a.ReleaseGpus: self._release_gpus,
        }

    # ---- hosts

    def add_host(self, *, boot_s: float) -> None:
        """One more host is paid for from now on, and joins after its boot."""
        self._machine_number += 1
        host = HostId(f"host-{self._machine_number}")
        devices = tuple(
            DeviceSpec(
                DeviceId(f"SIM-{self._machine_number}-{index}"),
                index,
                DeviceKind.SIMULATED,
                self.shape.gpu_name,
                self.shape.gpu_memory_bytes,
            )
            for index in range(self.shape.gpus)
        )
        self.machines[host] = Machine(HostSpec(host, "", str(host), devices))
        self.recorder.provisioned.add(self.agenda.now_s, self.shape.gpus)
        self.recorder.counts["hosts added"] += 1
        self.agenda.after(boot_s, self._join, host)

    def _join(self, host: HostId) -> None:
        machine = self.machines.get(host)
        if machine is None or machine.up:
            return
        machine.lives += 1
        machine.up = True
        machine.spec = msgspec.structs.replace(machine.spec, incarnation=str(machine.lives))
        lasts_s = after_s(self.faults.host_losses_per_day, self.rng)
        if lasts_s is not None:
            self.agenda.after(lasts_s, self._lose_host, host, machine.lives)
        self.say(e.HostJoined(machine.spec, self.agenda.now_s))

    def _lose_host(self, host: HostId, life: int) -> None:
        machine = self.machines.get(host)
        if machine is None or not machine.up or machine.lives != life:
            return
        machine.up = False
        for replica in list(machine.replicas):
            self._forget(replica)
        here = {spec.device for spec in machine.spec.devices}
        for key, devices in list(self._held.items()):
            if devices[0] in here:
                self._unlock(key)
        for notebook in self.notebooks.values():
            if notebook.open is not None and notebook.open.start.host == host:
                notebook.open = None
        returns_s = self.faults.host_returns_after_s * self.rng.uniform(0.5, 1.5)
        self.agenda.after(returns_s, self._join, host)
        self.say(
            e.HostLost(host, machine.spec.incarnation, "its machine failed", self.agenda.now_s)
        )

    def _request_hosts(self, action: a.RequestHosts) -> None:
        wanted = min(action.count, self.max_hosts)
        for _ in range(wanted - len(self.machines)):
            self.add_host(boot_s=self.delays.host_boot_s)

    # ---- replicas

    def _start_replica(self, action: a.StartReplica) -> None:
        machine = self._living(action.host, action)
        if action.replica in self.processes:
            raise Defect(f"{action.replica} was launched while its process lives ({action})")
        if len(set(action.members)) != len(action.members):
            raise Defect(f"two members of {action.kernel} are on one host ({action})")
        self._life += 1
        process = Process(action.host, self._life)
        notebook = self.notebooks[action.kernel]
        self.processes[action.replica] = notebook.processes[action.replica] = process
        machine.replicas.add(action.replica)
        delay_s = self.delays.replica_start_cold_s
        self.recorder.counts["cold starts"] += 1
        if notebook.has_state:
            delay_s += self._download_s(notebook)
        fails = self._happens(self.faults.start_failure_share)
        self.agenda.after(delay_s, self._started, action.replica, self._life, fails)

    def _started(self, replica: ReplicaId, life: int, fails: bool) -> None:
        process = self._process(replica, life)
        if process is None:
            return
        incarnation = self.machines[process.host].spec.incarnation
        now_s = self.agenda.now_s
        if fails:
            self._forget(replica)
            self.say(e.ReplicaLost(replica, process.host, incarnation, "it did not start", now_s))
            return
        process.ready = True
        lasts_s = after_s(self.faults.replica_crashes_per_day, self.rng)
        if lasts_s is not None:
            self.agenda.after(lasts_s, self._crash, replica, life)
        self.say(e.ReplicaStarted(replica, process.host, incarnation, life, now_s))

    def _crash(self, replica: ReplicaId, life: int) -> None:
        process = self._process(replica, life)
        if process is None:
            return
        self._forget(replica)
        notebook = self.notebooks[_kernel_of(replica)]
        running = notebook.open
        incarnation = self.machines[process.host].spec.incarnation
        if running is not None and running.start.replica == replica:
            if running.begun:
                notebook.open = None
            else:
                # Its agent lives and answers for the attempt that had not begun.
                self.agenda.after(self.delays.message_s, self._refuse, running.start, ())
        self.say(e.ReplicaLost(replica, process.host, incarnation, "it crashed", self.agenda.now_s))

    def _stop_replica(self, action: a.StopReplica) -> None:
        self._forget(action.replica)

    def _forget(self, replica: ReplicaId) -> None:
        process = self.processes.pop(replica, None)
        if process is not None:
            self.machines[process.host].replicas.discard(replica)
            del self.notebooks[_kernel_of(replica)].processes[replica]

    # ---- kernels and cells

    def open_kernel(self, kernel: KernelId) -> None:
        """A session begins; its model has a size of its own."""
        self.notebooks[kernel] = Notebook(self.rng.choice(self.delays.checkpoint_bytes))

    def will_run(self, kernel: KernelId, cell: CellId, duration_s: float) -> None:
        """How long a cell takes, known to nobody but its code."""
        self.notebooks[kernel].durations_s[cell] = duration_s

    def _start_epoch(self, action: a.StartEpoch) -> None:
        notebook = self.notebooks[action.kernel]
        notebook.open, notebook.has_state = None, False

    def _close_kernel(self, action: a.CloseKernel) -> None:
        self.notebooks[action.kernel].open = None

    def _start_attempt(self, action: a.StartAttempt) -> None:
        self._living(action.host, action)
        notebook = self.notebooks[action.kernel]
        if notebook.open is not None:
            raise Defect(f"{action.kernel} has two open attempts ({action}, {notebook.open.start})")
        if action.attempt <= notebook.last_attempt:
            raise Defect(f"attempt {action.attempt} of {action.kernel} came again ({action})")
        process = self.processes.get(action.replica)
        if process is None or not process.ready or process.host != action.host:
            raise Defect(f"the executor of {action} is not ready there")
        notebook.last_attempt = action.attempt
        self._lock(action)
        notebook.open = Running(action)
        now_s = self.agenda.now_s
        delay_s = self.delays.message_s + self._commit_s(self.rng)
        if action.devices:
            delay_s += notebook.checkpoint_bytes / self.delays.to_device_bytes_per_s
            if not process.devices:
                delay_s += self.delays.cuda_init_s
            elif process.devices != action.devices:
                delay_s += self.delays.device_change_s
        at_s = max(now_s, process.fresh_at_s) + delay_s
        if action.devices and self._happens(self.faults.refusal_share):
            self.agenda.after(self.delays.message_s, self._refuse, action, action.devices[:1])
        else:
            self.agenda.at(at_s, self._begin, action, process.life)

    def _refuse(self, action: a.StartAttempt, busy: tuple[DeviceId, ...]) -> None:
        if not self._is_open(action):
            return
        self.notebooks[action.kernel].open = None
        self._unlock((action.kernel, action.attempt))
        reason = "a process outside the cluster uses a GPU" if busy else "its replica is gone"
        now_s = self.agenda.now_s
        self.say(
            e.AttemptRefused(action.kernel, action.cell, action.attempt, reason, busy, False, now_s)
        )

    def _begin(self, action: a.StartAttempt, life: int) -> None:
        process = self._process(action.replica, life)
        if process is None or not self._is_open(action):
            return
        notebook = self.notebooks[action.kernel]
        running = notebook.open
        if running is None:
            return
        running.begun = True
        if action.devices:
            process.devices = action.devices
        runs_s = notebook.durations_s.get(action.cell, 0.0)
        self.agenda.after(runs_s, self._end, action)
        self.say(e.AttemptStarted(action.kernel, action.cell, action.attempt, self.agenda.now_s))

    def _end(self, action: a.StartAttempt) -> None:
        """The code has ended; the reply goes out when what it changed is committed."""
        if self._is_open(action):
            self.agenda.after(self._commit_s(self.rng), self._reply, action)

    def _reply(self, action: a.StartAttempt) -> None:
        if not self._is_open(action):
            return
        notebook = self.notebooks[action.kernel]
        notebook.open = None
        notebook.has_state = True
        notebook.durations_s.pop(action.cell, None)
        now_s = self.agenda.now_s
        durable_s = now_s + self._upload_s(notebook)
        if action.devices:
            names = ("model",)
            self.say(e.DurabilityChanged(action.kernel, action.replica, names, now_s))
            life = self.processes[action.replica].life
            self.agenda.at(durable_s, self._durable, action, life)
        for replica, process in notebook.processes.items():
            if replica != action.replica:
                process.fresh_at_s = durable_s + self._download_s(notebook)
        self.say(e.AttemptClosed(action.kernel, action.cell, action.attempt, Outcome.DONE, now_s))

    def _durable(self, action: a.StartAttempt, life: int) -> None:
        if self._process(action.replica, life) is None:
            return
        if self.notebooks[action.kernel].last_attempt == action.attempt:
            self.say(e.DurabilityChanged(action.kernel, action.replica, (), self.agenda.now_s))

    def _close_attempt(self, action: a.CloseAttempt) -> None:
        notebook = self.notebooks[action.kernel]
        if notebook.open is not None and notebook.open.start.attempt == action.attempt:
            notebook.open = None
        if action.members:
            delay_s = self.delays.message_s + self._commit_s(self.rng)
            self.agenda.after(delay_s, self._lost, action)

    def _lost(self, action: a.CloseAttempt) -> None:
        self.say(
            e.AttemptClosed(
                action.kernel, action.cell, action.attempt, Outcome.LOST, self.agenda.now_s
            )
        )

    def _release_gpus(self, action: a.ReleaseGpus) -> None:
        notebook = self.notebooks[action.kernel]
        parks_s = notebook.checkpoint_bytes / self.delays.to_host_bytes_per_s
        self.agenda.after(self.delays.release_s + parks_s, self._released, action)

    def _released(self, action: a.ReleaseGpus) -> None:
        machine = self.machines.get(action.host)
        if machine is None or not machine.up:
            return
        self._unlock((action.kernel, action.attempt))
        self.say(e.GpusReleased(action.kernel, action.cell, action.attempt, self.agenda.now_s))

    # ---- what the rest is made of

    def _living(self, host: HostId, action: a.Action) -> Machine:
        machine = self.machines.get(host)
        if machine is None or not machine.up:
            raise Defect(f"{host} is not there for {action}")
        return machine

    def _process(self, replica: ReplicaId, life: int) -> Process | None:
        process = self.processes.get(replica)
        return process if process is not None and process.life == life else None

    def _is_open(self, action: a.StartAttempt) -> bool:
        notebook = self.notebooks.get(action.kernel)
        return notebook is not None and notebook.open is not None and notebook.open.start is action

    def _lock(self, action: a.StartAttempt) -> None:
        for device in action.devices:
            if device in self.locks:
                raise Defect(f"{device} is bound twice, by {self.locks[device]} and {action}")
            self.locks[device] = (action.kernel, action.attempt)
        if action.devices:
            self._held[action.kernel, action.attempt] = action.devices

    def _unlock(self, key: tuple[KernelId, int]) -> None:
        for device in self._held.pop(key, ()):
            del self.locks[device]

    def _happens(self, share: float) -> bool:
        return share > 0 and self.rng.random() < share

    def _upload_s(self, notebook: Notebook) -> float:
        return self._transfer_s(notebook, self.delays.store_upload_bytes_per_s)

    def _download_s(self, notebook: Notebook) -> float:
        return self._transfer_s(notebook, self.delays.store_download_bytes_per_s)

    def _transfer_s(self, notebook: Notebook, bytes_per_s: float) -> float:
        spread = self.delays.store_rate_spread
        rate = bytes_per_s * self.rng.uniform(1 - spread, 1 + spread)
        takes_s = self.delays.store_request_s + notebook.checkpoint_bytes / rate
        if self._happens(self.faults.store_slow_share):
            takes_s *= 10
        while self._happens(self.faults.store_failure_share):
            takes_s += self.faults.store_retry_s
        return takes_s


def _kernel_of(replica: ReplicaId) -> KernelId:
    return KernelId(replica.rpartition(":")[0])


def _unplugged(event: e.Event) -> None:
    raise Defect(f"the world is not connected to a scheduler and cannot tell it {event}")
