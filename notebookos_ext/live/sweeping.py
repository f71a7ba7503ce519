"""Sweeps of the checkpoint store: what no log, no snapshot and no stored kernel names is deleted.

Only what is known to be unnamed goes: every host that has a log is asked first, after it has caught
up with its group; while one of them is away, or a kernel of an earlier server is not back, nothing
is deleted. What was put or looked for lately is spared in any case: it may be about to be named.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from notebookos_ext.clock import Clock
from notebookos_ext.cluster.actions import Action
from notebookos_ext.cluster.events import Event, KernelStopped
from notebookos_ext.cluster.messages.control import NamedChunks, ReadChunks, StoreSwept, SweepStore
from notebookos_ext.cluster.model import HostId, KernelId
from notebookos_ext.errors import NotebookOSError, Unavailable
from notebookos_ext.live.fleet import Fleet
from notebookos_ext.live.kernel_records import KernelRecord

READ_S = 60.0
"""A host may have to read all of a long log to say what it names."""
SWEEP_S = 3600.0
AFTER_KERNEL_S = 60.0
"""So long after the end of a kernel its chunks are looked at; others may end with it."""
LOOK_S = 5.0

log = logging.getLogger(__name__)


class Sweeper:
    """Sweeps when asked, now and then, and after the end of kernels. An `Observer`."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        records: Mapping[KernelId, KernelRecord],
        unknown: Callable[[], str],
        named: Callable[[], Collection[str]],
        clock: Clock,
        every_s: float,
        spared_s: float,
    ) -> None:
        """`unknown` says why it cannot be known what is needed, `named` what no log names.

        Chunks younger than `spared_s` are left alone; with `every_s` 0 nothing is swept unasked.
        """
        self._fleet = fleet
        self._records = records
        self._unknown = unknown
        self._named = named
        self._clock = clock
        self._every_s = every_s
        self._spared_s = spared_s
        self._due_at = clock.monotonic() + every_s
        self._sweeping = asyncio.Lock()

    def observe(self, event: Event, _actions: Sequence[Action]) -> None:
        """See `Observer`: a kernel that was shut down leaves chunks behind."""
        if isinstance(event, KernelStopped):
            self._due_at = min(self._due_at, self._clock.monotonic() + AFTER_KERNEL_S)

    async def run(self) -> None:
        """Sweep whenever it is time; a sweep that cannot be is tried again the next time."""
        while self._every_s:
            await asyncio.sleep(LOOK_S)
            if self._clock.monotonic() < self._due_at:
                continue
            self._due_at = self._clock.monotonic() + self._every_s
            try:
                await self.sweep(dry_run=False)
            except NotebookOSError as error:
                log.info("the checkpoint store was not swept: %s", error)

    async def sweep(self, *, dry_run: bool) -> StoreSwept:
        """Delete what nothing names; what went, or with `dry_run` would go.

        Raises Unavailable with why it cannot be known what is named, and StorageError.
        """
        async with self._sweeping:
            self._require_all()
            began_at = self._clock.monotonic()
            hosts = self._fleet.hosts()
            answers = await asyncio.gather(*map(self._named_by, hosts))
            told = dict(zip(hosts, answers, strict=True))
            self._require_all()
            self._require_open(told)
            # Those of stored kernels last: one may have been stored meanwhile.
            named = set(self._named()).union(*(answer.digests for answer in told.values()))
            # What was put since the hosts were asked is spared, however long they took.
            spared_s = self._spared_s + self._clock.monotonic() - began_at
            request = SweepStore(tuple(sorted(named)), spared_s, dry_run)
            swept = await self._fleet.agent(hosts[0]).request(request, StoreSwept, SWEEP_S)
        log.info(
            "%d chunks (%d bytes) that nothing names %s the checkpoint store",
            swept.chunks, swept.size_bytes, "would go from" if dry_run else "are gone from",
        )  # fmt: skip
        return swept

    async def _named_by(self, host: HostId) -> NamedChunks:
        try:
            return await self._fleet.agent(host).request(ReadChunks(), NamedChunks, READ_S)
        except NotebookOSError as error:
            raise Unavailable(
                f"{host} does not say which chunks it needs: {error.message}; nothing was swept"
            ) from error

    def _require_all(self) -> None:
        """Raises Unavailable unless every host with a log is there, and every kernel with one."""
        if why := self._unknown():
            raise Unavailable(f"it is not known which chunks are needed ({why}); nothing was swept")
        for record in self._living():
            for host in record.members:
                if not self._fleet.has(host):
                    raise Unavailable(
                        f"{host} is away and has a log of kernel {record.kernel}, so it is not "
                        "known which chunks it needs; nothing was swept"
                    )
        if not self._fleet.hosts():
            raise Unavailable("no host is there that could sweep the checkpoint store")

    def _require_open(self, told: Mapping[HostId, NamedChunks]) -> None:
        for record in self._living():
            for host in record.members:
                if host not in told or record.kernel not in told[host].kernels:
                    raise Unavailable(
                        f"{host} has not opened its log of kernel {record.kernel} yet; nothing was "
                        "swept, try again later"
                    )

    def _living(self) -> list[KernelRecord]:
        return [record for record in self._records.values() if not record.closed]
