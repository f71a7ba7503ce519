"""Runs a workload through the very same `Scheduler` as the live server, in virtual time.

The users of the workload are played here: a session asks for its kernel, submits its cells one
after the other, submits one again whose executor was lost, and shuts its kernel down when it is
over and its last cell has ended. What must hold is checked after every event.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from notebookos_ext.cluster import actions as a
from notebookos_ext.cluster import events as e
from notebookos_ext.cluster.invariants import check
from notebookos_ext.cluster.model import Cell, CellId, KernelId, KernelSpec, Outcome
from notebookos_ext.cluster.scheduler import Scheduler
from notebookos_ext.errors import Defect, InvalidRequest
from notebookos_ext.simulation.agenda import Agenda
from notebookos_ext.simulation.ground import Ground
from notebookos_ext.simulation.measures import Recorder
from notebookos_ext.simulation.plans import Plan
from notebookos_ext.simulation.workload import PlannedSession, Workload
from notebookos_ext.simulation.world import World

PROGRESS_EVERY = 20_000
"""Events between two reports of progress."""


@dataclass(slots=True)
class _User:
    """One session and how far it is."""

    session: PlannedSession
    kernel: KernelId
    next_cell: int = 0
    tries: int = 0
    """Of the present cell."""
    open: CellId | None = None


@dataclass(slots=True)
class Run:
    """A simulation that has ended."""

    workload: Workload
    plan: Plan
    recorder: Recorder
    events: int = 0
    ended_s: float = 0.0
    unfinished_cells: int = 0
    """Cells of the workload that were never brought to an end."""
    problems: list[str] = field(default_factory=list)


Progress = Callable[[float, int], None]
"""Told the virtual time and how many events have been handled."""
Handled = Callable[[e.Event, list[a.Action]], None]
"""Told each event that was handled and what it led to."""


class Driver:
    """One run; see the module."""

    def __init__(self, workload: Workload, plan: Plan, handled: Handled | None = None) -> None:
        """Raises InvalidRequest when the cluster could never run the workload."""
        if not 1 <= plan.hosts_min <= plan.hosts_max:
            raise InvalidRequest(
                f"the cluster has {plan.hosts_min} to {plan.hosts_max} hosts; "
                "the first must be at least 1 and not above the second"
            )
        _check_hosts_fit(workload, plan)
        self.workload, self.plan, self._handled = workload, plan, handled
        self.agenda = Agenda()
        self.recorder = Recorder()
        self.scheduler = Scheduler(
            plan.policy, max_hosts=plan.hosts_max, options=plan.scheduler_options()
        )
        chance = random.Random(f"{plan.seed}/world")
        ground = Ground(self.agenda, plan.delays, plan.faults, self.recorder, chance, self.say)
        self.world = World(ground, plan.shape, plan.hosts_max)
        self.rng = random.Random(f"{plan.seed}/users")
        self.users: dict[KernelId, _User] = {}
        self._to_come = len(workload.sessions)
        self._events = 0
        self._tick_due_s = 0.0
        self._tick_token = 0
        self._rejected: Counter[str] = Counter()
        self._hear: dict[type, Callable[..., None]] = {
            a.CloseAttempt: self._attempt_is_closed,
            a.CellRejected: self._cell_is_over,
            a.CellAborted: self._cell_is_over,
            a.KernelRejected: self._kernel_is_rejected,
        }

    def run(self, progress: Progress | None = None) -> Run:
        """Run to the end. Raises Defect when a rule is broken."""
        for _ in range(self.plan.hosts_min):
            self.world.machines.add(boot_s=0.0)
        for session in self.workload.sessions:
            self.agenda.at(session.start_s, self._begin_session, session)
        self._plan_tick(0.0)
        latest_s = self.workload.horizon_s + self.plan.overtime_s
        step, agenda = self.agenda.step, self.agenda
        report_at = PROGRESS_EVERY
        while (self._to_come or self.users) and agenda.now_s <= latest_s:
            step()
            if progress is not None and self._events >= report_at:
                report_at += PROGRESS_EVERY
                progress(agenda.now_s, self._events)
        if progress is not None:
            progress(agenda.now_s, self._events)
        return self._finish()

    def say(self, event: e.Event) -> None:
        """Let the scheduler handle an event, check, measure, and carry out what it asks for."""
        self._events += 1
        scheduler = self.scheduler
        actions = scheduler.handle(event)
        if self.plan.check_all:
            check(scheduler.state)
        self.recorder.observe(event, actions)
        if self._handled is not None:
            self._handled(event, actions)
        carry, hear = self.world.carry, self._hear
        for action in actions:
            kind = type(action)
            if kind in carry:
                carry[kind](action)
            if kind in hear:
                hear[kind](action)
        if type(event) is e.AttemptClosed and event.outcome is not Outcome.LOST:
            self._cell_has_ended(event.kernel, event.cell)
        if scheduler.state.queue and self._tick_due_s > event.at + 1.0:
            self._plan_tick(1.0)

    # ---- time

    def _plan_tick(self, after_s: float) -> None:
        self._tick_token += 1
        self._tick_due_s = self.agenda.now_s + after_s
        self.agenda.after(after_s, self._tick, self._tick_token)

    def _tick(self, token: int) -> None:
        if token != self._tick_token:
            return
        state = self.scheduler.state
        busy = len(state.queue) > 0 or state.without_hosts
        self._plan_tick(1.0 if busy else self.plan.tick_s)
        self.say(e.Ticked(self.agenda.now_s))

    # ---- users

    def _begin_session(self, session: PlannedSession) -> None:
        number = self._to_come
        self._to_come -= 1
        kernel = KernelId(f"k{session.session}")
        user = _User(session, kernel)
        self.users[kernel] = user
        self.world.open_kernel(kernel)
        spec = KernelSpec(
            kernel,
            self.plan.replica_count,
            session.gpus,
            millicpus=round(session.cpus * 1000),
            memory_bytes=session.memory_bytes,
            user=f"user-{number % self.plan.users}" if self.plan.users else "",
        )
        self.say(e.KernelRequested(spec, self.agenda.now_s))
        if kernel not in self.users:
            return
        if session.cells:
            self.agenda.at(session.cells[0].submit_s, self._submit, user)
        else:
            self.agenda.at(session.end_s, self._end_session, user)

    def _submit(self, user: _User) -> None:
        if user.kernel not in self.users:
            return
        planned = user.session.cells[user.next_cell]
        user.tries += 1
        cell = CellId(f"c{user.next_cell}.{user.tries}")
        user.open = cell
        self.world.will_run(user.kernel, cell, planned.duration_s)
        now_s = self.agenda.now_s
        self.say(e.CellSubmitted(Cell(user.kernel, cell, planned.gpus), now_s))
        share = self.plan.faults.interrupt_share
        if share and user.open == cell and self.rng.random() < share:
            self.agenda.after(self.rng.uniform(0.0, 3.0), self._interrupt, user, cell)

    def _interrupt(self, user: _User, cell: CellId) -> None:
        if user.open == cell and user.kernel in self.users:
            self.say(e.CellCancelled(user.kernel, cell, self.agenda.now_s))

    def _cell_has_ended(self, kernel: KernelId, cell: CellId) -> None:
        user = self.users.get(kernel)
        if user is None or user.open != cell:
            return
        planned = user.session.cells[user.next_cell]
        user.open, user.tries = None, 0
        user.next_cell += 1
        if user.next_cell < len(user.session.cells):
            self.agenda.after(planned.think_after_s, self._submit, user)
        else:
            end_s = max(user.session.end_s, self.agenda.now_s)
            self.agenda.at(end_s, self._end_session, user)

    def _cell_is_over(self, action: a.CellRejected | a.CellAborted) -> None:
        self._cell_has_ended(action.kernel, action.cell)

    def _attempt_is_closed(self, action: a.CloseAttempt) -> None:
        user = self.users.get(action.kernel)
        if user is not None and action.ends_cell and user.open == action.cell:
            user.open = None
            self.recorder.counts["submitted again"] += 1
            self.agenda.after(self.plan.delays.resubmit_after_s, self._submit, user)

    def _kernel_is_rejected(self, action: a.KernelRejected) -> None:
        self.users.pop(action.kernel, None)
        self._rejected[action.reason] += 1

    def _end_session(self, user: _User) -> None:
        del self.users[user.kernel]
        self.say(e.KernelStopped(user.kernel, self.agenda.now_s))

    # ---- the end

    def _finish(self) -> Run:
        run = Run(self.workload, self.plan, self.recorder, self._events, self.agenda.now_s)
        planned = self.workload.cell_count
        ended = sum(1 for c in self.recorder.cells if c.end not in ("", "lost"))
        run.unfinished_cells = planned - ended
        run.problems += [
            f"{count} sessions got no kernel: {reason}" for reason, count in self._rejected.items()
        ]
        if self.users:
            names = ", ".join(list(self.users)[:5])
            run.problems.append(
                f"{len(self.users)} sessions were not over {self.plan.overtime_s:g} s after the "
                f"horizon ({names} …)"
            )
        for record in self.recorder.open_cells:
            if record.kernel not in self.users:
                raise Defect(f"cell {record.cell} of {record.kernel} was submitted and never ended")
        return run


def _check_hosts_fit(workload: Workload, plan: Plan) -> None:
    shape = plan.shape
    if workload.gpus_most > shape.gpus:
        raise InvalidRequest(
            f"workload {workload.name} has a cell with {workload.gpus_most} GPUs, but hosts "
            f"have {shape.gpus}; use larger hosts"
        )
    for session in workload.sessions:
        if session.cpus * 1000 > shape.millicpus or session.memory_bytes > shape.memory_bytes:
            raise InvalidRequest(
                f"session {session.session} of workload {workload.name} asks for "
                f"{session.cpus:g} cores and {session.memory_bytes / 1e9:g} GB, but hosts have "
                f"{shape.millicpus / 1000:g} and {shape.memory_bytes / 1e9:g} GB; "
                "use larger hosts"
            )
