"""The world around the scheduler, in virtual time: agents and the store, and what they take.

It carries out what the scheduler asks for, with the delays and faults it was given, and keeps its
own account of who holds which device and who runs which cell: what an agent would refuse is a
Defect of the scheduler here. It never looks into the scheduler to decide what is true.
"""

from __future__ import annotations

from collections.abc import Callable

from notebookos_ext.cluster import actions as a
from notebookos_ext.cluster import events as e
from notebookos_ext.cluster.model import CellId, DeviceId, HostId, KernelId, Outcome
from notebookos_ext.errors import Defect
from notebookos_ext.simulation.faults import after_s
from notebookos_ext.simulation.ground import Ground
from notebookos_ext.simulation.locks import DeviceLocks
from notebookos_ext.simulation.machines import HostShape, Machine, Machines
from notebookos_ext.simulation.notebooks import Notebook, Process, Running, kernel_of


class World:
    """Carries actions out; see the module."""

    def __init__(self, ground: Ground, shape: HostShape, hosts_max: int) -> None:
        self.ground = ground
        self.machines = Machines(ground, shape, hosts_max, self._host_is_lost)
        self.notebooks: dict[KernelId, Notebook] = {}
        self._locks = DeviceLocks()
        self._life = 0
        self.carry: dict[type, Callable[..., None]] = {
            **self.machines.carry,
            a.StartReplica: self._start_replica,
            a.StopReplica: self._stop_replica,
            a.ChangeMembers: self._change_members,
            a.CloseMember: self._close_member,
            a.GoOnUnprotected: self._go_on_unprotected,
            a.StoreKernel: self._store_kernel,
            a.RestoreKernel: self._restore_kernel,
            a.StartEpoch: self._start_epoch,
            a.CloseKernel: self._close_kernel,
            a.CallElection: self._call_election,
            a.StartAttempt: self._start_attempt,
            a.CloseAttempt: self._close_attempt,
            a.ReleaseGpus: self._release_gpus,
        }

    def open_kernel(self, kernel: KernelId) -> None:
        """A session begins; its model has a size of its own."""
        size_bytes = self.ground.rng.choice(self.ground.delays.checkpoint_bytes)
        self.notebooks[kernel] = Notebook(kernel, size_bytes)

    def will_run(self, kernel: KernelId, cell: CellId, duration_s: float) -> None:
        """How long a cell takes, known to nobody but its code."""
        self.notebooks[kernel].durations_s[cell] = duration_s

    # ---- replicas

    def _start_replica(self, action: a.StartReplica) -> None:
        machine = self.machines.living(action.host, action)
        notebook = self.notebooks[action.kernel]
        if action.replica in notebook.processes:
            raise Defect(f"{action.replica} was launched while its process lives ({action})")
        if len(set(action.members)) != len(action.members):
            raise Defect(f"two members of {action.kernel} are on one host ({action})")
        if action.learner == (action.host in action.members):
            raise Defect(f"{action} opens a learner on a member's host, or none elsewhere")
        if any(process.host == action.host for process in notebook.processes.values()):
            raise Defect(f"{action.kernel} has another replica on {action.host} ({action})")
        if not action.learner:
            notebook.members = action.members
        self._life += 1
        process = Process(action.replica, action.host, self._life)
        notebook.processes[action.replica] = process
        machine.replicas.add(action.replica)
        delays, counts = self.ground.delays, self.ground.recorder.counts
        if action.prewarmed and machine.prewarmed:
            machine.prewarmed -= 1
            counts["prewarmed starts"] += 1
            delay_s = delays.replica_start_prewarmed_s
        else:
            counts["cold starts"] += 1
            delay_s = delays.replica_start_cold_s
        if notebook.has_state:
            delay_s += self.ground.download_s(notebook.checkpoint_bytes)
        fails = self.ground.happens(self.ground.faults.start_failure_share)
        self.ground.agenda.after(delay_s, self._started, notebook, process, fails)

    def _started(self, notebook: Notebook, process: Process, fails: bool) -> None:
        if not _lives(notebook, process):
            return
        if fails:
            self._forget(notebook, process)
            self._say_lost(process, "it did not start")
            return
        process.ready = True
        lasts_s = after_s(self.ground.faults.replica_crashes_per_day, self.ground.rng)
        if lasts_s is not None:
            self.ground.agenda.after(lasts_s, self._crash, notebook, process)
        incarnation, now_s = self._incarnation(process), self.ground.now_s
        self.ground.say(
            e.ReplicaStarted(process.replica, process.host, incarnation, process.life, now_s)
        )

    def _crash(self, notebook: Notebook, process: Process) -> None:
        if not _lives(notebook, process):
            return
        self._forget(notebook, process)
        running = notebook.open
        if running is not None and running.start.replica == process.replica:
            if running.begun:
                notebook.open = None
            else:
                # Its agent lives and answers for the attempt that had not begun.
                self.ground.agenda.after(
                    self.ground.delays.message_s, self._refuse, running.start, ()
                )
        self._say_lost(process, "it crashed")

    def _say_lost(self, process: Process, reason: str) -> None:
        incarnation, now_s = self._incarnation(process), self.ground.now_s
        self.ground.say(e.ReplicaLost(process.replica, process.host, incarnation, reason, now_s))

    def _stop_replica(self, action: a.StopReplica) -> None:
        notebook = self.notebooks[action.kernel]
        process = notebook.processes.get(action.replica)
        if process is not None:
            self._forget(notebook, process)

    def _forget(self, notebook: Notebook, process: Process) -> None:
        del notebook.processes[process.replica]
        self._locks.drop(process.replica)
        machine = self.machines.get(process.host)
        if machine is not None:
            machine.replicas.discard(process.replica)

    def _host_is_lost(self, machine: Machine) -> None:
        for replica in list(machine.replicas):
            notebook = self.notebooks[kernel_of(replica)]
            self._forget(notebook, notebook.processes[replica])
            if notebook.open is not None and notebook.open.start.host == machine.spec.host:
                notebook.open = None

    # ---- members and the store

    def _change_members(self, action: a.ChangeMembers) -> None:
        self.notebooks[action.kernel].changing = action
        takes_s = self.ground.delays.swap_member_s + self.ground.commit_s()
        self.ground.agenda.after(takes_s, self._members_changed, action)

    def _members_changed(self, action: a.ChangeMembers) -> None:
        notebook = self.notebooks[action.kernel]
        if notebook.changing is not action:
            # The group that it was to change was left behind.
            return
        notebook.changing = None
        reason = ""
        # Both the old group and the new one must have a majority that answers.
        if self._has_majority(notebook.members) and self._has_majority(action.members):
            moved = len(set(action.members) - set(notebook.members))
            self.ground.recorder.counts["migrations"] += moved
            notebook.members = action.members
        else:
            reason = "too many of its members are away"
        self.ground.say(
            e.MembersChanged(action.kernel, notebook.members, reason, self.ground.now_s)
        )

    def _go_on_unprotected(self, action: a.GoOnUnprotected) -> None:
        notebook = self.notebooks[action.kernel]
        if self._has_majority(notebook.members):
            raise Defect(f"{action} gives up a group that has a majority")
        notebook.changing = None
        takes_s = self.ground.delays.message_s + self.ground.commit_s()
        self.ground.agenda.after(takes_s, self._went_on, action)

    def _went_on(self, action: a.GoOnUnprotected) -> None:
        """Every host that is there knows as much as any other; its notebook's state stays."""
        notebook = self.notebooks[action.kernel]
        there = [h for h in action.hosts if (m := self.machines.get(h)) is not None and m.up]
        host = there[0] if there else None
        if host is not None:
            notebook.members = (host,)
            self.ground.recorder.counts["went on unprotected"] += 1
        reason = "" if there else "none of its members is there"
        now_s = self.ground.now_s
        self.ground.say(e.WentOnUnprotected(action.kernel, host, reason, now_s))

    def _close_member(self, action: a.CloseMember) -> None:
        notebook = self.notebooks[action.kernel]
        if action.host in notebook.members:
            raise Defect(f"{action} ends a member that has a vote")

    def _has_majority(self, members: tuple[HostId, ...]) -> bool:
        up = sum(1 for host in members if (m := self.machines.get(host)) is not None and m.up)
        return up * 2 > len(members)

    def _store_kernel(self, action: a.StoreKernel) -> None:
        notebook = self.notebooks[action.kernel]
        takes_s = self.ground.commit_s() + self.ground.upload_s(notebook.checkpoint_bytes)
        self.ground.agenda.after(takes_s, self._stored, action)

    def _stored(self, action: a.StoreKernel) -> None:
        notebook = self.notebooks[action.kernel]
        stored = self._has_majority(notebook.members)
        if stored:
            for process in list(notebook.processes.values()):
                self._forget(notebook, process)
            notebook.members = ()
            notebook.stored_epoch = action.epoch
            self.ground.recorder.counts["kernels stored"] += 1
        reason = "" if stored else "too many of its members are away"
        self.ground.say(e.KernelStored(action.kernel, stored, reason, self.ground.now_s))

    def _restore_kernel(self, action: a.RestoreKernel) -> None:
        notebook = self.notebooks[action.kernel]
        notebook.members = action.members
        if action.epoch > notebook.stored_epoch:
            notebook.has_state = False

    def _start_epoch(self, action: a.StartEpoch) -> None:
        notebook = self.notebooks[action.kernel]
        notebook.open, notebook.has_state = None, False

    def _close_kernel(self, action: a.CloseKernel) -> None:
        self.notebooks[action.kernel].open = None

    # ---- attempts

    def _call_election(self, action: a.CallElection) -> None:
        notebook = self.notebooks[action.kernel]
        for voter in action.voters:
            process = notebook.processes.get(voter)
            if process is None or not process.ready:
                raise Defect(f"{voter} has no process that could vote ({action})")
            takes_s = self.ground.delays.message_s + self.ground.commit_s()
            self.ground.agenda.after(takes_s, self._cast, notebook, process, action)

    def _cast(self, notebook: Notebook, process: Process, action: a.CallElection) -> None:
        """LEAD with free devices of its host, or YIELD; the lost ones say nothing."""
        machine = self.machines.get(process.host)
        if machine is None or not _lives(notebook, process):
            return
        devices = [spec.device for spec in machine.spec.devices]
        free = [device for device in devices if not self._locks.taken(device)]
        lead = len(free) >= action.gpus
        self.ground.say(
            e.BallotCast(
                action.kernel,
                action.cell,
                action.attempt,
                process.replica,
                lead,
                tuple(free[: action.gpus]) if lead else (),
                "" if lead else f"{len(free)} GPUs are free",
                self.ground.now_s,
            )
        )

    def _start_attempt(self, action: a.StartAttempt) -> None:
        self.machines.living(action.host, action)
        notebook = self.notebooks[action.kernel]
        if notebook.open is not None:
            raise Defect(f"{action.kernel} has two open attempts ({action}, {notebook.open.start})")
        if action.attempt <= notebook.last_attempt:
            raise Defect(f"attempt {action.attempt} of {action.kernel} came again ({action})")
        process = notebook.processes.get(action.replica)
        if process is None or not process.ready or process.host != action.host:
            raise Defect(f"the executor of {action} is not ready there")
        notebook.last_attempt = action.attempt
        self._locks.take(action)
        notebook.open = Running(action)
        delays = self.ground.delays
        if action.devices and self.ground.happens(self.ground.faults.refusal_share):
            busy = action.devices[:1]
            self.ground.agenda.after(delays.message_s, self._refuse, action, busy)
            return
        delay_s = delays.message_s + self.ground.commit_s()
        if action.devices:
            delay_s += notebook.checkpoint_bytes / delays.to_device_bytes_per_s
            if not process.devices:
                delay_s += delays.cuda_init_s
            elif process.devices != action.devices:
                delay_s += delays.device_change_s
        at_s = max(self.ground.now_s, process.fresh_at_s) + delay_s
        self.ground.agenda.at(at_s, self._begin, notebook, process, action)

    def _refuse(self, action: a.StartAttempt, busy: tuple[DeviceId, ...]) -> None:
        notebook = self.notebooks[action.kernel]
        if not _is_open(notebook, action):
            return
        notebook.open = None
        self._locks.drop(action.replica, action.attempt)
        reason = "a process outside the cluster uses a GPU" if busy else "its replica is gone"
        now_s = self.ground.now_s
        self.ground.say(
            e.AttemptRefused(action.kernel, action.cell, action.attempt, reason, busy, False, now_s)
        )

    def _begin(self, notebook: Notebook, process: Process, action: a.StartAttempt) -> None:
        running = notebook.open
        if running is None or running.start is not action or not _lives(notebook, process):
            return
        running.begun = True
        if action.devices:
            process.devices = action.devices
        runs_s = notebook.durations_s.get(action.cell, 0.0)
        self.ground.agenda.after(runs_s, self._end, notebook, action)
        now_s = self.ground.now_s
        self.ground.say(e.AttemptStarted(action.kernel, action.cell, action.attempt, now_s))

    def _end(self, notebook: Notebook, action: a.StartAttempt) -> None:
        """The code has ended; the reply goes out when what it changed is committed."""
        if _is_open(notebook, action):
            self.ground.agenda.after(self.ground.commit_s(), self._reply, notebook, action)

    def _reply(self, notebook: Notebook, action: a.StartAttempt) -> None:
        if not _is_open(notebook, action):
            return
        notebook.open = None
        notebook.has_state = True
        notebook.durations_s.pop(action.cell, None)
        now_s = self.ground.now_s
        if action.devices:
            self._upload(notebook, action, now_s)
        self.ground.say(
            e.AttemptClosed(action.kernel, action.cell, action.attempt, Outcome.DONE, now_s)
        )

    def _upload(self, notebook: Notebook, action: a.StartAttempt, now_s: float) -> None:
        """The model goes to the store, and from there to the standbys, while the user thinks."""
        process = notebook.processes[action.replica]
        durable_s = now_s + self.ground.upload_s(notebook.checkpoint_bytes)
        self.ground.agenda.at(durable_s, self._durable, notebook, process, action)
        fetched_s = durable_s + self.ground.download_s(notebook.checkpoint_bytes)
        for other in notebook.processes.values():
            if other is not process:
                other.fresh_at_s = fetched_s
        self.ground.say(e.DurabilityChanged(action.kernel, action.replica, ("model",), now_s))

    def _durable(self, notebook: Notebook, process: Process, action: a.StartAttempt) -> None:
        # The next cell may have changed it again meanwhile; then its own upload counts.
        if _lives(notebook, process) and notebook.last_attempt == action.attempt:
            now_s = self.ground.now_s
            self.ground.say(e.DurabilityChanged(action.kernel, action.replica, (), now_s))

    def _close_attempt(self, action: a.CloseAttempt) -> None:
        notebook = self.notebooks[action.kernel]
        if notebook.open is not None and notebook.open.start.attempt == action.attempt:
            notebook.open = None
        if action.members:
            delay_s = self.ground.delays.message_s + self.ground.commit_s()
            self.ground.agenda.after(delay_s, self._lost, action)

    def _lost(self, action: a.CloseAttempt) -> None:
        now_s = self.ground.now_s
        self.ground.say(
            e.AttemptClosed(action.kernel, action.cell, action.attempt, Outcome.LOST, now_s)
        )

    def _release_gpus(self, action: a.ReleaseGpus) -> None:
        size_bytes = self.notebooks[action.kernel].checkpoint_bytes
        parks_s = size_bytes / self.ground.delays.to_host_bytes_per_s
        self.ground.agenda.after(self.ground.delays.release_s + parks_s, self._released, action)

    def _released(self, action: a.ReleaseGpus) -> None:
        machine = self.machines.get(action.host)
        if machine is None or not machine.up:
            return
        self._locks.drop(action.replica, action.attempt)
        now_s = self.ground.now_s
        self.ground.say(e.GpusReleased(action.kernel, action.cell, action.attempt, now_s))

    def _incarnation(self, process: Process) -> str:
        machine = self.machines.get(process.host)
        if machine is None:
            raise Defect(f"{process.replica} lives on {process.host}, which is not there")
        return machine.spec.incarnation


def _lives(notebook: Notebook, process: Process) -> bool:
    """Whether it is still the process of its replica."""
    return notebook.processes.get(process.replica) is process


def _is_open(notebook: Notebook, action: a.StartAttempt) -> bool:
    return notebook.open is not None and notebook.open.start is action
