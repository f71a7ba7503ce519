"""The order of cells that wait: by priority, fair share and arrival, with bounded overtaking.

While cells stand in line, each user's cells are numbered by start-time fair queueing: a cell's
*tag* is where its user's earlier cells end on a virtual clock that counts GPUs by weight, and the
smallest tag comes first. So a user with many cells is not served before one with few, and nobody
saves up a claim while nobody waits. A kernel whose user is not known is a user of its own.

A cell whose GPUs are free elsewhere need not stand behind one whose hosts are full; but each time a
younger cell takes a GPU that an older one could have used, the older one is *bypassed*. After
`BYPASS_LIMIT` times what becomes free on its best host is kept for it, so that a cell that needs
many GPUs gets them however many small ones arrive. Overtakings that priority or fairness ask for
count too, but `OUTRANK_LIMIT` of them are allowed. GPUs are kept for the `PROTECTED_MAX` oldest of
these at once; since the oldest always get theirs, so does everybody in the end.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from notebookos_ext.cluster.model import Cell, CellId, DeviceId, HostId, KernelId, ReplicaId

BYPASS_LIMIT = 8
OUTRANK_LIMIT = 64
PROTECTED_MAX = 4
ANYWHERE_MOST = 4
"""How many of the cells that any host could serve are looked at when GPUs become free."""


Rank = tuple[int, float, int]
"""Priority (negative, so that more comes first), tag, order of arrival."""


@dataclass(slots=True, eq=False)
class WaitingCell:
    """A cell that has not started, and what its user was told last."""

    cell: Cell
    since: float
    order: int
    """Place in the order of arrival; kept when an attempt is refused."""
    rank: Rank = (0, 0.0, 0)
    """Place among all: the smallest is served first. Never changes."""
    user: str = ""
    position: int = 0
    reason: str = ""
    for_gpus: bool = False
    """Waits in the queue for GPUs, rather than for its own kernel."""
    in_line_since: float | None = None
    """When it began to stand in line for GPUs."""
    hosts: tuple[HostId, ...] = ()
    """Where it stands in line, while it waits for GPUs."""
    bypassed: int = 0
    outranked: int = 0
    """How often it was overtaken by rights."""
    refused: dict[ReplicaId, str] = field(default_factory=dict)
    """Replicas that refused it since the last tick, with their reasons."""
    refusals: dict[ReplicaId, int] = field(default_factory=dict)
    """How often each refused it since the last tick."""
    offers: dict[ReplicaId, tuple[DeviceId, ...]] = field(default_factory=dict)
    """What those would bind who voted to lead."""
    recycling: ReplicaId | None = None
    """The replica that is restarted for it."""
    recycled: set[ReplicaId] = field(default_factory=set)

    @property
    def key(self) -> tuple[KernelId, CellId]:
        """What names it in the whole cluster."""
        return self.cell.kernel, self.cell.cell

    @property
    def protected(self) -> bool:
        """It was overtaken often enough."""
        return self.for_gpus and self.was_overtaken

    @property
    def was_overtaken(self) -> bool:
        """More must not pass it, once it stands in line."""
        return self.bypassed >= BYPASS_LIMIT or self.outranked >= OUTRANK_LIMIT


class WaitingQueue:
    """All waiting cells of the cluster, oldest first, and who stands in line at which host."""

    def __init__(self) -> None:
        self._cells: dict[tuple[KernelId, CellId], WaitingCell] = {}
        self._lines: dict[HostId, dict[tuple[KernelId, CellId], WaitingCell]] = {}
        self._order = 0
        self._clock = 0.0
        """The virtual time of fair queueing: the tag of the cell that was served last."""
        self._ends: dict[str, float] = {}
        """Where each user's cells end on that clock."""
        self.moved = False
        """Somebody joined or left a line: positions must be counted anew."""
        self._anywhere: dict[tuple[KernelId, CellId], WaitingCell] = {}
        self._line: list[tuple[Rank, WaitingCell]] = []
        """Who stands in any line, the first served first."""
        self._protected: dict[tuple[KernelId, CellId], WaitingCell] = {}

    def __len__(self) -> int:
        return len(self._cells)

    def __iter__(self) -> Iterator[WaitingCell]:
        """Those that are served first, first."""
        return iter(sorted(self._cells.values(), key=lambda waiting: waiting.rank))

    def find(self, kernel: KernelId, cell: CellId) -> WaitingCell | None:
        """The waiting cell of that name."""
        return self._cells.get((kernel, cell))

    def new(
        self, cell: Cell, since: float, *, user: str = "", priority: int = 0, weight: float = 1.0
    ) -> WaitingCell:
        """A cell that has just arrived; not yet among the waiting."""
        self._order += 1
        tag = self._clock
        if not self.in_need:
            self._ends.clear()
        if cell.gpus > 0:
            tag = max(tag, self._ends.get(user, 0.0))
            self._ends[user] = tag + cell.gpus / weight
        return WaitingCell(cell, since, self._order, (-priority, tag, self._order), user)

    def served(self, waiting: WaitingCell) -> None:
        """It begins: whoever comes new is not placed before it."""
        self._clock = max(self._clock, waiting.rank[1])

    def add(self, waiting: WaitingCell) -> None:
        """It waits (again, with what it has been through)."""
        self._cells[waiting.key] = waiting
        if waiting.was_overtaken:
            self._protected[waiting.key] = waiting

    def remove(self, waiting: WaitingCell) -> None:
        """It waits no more."""
        self.stand(waiting, ())
        self._cells.pop(waiting.key, None)
        self._anywhere.pop(waiting.key, None)
        self._protected.pop(waiting.key, None)
        waiting.position, waiting.reason = 0, ""

    def stand(
        self, waiting: WaitingCell, hosts: tuple[HostId, ...], *, anywhere: bool = False
    ) -> None:
        """Put it in line for GPUs at these hosts, or `anywhere` besides; none takes it out."""
        for_gpus = bool(hosts) or anywhere
        if for_gpus != waiting.for_gpus:
            entry = waiting.rank, waiting
            if for_gpus:
                bisect.insort(self._line, entry)
            else:
                del self._line[bisect.bisect_left(self._line, entry)]
        if anywhere:
            self._anywhere[waiting.key] = waiting
        else:
            self._anywhere.pop(waiting.key, None)
        if for_gpus != waiting.for_gpus:
            self.moved = True
        if hosts != waiting.hosts:
            for host in waiting.hosts:
                line = self._lines[host]
                line.pop(waiting.key, None)
                if not line:
                    del self._lines[host]
            for host in hosts:
                self._lines.setdefault(host, {})[waiting.key] = waiting
        waiting.for_gpus, waiting.hosts = for_gpus, hosts

    def in_line(self, hosts: Iterable[HostId]) -> set[WaitingCell]:
        """Who stands in line at any of the hosts."""
        return {waiting for host in hosts for waiting in self._lines.get(host, {}).values()}

    def anywhere(self, gpus: int) -> list[WaitingCell]:
        """The first of those that any host could serve, and that need no more than `gpus`."""
        if not self._anywhere:
            return []
        fitting = (w for w in self._anywhere.values() if w.cell.gpus <= gpus)
        return heapq.nsmallest(ANYWHERE_MOST, fitting, key=lambda waiting: waiting.rank)

    def first(self, most: int | None) -> Iterator[WaitingCell]:
        """Who stands in any line, the first served first; at most so many."""
        return (waiting for _, waiting in self._line[:most])

    def place(self, waiting: WaitingCell) -> int:
        """Its place in line, from 1."""
        return bisect.bisect_left(self._line, (waiting.rank, waiting)) + 1

    @property
    def has_overtaken(self) -> bool:
        """Whether any cell was overtaken often enough to be protected."""
        return bool(self._protected)

    @property
    def in_need(self) -> bool:
        """Whether any cell stands in line for GPUs."""
        return bool(self._line)

    @property
    def protected(self) -> list[WaitingCell]:
        """Cells for which free GPUs are kept, oldest first."""
        if not self._protected:
            return []
        found = (waiting for waiting in self._protected.values() if waiting.protected)
        return heapq.nsmallest(PROTECTED_MAX, found, key=lambda waiting: waiting.order)

    def overtake(self, younger: WaitingCell, hosts: Iterable[HostId]) -> None:
        """`younger` took GPUs of these hosts; who stood in line there before it was bypassed."""
        for waiting in self.in_line(hosts):
            if waiting.order < younger.order:
                if waiting.rank < younger.rank:
                    waiting.bypassed += 1
                else:
                    waiting.outranked += 1
                if waiting.was_overtaken:
                    self._protected[waiting.key] = waiting
