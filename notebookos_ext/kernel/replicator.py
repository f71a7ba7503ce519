"""Carries what user code changed from the namespace to the log, in the right order.

Everything here runs on the kernel's main thread except the shipping of late parts, which has a
thread of its own. It decides when a reply may go; it knows neither IPython nor sockets.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Protocol

import msgspec

from notebookos_ext.cluster.entries import Delta
from notebookos_ext.cluster.messages.replica import (
    AgentFailure,
    AgentMessage,
    CommitAttempt,
    CommitState,
    Committed,
    Lead,
    ReplicaMessage,
)
from notebookos_ext.cluster.model import HeldName, Outcome
from notebookos_ext.errors import InvalidSettings, ProtocolError, Refused

SYNC_MODES = ("after-reply", "log-before-reply", "all-before-reply")
MAX_STAGED = 2
"""Late parts of this many cells may wait in memory."""
STORE_ERRORS = frozenset({"StorageError", "StorageFull", "CorruptRecord"})
"""Failures of the checkpoint store, by their names in `errors.py`."""

Publish = Callable[[str], None]
"""Shows a sentence in the output of the cell (or message) whose changes it is about."""


class Collected(Protocol):
    """What a collect found; see `synchronizer.Collected`."""

    @property
    def delta(self) -> Delta: ...  # noqa: D102
    @property
    def late(self) -> Any: ...  # noqa: D102
    @property
    def notes(self) -> tuple[str, ...]: ...  # noqa: D102


class Namespace(Protocol):
    """The part of `synchronizer.Synchronizer` that is used here."""

    held: tuple[HeldName, ...]
    gpu_names: tuple[str, ...]

    def collect(self) -> Collected | None: ...  # noqa: D102
    def ship_late(self, late: Any) -> Delta: ...  # noqa: D102
    def forget(self, names: Iterable[str]) -> None: ...  # noqa: D102
    def forget_all(self) -> None: ...  # noqa: D102
    def forget_chunks(self) -> None: ...  # noqa: D102


class Requester(Protocol):
    """The part of `agent_link.AgentLink` that is used here."""

    def request(self, body: ReplicaMessage) -> Future[AgentMessage]: ...  # noqa: D102


class ReplyRule(msgspec.Struct, frozen=True):
    """When the reply of a cell may go: the setting `sync`, and its budget in milliseconds."""

    sync: str = "log-before-reply"
    budget_ms: float = 10_000.0
    """Longer than an election, so that a reply outlives its host unless the majority is gone."""

    def __post_init__(self) -> None:
        """Refuse an unknown mode."""
        if self.sync not in SYNC_MODES:
            raise InvalidSettings(
                f"sync is {self.sync!r}; it must be one of {', '.join(SYNC_MODES)}"
            )

    def wait_s(self) -> float | None:
        """How long a reply waits for its commit, in seconds; None without limit."""
        if self.sync == "all-before-reply":
            return None
        return 0.0 if self.sync == "after-reply" else self.budget_ms / 1000


class _Shipment(msgspec.Struct):
    late: Any
    generation: int
    publish: Publish
    done: Future[None]


class Replicator:
    """Collects, commits, and ships late parts for one replica."""

    def __init__(
        self,
        namespace: Namespace,
        link: Requester,
        rule: ReplyRule,
        *,
        call_on_main: Callable[[Callable[[], None]], None],
        log: logging.Logger,
        held_here: Callable[[], tuple[HeldName, ...]] = tuple,
    ) -> None:
        """`held_here` names what holds the kernel to this process besides its variables."""
        self._namespace = namespace
        self._link = link
        self._rule = rule
        self._call_on_main = call_on_main
        self._log = log
        self._held_here = held_here
        self._held_sent: tuple[HeldName, ...] = ()
        self._attempt = 0
        self._order = threading.Lock()
        """Held while a delta is completed and written, so that the log gets them oldest first."""
        self._pending: dict[str, int] = {}
        """Names whose newest value is still being shipped, to the generation that ships it."""
        self._generation = 0
        self._told: set[str] = set()
        """Names of which the user was told that the store did not take them."""
        self._shipments: queue.SimpleQueue[_Shipment] = queue.SimpleQueue()
        self._shipper: threading.Thread | None = None
        self._shipments_open: deque[Future[None]] = deque()

    def leads(self, attempt: int) -> None:
        """This replica was made the executor of `attempt`."""
        self._attempt = attempt

    @property
    def pending(self) -> tuple[str, ...]:
        """Names whose newest value is not yet in the store."""
        return tuple(sorted(self._pending))

    async def shipped(self) -> None:
        """Wait until every late part is in the store and committed, or given up."""
        for done in tuple(self._shipments_open):
            await asyncio.wrap_future(done)

    # ---- committing -----------------------------------------------------------------------------

    def close_attempt(self, lead: Lead, outcome: Outcome, publish: Publish) -> None:
        """The cell's code ended: commit what it changed. Returns when the reply may go."""
        collected = self._collect(publish)

        def message(delta: Delta) -> ReplicaMessage:
            return CommitAttempt(lead.cell, lead.attempt, outcome, delta)

        self._commit(collected, message, publish, wait_s=self._rule.wait_s())

    def commit_state(self, publish: Publish, *, wait: bool = False) -> None:
        """Commit what changed outside a cell, if anything did.

        With `wait` it returns when the commit has an answer or its budget is spent, so that the
        next cell finds the changes wherever it runs.
        """
        attempt = self._attempt
        if not attempt:
            return
        collected = self._collect(publish)
        if collected is not None or self._held() != self._held_sent:
            wait_s = self._rule.budget_ms / 1000 if wait else 0.0
            self._commit(collected, lambda d: CommitState(attempt, d), publish, wait_s=wait_s)

    def _collect(self, publish: Publish) -> Collected | None:
        try:
            collected = self._namespace.collect()
        except Exception as error:  # noqa: BLE001 — the user's objects may do anything when read
            # The attempt must be closed all the same.
            self._log.exception("what changed could not be collected")
            self._namespace.forget_all()
            publish(
                "NotebookOS could not read what changed in the namespace "
                f"({type(error).__name__}: {error}); it is not replicated and is tried again after "
                "the next cell.\n"
            )
            return None
        if collected is not None:
            for note in collected.notes:
                publish(note if note.endswith("\n") else note + "\n")
        return collected

    def _commit(
        self,
        collected: Collected | None,
        message: Callable[[Delta], ReplicaMessage],
        publish: Publish,
        *,
        wait_s: float | None,
    ) -> None:
        delta = collected.delta if collected is not None else Delta()
        late = collected.late if collected is not None else None
        with self._order:
            self._generation += 1
            for name in (*_names(delta), *delta.deleted):
                # A newer value is in this very delta: the older one must not come after it.
                self._pending.pop(name, None)
            if late is not None:
                self._pending |= dict.fromkeys(delta.pending, self._generation)
            generation = self._generation
            delta = self._complete(delta)
            answer = self._request(message, delta)
        shipped = self._ship(late, generation, publish) if late is not None else None
        names = (*_names(delta), *delta.deleted)
        if not self._in_time(answer, wait_s):
            publish(_not_kept(names))
        self._settle(answer, names, publish)
        if shipped is not None and wait_s is None:
            shipped.result()
        # Every shipment is a copy in memory: beyond a few, the cells wait for the store.
        for done in tuple(self._shipments_open)[:-MAX_STAGED]:
            done.result()

    def _request(
        self, message: Callable[[Delta], ReplicaMessage], delta: Delta
    ) -> Future[AgentMessage]:
        try:
            return self._link.request(message(delta))
        except ProtocolError as error:
            # The attempt must be closed; the changes count as rejected.
            self._link.request(message(self._complete(Delta())))
            rejected: Future[AgentMessage] = Future()
            rejected.set_result(AgentFailure("ProtocolError", error.message))
            return rejected

    def _held(self) -> tuple[HeldName, ...]:
        return (*self._namespace.held, *self._held_here())

    def _complete(self, delta: Delta) -> Delta:
        self._held_sent = self._held()
        return msgspec.structs.replace(
            delta,
            held=self._held_sent,
            gpu_names=tuple(self._namespace.gpu_names),
            pending=self.pending,
        )

    @staticmethod
    def _in_time(answer: Future[AgentMessage], wait_s: float | None) -> bool:
        """Wait for the answer; False when the user must know that there was none."""
        if wait_s == 0.0:
            return True
        try:
            answer.result(wait_s)
        except FutureTimeout:
            # It is written to the agent's socket, so only the loss of the whole host can undo it.
            return False
        return True

    def _settle(
        self, answer: Future[AgentMessage], names: tuple[str, ...], publish: Publish
    ) -> None:
        """Look at the answer now or when it comes, on the main thread in either case."""

        def look() -> None:
            body = answer.result()
            if isinstance(body, Committed):
                self._told.clear()
            else:
                self._rejected(body, names, publish)

        if answer.done():
            look()
        else:
            answer.add_done_callback(lambda _: self._call_on_main(look))

    def _rejected(self, body: AgentMessage, names: tuple[str, ...], publish: Publish) -> None:
        failure = body if isinstance(body, AgentFailure) else None
        if failure and failure.error in STORE_ERRORS and not failure.names:
            # Which chunks arrived is not known: all are sent again.
            self._namespace.forget_all()
        elif failure and failure.names:
            names = failure.names
            self._namespace.forget_chunks()
            self._namespace.forget(names)
        else:
            self._namespace.forget(names)
        why = failure.message if failure else f"the host agent answered {type(body).__name__}"
        self._log.error("a commit was rejected: %s (names: %s)", why, ", ".join(names))
        if failure and failure.names:
            # Until the store takes them they are tried again and again; once is enough to say so.
            if self._told.issuperset(names):
                return
            self._told.update(names)
        what = "the changes to " + ", ".join(names) if names else "what changed"
        fenced = failure is not None and failure.error == Refused.__name__
        again = "" if fenced else " It is tried again after the next cell."
        if failure and failure.names:
            again = " It is tried again when the store works."
        publish(f"NotebookOS could not replicate {what}: {why}.{again}\n")

    # ---- late parts -----------------------------------------------------------------------------

    def _ship(self, late: Any, generation: int, publish: Publish) -> Future[None]:
        shipment = _Shipment(late, generation, publish, Future())
        if self._shipper is None:
            self._shipper = threading.Thread(
                target=self._ship_forever, name="Late parts", daemon=True
            )
            # debugpy must not suspend it at a breakpoint.
            self._shipper.pydev_do_not_trace = True  # type: ignore[attr-defined]
            self._shipper.is_pydev_daemon_thread = True  # type: ignore[attr-defined]
            self._shipper.start()
        self._shipments_open.append(shipment.done)
        self._shipments.put(shipment)
        return shipment.done

    def _ship_forever(self) -> None:
        while True:
            shipment = self._shipments.get()
            try:
                self._ship_one(shipment)
            except Exception as error:  # noqa: BLE001 — the thread serves every later cell too
                self._log.exception("late parts could not be shipped")
                self._give_up(shipment, f"{type(error).__name__}: {error}")
            finally:
                # Shipments end in the order in which they began.
                self._shipments_open.popleft()
                shipment.done.set_result(None)

    def _ship_one(self, shipment: _Shipment) -> None:
        with self._order:
            if shipment.generation not in self._pending.values():
                return
        delta = self._namespace.ship_late(shipment.late)
        with self._order:
            components = tuple(
                component
                for component in delta.components
                if all(self._pending.get(n) == shipment.generation for n in component.names)
            )
            for component in components:
                for name in component.names:
                    self._pending.pop(name, None)
            if not components:
                return
            delta = self._complete(msgspec.structs.replace(delta, components=components))
            answer = self._link.request(CommitState(self._attempt, delta))
        answer.result()
        self._call_on_main(lambda: self._settle(answer, _names(delta), shipment.publish))

    def _give_up(self, shipment: _Shipment, why: str) -> None:
        with self._order:
            names = tuple(n for n, g in self._pending.items() if g == shipment.generation)
            for name in names:
                del self._pending[name]

        def tell() -> None:
            self._rejected(AgentFailure("StorageError", why), names, shipment.publish)

        self._call_on_main(tell)


def _not_kept(names: tuple[str, ...]) -> str:
    what = ", ".join(names) if names else "what this cell changed"
    return (
        f"NotebookOS: {what} could not be kept on other hosts yet, since most of the kernel's "
        "hosts do not answer; it is tried on, and lost only if this host is lost before.\n"
    )


def _names(delta: Delta) -> tuple[str, ...]:
    return tuple(name for component in delta.components for name in component.names)
