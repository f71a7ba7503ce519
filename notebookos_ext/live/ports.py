"""What the parts of the controller ask of each other, so that none needs to know the whole."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Sequence
from typing import Any, Protocol

from notebookos_ext.cluster.actions import Action
from notebookos_ext.cluster.events import Event
from notebookos_ext.cluster.model import CellId, KernelId, ReplicaId


class RouterCommands(Protocol):
    """What is asked of the router; `live/router_thread.py` answers."""

    def replica_ready(
        self, kernel: KernelId, replica: ReplicaId, endpoints: dict[str, str]
    ) -> None:
        """Connect to its channels."""
        ...

    def replica_gone(self, kernel: KernelId, replica: ReplicaId) -> None:
        """Forget its channels."""
        ...

    def set_executor(self, kernel: KernelId, replica: ReplicaId | None) -> None:
        """Where requests that are no cells go; None: they wait."""
        ...

    def hold_back(self, kernel: KernelId) -> None:
        """Requests that are no cells wait until an executor is set, or the kernel rests."""
        ...

    def is_quiet(self, kernel: KernelId) -> concurrent.futures.Future[bool]:
        """Whether no replica works for a client just now."""
        ...

    def rest(self, kernel: KernelId, description: dict[str, Any] | None) -> None:
        """No replica runs until one is needed; who asks is told `description`, if it is known."""
        ...

    def cell_waits(self, kernel: KernelId, cell: CellId) -> None:
        """The cell waits; what stands behind it and is no cell need not."""
        ...

    def start_cell(self, kernel: KernelId, cell: CellId, attempt: int, replica: ReplicaId) -> None:
        """Forward the cell."""
        ...

    def tell_cell(self, kernel: KernelId, cell: CellId, text: str) -> None:
        """Say something in the cell's output, on stderr, before it starts."""
        ...

    def fail_cell(
        self, kernel: KernelId, cell: CellId, *, ename: str, evalue: str, hint: str = ""
    ) -> None:
        """End the cell with an error."""
        ...

    def abort_cell(self, kernel: KernelId, cell: CellId, reason: str) -> None:
        """End a cell that had not started."""
        ...

    def restart_kernel(self, kernel: KernelId) -> None:
        """Abort what is open, forget the replicas, keep the front ports."""
        ...


class Observer(Protocol):
    """Watches the scheduler: accounts, journals, metrics. It must be quick, and changes nothing."""

    def observe(self, event: Event, actions: Sequence[Action]) -> None:
        """An event was handled and led to these actions; on the scheduler's thread."""
        ...


class Outlet(Protocol):
    """How the parts say what happened."""

    def post(self, event: Event) -> None:
        """Something for the scheduler."""
        ...

    def warn(self, message: str, kernel: KernelId | None = None) -> None:
        """Something for the user."""
        ...

    def changed(self, kernel: KernelId | None, kind: str) -> None:
        """Something that a snapshot would show; `kind` is one of the event schema's words."""
        ...


class Lives(Protocol):
    """What clients may ask of a kernel as a whole."""

    def interrupt(self, kernel: KernelId) -> None:
        """Take back the cell that waits, or interrupt the one that runs."""
        ...

    def shutdown_asked(self, kernel: KernelId, restart: bool) -> None:
        """A client sent shutdown_request."""
        ...

    def rests(self, kernel: KernelId) -> None:
        """If the scheduler has it in the store now, so have its record and the router."""
        ...

    def used(self, kernel: KernelId) -> None:
        """A client asks for something that is no cell."""
        ...

    def needed(self, kernel: KernelId) -> None:
        """The same, and no replica runs that could answer."""
        ...

    def described(self, kernel: KernelId, content: dict[str, Any]) -> None:
        """A replica has said who the kernel is."""
        ...

    def launch_failed(self, kernel: KernelId, reason: str) -> None:
        """A replica could not be launched, or ended; one of many failures may be the last."""
        ...
