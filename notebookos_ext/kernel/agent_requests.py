"""Carries out what the host agent asks of this replica, in order, on the kernel's main thread.

It keeps the replica's role: which cell it may run (fencing), whether it is the executor, and up to
where its namespace follows the log.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from notebookos_ext.cluster.entries import Delta
from notebookos_ext.cluster.messages.replica import (
    Applied,
    Apply,
    Interrupt,
    Lead,
    LeadAnswer,
    Park,
    Parked,
    Prepare,
    ReplicaMessage,
    Stop,
    StoreBack,
    ToReplica,
)


class Requests(Protocol):
    """The part of `agent_link.AgentLink` that is used here."""

    def take(self) -> ToReplica | None: ...  # noqa: D102
    def pump(self) -> None: ...  # noqa: D102
    def answer(self, sequence: int, body: ReplicaMessage) -> None: ...  # noqa: D102


class DevicesOfReplica(Protocol):
    """The part of `devices.Devices` that is used here."""

    def prepare(self, request: Prepare) -> LeadAnswer: ...  # noqa: D102
    def park(self) -> Parked: ...  # noqa: D102


class AgentRequests:
    """The replica's role as its agent has told it.

    `apply` puts a delta into the namespace and returns sentences about variables that could not be
    loaded (they are tombstones then, and the kernel goes on); it raises when nothing of the delta
    could be taken in, such as while the store is away. `on_lead` is told each Lead, `on_store_back`
    that the store works again, `on_stop` that the process shall end.
    """

    def __init__(
        self,
        link: Requests,
        devices: DevicesOfReplica,
        *,
        apply: Callable[[Delta], tuple[str, ...]],
        on_lead: Callable[[Lead], None],
        on_store_back: Callable[[], None],
        on_stop: Callable[[], None],
        log: logging.Logger,
    ) -> None:
        self._link = link
        self._devices = devices
        self._apply = apply
        self._on_lead = on_lead
        self._on_store_back = on_store_back
        self._on_stop = on_stop
        self._log = log
        self._lead: Lead | None = None
        self._interrupted = ""
        self._unapplied: deque[ToReplica] = deque()
        self._cannot_apply = ""
        self._problems: list[str] = []
        self._not_durable: tuple[str, ...] = ()
        """Names whose newest value only the last executor had, as of its last entry."""
        self.is_executor = False
        """Whether this process led the kernel's last attempt, as far as it knows."""

    def claim(self, cell: str) -> Lead | None:
        """The Lead for the cell with this msg_id, once; None when it must not run here.

        The Lead was written to the socket before the cell was sent, but another thread reads it, so
        what has arrived is taken in first.
        """
        if self._lead is None or self._lead.cell != cell:
            self._link.pump()
            self.run_pending()
        lead, self._lead = self._lead, None
        return lead if lead is not None and lead.cell == cell else None

    def was_interrupted(self, cell: str) -> bool:
        """Whether the user interrupted this cell, as far as the agent has told.

        The agent writes it before it sends the signal: who could not use a signal asks here.
        """
        self._link.pump()
        self.run_pending()
        return self._interrupted == cell

    def take_problems(self) -> list[str]:
        """Sentences about variables that could not be loaded or were lost, each given once.

        The scheduler waits for what is on its way to the store: who leads while something still was
        leads after its executor was lost.
        """
        # Several entries may say the same, such as that the working directory is gone.
        problems, self._problems = list(dict.fromkeys(self._problems)), []
        names, self._not_durable = self._not_durable, ()
        if names:
            problems.append(
                f"the newest value of {', '.join(names)} was lost with its replica before it was "
                "in the checkpoint store; what was stored before is here, if anything was. "
                "Run the cell that makes it again."
            )
        return problems

    def run_pending(self) -> None:
        """Carry out everything that has arrived."""
        while (message := self._link.take()) is not None:
            self._run(message)

    def _run(self, message: ToReplica) -> None:
        match message.body:
            case Apply():
                self._unapplied.append(message)
                self._catch_up()
            case Prepare():
                self._link.answer(message.sequence, self._prepare(message.body))
            case Lead():
                self._lead = message.body
                self.is_executor = True
                self._on_lead(message.body)
            case Interrupt():
                self._interrupted = message.body.cell
            case Park():
                self._link.answer(message.sequence, self._park())
            case StoreBack():
                self._catch_up()
                self._on_store_back()
            case Stop():
                self._on_stop()
            case _:
                self._log.error("the host agent sent an unexpected %r", type(message.body).__name__)

    def _prepare(self, request: Prepare) -> LeadAnswer:
        self._catch_up()
        if self._cannot_apply:
            return LeadAnswer(accepted=False, reason=self._cannot_apply)
        try:
            return self._devices.prepare(request)
        except Exception as error:  # noqa: BLE001 — a framework may fail in any way; the agent is told
            self._log.exception("the devices could not be prepared")
            return LeadAnswer(
                accepted=False,
                reason=f"the devices could not be prepared: {type(error).__name__}: {error}",
                recycle=True,
            )

    def _park(self) -> Parked:
        try:
            return self._devices.park()
        except Exception:  # noqa: BLE001 — as above
            # What stays on the devices is not known here; the agent measures it.
            self._log.exception("the devices could not be parked")
            return Parked(0)

    def _catch_up(self) -> None:
        """Apply in log order; one that fails stops it, and is tried again with the next request."""
        while self._unapplied:
            message = self._unapplied[0]
            request = message.body
            assert isinstance(request, Apply)  # noqa: S101 — only those are appended
            if not request.own:
                self.is_executor = False
                self._lead = None
                if request.delta is not None and not self._try(request):
                    return
            if request.own:
                # Its own late parts are still on their way.
                self._not_durable = ()
            elif request.delta is not None:
                self._not_durable = request.delta.pending
            self._unapplied.popleft()
            self._link.answer(message.sequence, Applied(request.index))

    def _try(self, request: Apply) -> bool:
        delta = request.delta
        assert delta is not None  # noqa: S101 — the caller looked
        try:
            problems = self._apply(delta)
        except Exception as error:  # noqa: BLE001 — unpickling runs the user's code
            self._cannot_apply = (
                f"what the kernel's log has at entry {request.index} cannot be loaded here: {error}"
            )
            self._log.exception("entry %d could not be applied", request.index)
            return False
        self._cannot_apply = ""
        self._problems += problems
        for problem in problems:
            self._log.error("entry %d: %s", request.index, problem)
        return True
