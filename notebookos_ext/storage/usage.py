"""Usage records in an SQLite file, and the sums that people ask for.

Times are seconds since the Unix epoch. A sum over a window counts the part of each record that lies
in it. Records of cells that bind no GPU are kept too: how long they waited is a promise.
"""

from __future__ import annotations

import bisect
import itertools
import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from notebookos_ext.cluster.accounting import CellUsage, KernelUsage, Usage
from notebookos_ext.cluster.occupancy import GpuStretch
from notebookos_ext.errors import StorageError

FORMAT = 1
By = Literal["user", "notebook", "kernel"]
AT_ONCE_MS = 1000.0
"""A cell that started within this long of its submission started at once."""
WAIT_BOUNDS_MS = (100.0, 1000.0, 10_000.0, 60_000.0, 600_000.0)
"""Where the distribution of waits is cut."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS cells (
    kernel TEXT NOT NULL, attempt INTEGER NOT NULL, cell TEXT NOT NULL, user TEXT NOT NULL,
    gpus INTEGER NOT NULL, submitted_at REAL NOT NULL, bound_at REAL NOT NULL,
    started_at REAL NOT NULL, ended_at REAL NOT NULL, released_at REAL, outcome TEXT NOT NULL,
    PRIMARY KEY (kernel, attempt, started_at)
);
CREATE INDEX IF NOT EXISTS cells_by_time ON cells (started_at);
CREATE TABLE IF NOT EXISTS kernels (
    kernel TEXT NOT NULL, since REAL NOT NULL, until REAL NOT NULL, user TEXT NOT NULL,
    notebook TEXT NOT NULL, gpus INTEGER NOT NULL,
    PRIMARY KEY (kernel, since)
);
CREATE INDEX IF NOT EXISTS kernels_by_time ON kernels (until);
CREATE TABLE IF NOT EXISTS gpus (
    since REAL NOT NULL PRIMARY KEY, until REAL NOT NULL, provisioned INTEGER NOT NULL,
    bound INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS gpus_by_time ON gpus (until);
"""

_PUT_CELL = "INSERT OR REPLACE INTO cells VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_PUT_KERNEL = "INSERT OR REPLACE INTO kernels VALUES (?, ?, ?, ?, ?, ?)"

# A reservation would hold what the notebook's largest cell ever asked for, all its life long.
_LIVES = """
SELECT k.kernel, k.user,
       max(0, min(k.until, :until) - max(k.since, :since)) AS life_s,
       max(k.gpus, coalesce((SELECT max(c.gpus) FROM cells c WHERE c.kernel = k.kernel), 0))
FROM kernels k WHERE k.until >= :since AND k.since <= :until
"""
_CELLS = """
SELECT kernel, user, gpus, started_at - submitted_at,
       gpus * max(0, min(coalesce(released_at, ended_at), :until) - max(bound_at, :since)),
       gpus * max(0, min(ended_at, :until) - max(started_at, :since))
FROM cells WHERE coalesce(released_at, ended_at) >= :since AND bound_at <= :until
"""
_PUT_GPUS = "INSERT OR REPLACE INTO gpus VALUES (?, ?, ?, ?)"
_GPUS = """
SELECT max(since, :since), min(until, :until), provisioned, bound
FROM gpus WHERE until > :since AND since < :until
"""
_NOTEBOOKS = "SELECT kernel, notebook FROM kernels ORDER BY since"


class UsageSum(msgspec.Struct, frozen=True):
    """What one group took in a window. Waits are those of cells that bound GPUs."""

    name: str
    """The user, the notebook's path, or the kernel's id."""
    cells: int
    gpu_cells: int
    gpu_seconds_bound: float
    gpu_seconds_used: float
    gpu_seconds_reserved: float
    """What a reservation would have held."""
    at_once: int
    """GPU cells that started within a second of their submission."""
    wait_ms_mean: float | None
    wait_ms_p50: float | None
    wait_ms_p99: float | None
    wait_counts: tuple[int, ...]
    """GPU cells that waited up to each of `WAIT_BOUNDS_MS` and longer than the one before; then
    those that waited longer than the last.
    """

    @property
    def gpu_seconds_saved(self) -> float:
        """Reserved less bound; below zero when GPUs stayed bound longer than the kernel lived."""
        return self.gpu_seconds_reserved - self.gpu_seconds_bound


class GpuPoint(msgspec.Struct, frozen=True):
    """A short time from `since` on: means over the part of it that is on record; None: no part."""

    since: float
    provisioned: float | None
    bound: float | None
    bound_most: int | None


class UsageLedger:
    """One file. All methods belong to one thread at a time; raises StorageError."""

    def __init__(self, path: Path) -> None:
        """Open or create it. An older or newer format is refused, never overwritten."""
        try:
            self._db = sqlite3.connect(path, check_same_thread=False)
            self._db.execute("PRAGMA journal_mode=WAL")
            (found,) = self._db.execute("PRAGMA user_version").fetchone()
            if found not in (0, FORMAT):
                raise StorageError(
                    f"{path} has the format {found} of another version of NotebookOS; "
                    "move it away, and a new one is made"
                )
            self._db.executescript(_SCHEMA)
            self._db.execute(f"PRAGMA user_version={FORMAT}")
            self._db.commit()
        except sqlite3.Error as error:
            raise StorageError(f"the usage records {path} cannot be opened: {error}") from error

    def put(self, records: Iterable[Usage | GpuStretch], *, user: str) -> None:
        """Write records, all or none, over those of the same keys.

        `user` is for those that do not say whose they are.
        """
        try:
            with self._db:
                for record in records:
                    if isinstance(record, CellUsage):
                        self._db.execute(_PUT_CELL, _cell_row(record, user))
                    elif isinstance(record, GpuStretch):
                        self._db.execute(_PUT_GPUS, msgspec.structs.astuple(record))
                    else:
                        self._db.execute(_PUT_KERNEL, _kernel_row(record, user))
        except sqlite3.Error as error:
            raise StorageError(f"usage could not be written down: {error}") from error

    def sums(self, *, since: float, until: float, by: By) -> list[UsageSum]:
        """The sum of all, named "", then one for each group, largest in bound GPU-seconds first."""
        window = {"since": since, "until": until}
        total = _Group()
        groups: dict[str, _Group] = defaultdict(_Group)
        try:
            notebooks = dict(self._db.execute(_NOTEBOOKS).fetchall())
            lives = self._db.execute(_LIVES, window).fetchall()
            cells = self._db.execute(_CELLS, window).fetchall()
        except sqlite3.Error as error:
            raise StorageError(f"the usage records cannot be read: {error}") from error

        def counted(kernel: str, user: str) -> tuple[_Group, _Group]:
            name = {"user": user, "notebook": notebooks.get(kernel, ""), "kernel": kernel}[by]
            return total, groups[name]

        for kernel, user, life_s, gpus in lives:
            for found in counted(kernel, user):
                found.reserved += life_s * gpus
        for kernel, user, gpus, wait_s, bound, used in cells:
            for found in counted(kernel, user):
                found.cells += 1
                found.bound += bound
                found.used += used
                if gpus:
                    found.waits_ms.append(wait_s * 1000.0)
        ordered = sorted(groups.items(), key=lambda item: (-item[1].bound, item[0]))
        return [total.sum(""), *(each.sum(name) for name, each in ordered)]

    def timeline(self, *, since: float, until: float, points: int) -> list[GpuPoint]:
        """GPUs that were there and that were bound, in so many equal parts of the window.

        The window begins no earlier than the record does. Nothing for one that has no length.
        """
        try:
            rows = self._db.execute(_GPUS, {"since": since, "until": until}).fetchall()
        except sqlite3.Error as error:
            raise StorageError(f"the usage records cannot be read: {error}") from error
        if not rows:
            return []
        since = max(since, min(row[0] for row in rows))
        width_s = (until - since) / points
        if not width_s > 0:
            return []
        parts = [_Part() for _ in range(points)]
        for begin, end, provisioned, bound in rows:
            first = min(int((begin - since) / width_s), points - 1)
            last = min(int((end - since) / width_s), points - 1)
            for index in range(first, last + 1):
                low = max(begin, since + index * width_s)
                high = min(end, since + (index + 1) * width_s)
                parts[index].add(high - low, provisioned, bound)
        return [part.point(since + index * width_s) for index, part in enumerate(parts)]

    def close(self) -> None:
        """What was put is on disk."""
        self._db.close()


class _Part:
    def __init__(self) -> None:
        self.covered_s = 0.0
        self.provisioned = 0.0
        self.bound = 0.0
        self.most = 0

    def add(self, length_s: float, provisioned: int, bound: int) -> None:
        if length_s > 0:
            self.covered_s += length_s
            self.provisioned += length_s * provisioned
            self.bound += length_s * bound
            self.most = max(self.most, bound)

    def point(self, since: float) -> GpuPoint:
        if not self.covered_s:
            return GpuPoint(since, None, None, None)
        return GpuPoint(
            since, self.provisioned / self.covered_s, self.bound / self.covered_s, self.most
        )


class _Group:
    def __init__(self) -> None:
        self.cells = 0
        self.bound = 0.0
        self.used = 0.0
        self.reserved = 0.0
        self.waits_ms: list[float] = []

    def sum(self, name: str) -> UsageSum:
        waits = sorted(self.waits_ms)
        return UsageSum(
            name=name,
            cells=self.cells,
            gpu_cells=len(waits),
            gpu_seconds_bound=self.bound,
            gpu_seconds_used=self.used,
            gpu_seconds_reserved=self.reserved,
            at_once=sum(wait <= AT_ONCE_MS for wait in waits),
            wait_ms_mean=sum(waits) / len(waits) if waits else None,
            wait_ms_p50=_percentile(waits, 50),
            wait_ms_p99=_percentile(waits, 99),
            wait_counts=_counts(waits),
        )


def _counts(ordered: list[float]) -> tuple[int, ...]:
    edges = [0, *(bisect.bisect_right(ordered, bound) for bound in WAIT_BOUNDS_MS), len(ordered)]
    return tuple(upper - lower for lower, upper in itertools.pairwise(edges))


def _percentile(ordered: list[float], percent: int) -> float | None:
    """The smallest value that at least so many percent do not exceed (nearest rank)."""
    if not ordered:
        return None
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(rank, 1) - 1]


def _cell_row(record: CellUsage, user: str) -> tuple[object, ...]:
    return (
        record.kernel,
        record.attempt,
        record.cell,
        record.user or user,
        record.gpus,
        record.submitted_at,
        record.bound_at,
        record.started_at,
        record.ended_at,
        record.released_at,
        record.outcome.value,
    )


def _kernel_row(record: KernelUsage, user: str) -> tuple[object, ...]:
    return (
        record.kernel,
        record.since,
        record.until,
        record.user or user,
        record.notebook_path,
        record.gpus,
    )
