"""Tells the browsers that something changed: bursts become one Jupyter event.

`changed` comes from the controller's thread; `emit` is called on the server's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from notebookos_ext.cluster.model import KernelId

SCHEMA_ID = "https://events.notebookos.org/cluster_changed/v1"
SCHEMA_FILE = (
    Path(__file__).resolve().parent.parent / "event_schemas" / "cluster_changed" / "v1.yaml"
)
QUIET_S = 0.1
"""At most ten events a second reach the tabs, however many cells end."""


class Telemetry:
    """Coalesces changes of one kernel; the last kind of a burst is the one that is told."""

    def __init__(
        self, *, loop: asyncio.AbstractEventLoop, emit: Callable[[dict[str, str | None]], None]
    ) -> None:
        self._loop = loop
        self._emit = emit
        self._lock = threading.Lock()
        self._pending: dict[KernelId | None, str] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def changed(self, kernel: KernelId | None, kind: str) -> None:
        """From any thread: something about `kernel` (None: the cluster) changed."""
        with self._lock:
            first = not self._pending
            self._pending[kernel] = kind
        # The loop is woken once per burst, not once per change.
        if first and not self._closed:
            # The server's loop may be closed before the cluster has ended.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._begin)

    def close(self) -> None:
        """Say nothing more; on the loop."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> None:
        if not self._closed:
            self._timer = self._loop.call_later(QUIET_S, self._tell)

    def _tell(self) -> None:
        with self._lock:
            pending, self._pending = self._pending, {}
        for kernel, kind in pending.items():
            self._emit({"kind": kind, "kernel_id": kernel})
