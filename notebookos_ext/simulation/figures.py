"""The paper's figures of one run, as numbers.

Everything in GPU-hours is accounted from the start to the workload's horizon. Work that was not
done by then is no saving: it is added to what was provisioned before anything is called saved.
"""

from __future__ import annotations

from collections import defaultdict

import msgspec

from notebookos_ext.simulation.distributions import percentile
from notebookos_ext.simulation.measures import AT_ONCE_S, CellRecord, Recorder
from notebookos_ext.simulation.workload import HOUR_S, Bounds

SHARES = (0.5, 0.75, 0.9, 0.95, 0.99)
"""The percentiles that are reported."""


class Times(msgspec.Struct, frozen=True):
    """Mean, percentiles and maximum of some durations in seconds."""

    mean_s: float
    percentiles_s: tuple[float, ...]
    """At `SHARES`."""
    max_s: float


class AtOnce(msgspec.Struct, frozen=True):
    """How many of some cells started at once."""

    cells: int
    at_once: int

    @property
    def share(self) -> float:
        """0 … 1; 1 for no cells."""
        return self.at_once / self.cells if self.cells else 1.0


class Figures(msgspec.Struct, frozen=True):
    """One run in numbers."""

    reservation_gpu_h: float
    oracle_gpu_h: float
    provisioned_gpu_h: float
    """GPUs of hosts that were paid for, booting included."""
    committed_gpu_h: float
    """GPUs that were bound, from the choice of an executor until they were given back."""
    used_gpu_h: float
    """GPUs on which code ran."""
    deferred_gpu_h: float
    """What the oracle had done by the horizon and this run had not."""
    cells: int
    at_once: AtOnce
    at_once_by_gpus: dict[int, AtOnce]
    wait: Times
    completion: Times
    same_executor_share: float
    hosts_most: float
    """In GPUs of whole hosts, the most that were provisioned at a time."""
    subscription_ratio: float
    """GPUs that sessions ask for, per GPU provisioned, both summed over time."""
    outcomes: dict[str, int]
    counts: dict[str, int]
    unfinished_cells: int

    @property
    def saved_gpu_h(self) -> float:
        """Against the ideal reservation; work not done counts against it."""
        return self.reservation_gpu_h - self.provisioned_gpu_h - self.deferred_gpu_h

    @property
    def saved_share(self) -> float:
        """Of what the oracle saves; 1 is perfect, below 0 is worse than reservation."""
        possible = self.reservation_gpu_h - self.oracle_gpu_h
        return self.saved_gpu_h / possible if possible else 0.0


def figures(
    recorder: Recorder, limits: Bounds, horizon_s: float, *, unfinished_cells: int = 0
) -> Figures:
    """Sum up what a recorder saw between 0 and the horizon."""
    started = [c for c in recorder.cells if c.started_s is not None]
    by_gpus: dict[int, list[CellRecord]] = defaultdict(list)
    # A cell that never started did not start at once either.
    for cell in recorder.cells:
        if cell.gpus and cell.end not in ("aborted", "rejected"):
            by_gpus[cell.gpus].append(cell)
    at_once = {gpus: _at_once(cells) for gpus, cells in sorted(by_gpus.items())}
    used = recorder.running.integral(horizon_s) / HOUR_S
    provisioned = recorder.provisioned.integral(horizon_s) / HOUR_S
    subscribed = recorder.subscribed.integral(horizon_s) / HOUR_S
    known = [c.same_executor for c in started if c.same_executor is not None]
    return Figures(
        reservation_gpu_h=limits.reservation_gpu_h,
        oracle_gpu_h=limits.oracle_gpu_h,
        provisioned_gpu_h=provisioned,
        committed_gpu_h=recorder.bound.integral(horizon_s) / HOUR_S,
        used_gpu_h=used,
        deferred_gpu_h=max(0.0, limits.oracle_gpu_h - used),
        cells=len(recorder.cells),
        at_once=AtOnce(
            sum(x.cells for x in at_once.values()), sum(x.at_once for x in at_once.values())
        ),
        at_once_by_gpus=at_once,
        wait=times([c.wait_s for c in started if c.wait_s is not None]),
        completion=times([c.completion_s for c in started if c.completion_s is not None]),
        same_executor_share=sum(known) / len(known) if known else 1.0,
        hosts_most=max(recorder.provisioned.values),
        subscription_ratio=subscribed / provisioned if provisioned else 0.0,
        outcomes={
            end: recorder.counts[end]
            for end in ("done", "failed", "lost", "rejected", "aborted")
            if recorder.counts[end]
        },
        counts=dict(recorder.counts),
        unfinished_cells=unfinished_cells,
    )


def times(seconds: list[float]) -> Times:
    """Mean, percentiles and maximum; zeros for nothing."""
    ordered = sorted(seconds)
    if not ordered:
        return Times(0.0, (0.0,) * len(SHARES), 0.0)
    return Times(
        sum(ordered) / len(ordered),
        tuple(percentile(ordered, share) for share in SHARES),
        ordered[-1],
    )


def _at_once(cells: list[CellRecord]) -> AtOnce:
    quick = sum(1 for c in cells if c.wait_s is not None and c.wait_s <= AT_ONCE_S)
    return AtOnce(len(cells), quick)
