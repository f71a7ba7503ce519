"""Keeps account of what runs: a meter on the scheduler's events, and a thread that writes.

The scheduler's thread never waits for the disk. A ledger that cannot be written is said once and
keeps nothing from running.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from notebookos_ext.cluster import actions, events
from notebookos_ext.cluster.accounting import Meter, Usage
from notebookos_ext.cluster.occupancy import GpuStretch, Occupancy
from notebookos_ext.cluster.state import ClusterView
from notebookos_ext.errors import StorageError
from notebookos_ext.storage.usage import By, GpuPoint, UsageLedger, UsageSum

log = logging.getLogger(__name__)

_HOSTS_CHANGED = (events.HostJoined, events.HostLost, events.HostRemoved)


class Accounting:
    """The account of one cluster. `observe` belongs to the scheduler's thread, the rest to any."""

    def __init__(
        self, path: Path, *, view: ClusterView, user: str, warn: Callable[[str], None]
    ) -> None:
        """Nothing is opened yet. `warn` is called from another thread."""
        self._path = path
        self._view = view
        self._occupancy = Occupancy()
        self._provisioned = 0
        self._user = user
        self._warn = warn
        self._meter = Meter()
        self._ledger: UsageLedger | None = None
        self._broken = False
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="notebookos-accounting")

    def observe(self, event: events.Event, answers: Iterable[actions.Action]) -> None:
        """Note what an event and its actions say."""
        records: list[Usage | GpuStretch] = [*self._meter.observe(event, answers)]
        if isinstance(event, _HOSTS_CHANGED):
            hosts = self._view.ready_hosts
            self._provisioned = len({d.device for host in hosts for d in host.spec.devices})
        bound = len(self._view.bindings)
        records += self._occupancy.note(event.at, provisioned=self._provisioned, bound=bound)
        if records:
            self._writer.submit(self._write, records)

    def sums(self, *, since: float, until: float, by: By) -> Future[list[UsageSum]]:
        """See `UsageLedger.sums`; what was observed before is in it."""
        return self._writer.submit(
            lambda: self._open().sums(since=since, until=until, by=by),
        )

    def timeline(self, *, since: float, until: float, points: int) -> Future[list[GpuPoint]]:
        """See `UsageLedger.timeline`."""
        return self._writer.submit(
            lambda: self._open().timeline(since=since, until=until, points=points),
        )

    def close(self, at: float) -> None:
        """Return when everything is written, lives up to `at` included. Nobody observes now."""
        # What was observed before is written first. It may be the end of the interpreter, which
        # takes no more work for other threads.
        self._writer.shutdown()
        if records := [*self._meter.finish(at), *self._occupancy.finish(at)]:
            self._write(records)
        self._close()

    def _open(self) -> UsageLedger:
        if self._ledger is None:
            self._ledger = UsageLedger(self._path)
        return self._ledger

    def _write(self, records: list[Usage | GpuStretch]) -> None:
        try:
            self._open().put(records, user=self._user)
        except StorageError as error:
            if not self._broken:
                self._warn(f"{error.message}; the savings that are shown will lack it")
            self._broken = True
        else:
            self._broken = False

    def _close(self) -> None:
        if self._ledger is not None:
            self._ledger.close()
