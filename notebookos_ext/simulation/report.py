"""Figures as Markdown tables and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from notebookos_ext.simulation.cost import CostStudy
from notebookos_ext.simulation.figures import SHARES, Figures
from notebookos_ext.simulation.measures import Recorder

Row = tuple[str, Callable[[Figures], str]]


def percent(share: float) -> str:
    """`97.3 %`."""
    return f"{100 * share:.1f} %"


def _shares(values: Sequence[float], form: str) -> str:
    wanted = (0.5, 0.9, 0.95, 0.99)
    return " / ".join(
        form.format(value) for share, value in zip(SHARES, values, strict=True) if share in wanted
    )


def _hosts(f: Figures) -> str:
    return f"{f.counts.get('hosts added', 0):,} / {f.counts.get('hosts given back', 0):,}"


def _starts(f: Figures) -> str:
    return f"{f.counts.get('cold starts', 0):,} / {f.counts.get('prewarmed starts', 0):,}"


def _ends(f: Figures) -> str:
    done = f.outcomes.get("done", 0)
    return f"{done:,} / {f.outcomes.get('lost', 0):,} / {f.unfinished_cells:,}"


ROWS: tuple[Row, ...] = (
    ("provisioned GPU-h", lambda f: f"{f.provisioned_gpu_h:,.1f}"),
    ("committed GPU-h", lambda f: f"{f.committed_gpu_h:,.1f}"),
    ("work deferred past the horizon, GPU-h", lambda f: f"{f.deferred_gpu_h:,.2f}"),
    ("saved against reservation, GPU-h", lambda f: f"{f.saved_gpu_h:,.1f}"),
    ("share of the possible saving", lambda f: percent(f.saved_share)),
    ("cells that start at once", lambda f: percent(f.at_once.share)),
    (
        "… by GPUs",
        lambda f: ", ".join(f"{g}: {percent(x.share)}" for g, x in f.at_once_by_gpus.items()),
    ),
    ("wait mean, s", lambda f: f"{f.wait.mean_s:.2f}"),
    ("wait p50 / p90 / p95 / p99, s", lambda f: _shares(f.wait.percentiles_s, "{:.2f}")),
    ("wait max, s", lambda f: f"{f.wait.max_s:,.0f}"),
    ("completion mean, s", lambda f: f"{f.completion.mean_s:,.1f}"),
    (
        "completion p50 / p90 / p95 / p99, s",
        lambda f: _shares(f.completion.percentiles_s, "{:,.0f}"),
    ),
    ("same executor as the cell before", lambda f: percent(f.same_executor_share)),
    ("migrations", lambda f: f"{f.counts.get('migrations', 0):,}"),
    ("hosts added / given back", _hosts),
    ("GPUs provisioned at most", lambda f: f"{f.hosts_most:,.0f}"),
    ("subscription ratio (asked / provisioned)", lambda f: f"{f.subscription_ratio:.2f}"),
    ("replica starts, cold / pre-warmed", _starts),
    ("cells done / lost / unfinished", _ends),
)


def markdown(runs: Mapping[str, Figures]) -> str:
    """One table: a row per figure, a column per run."""
    first = next(iter(runs.values()))
    head = (
        f"Reservation {first.reservation_gpu_h:,.1f} GPU-h, "
        f"oracle {first.oracle_gpu_h:,.1f} GPU-h, possible saving "
        f"{first.reservation_gpu_h - first.oracle_gpu_h:,.1f} GPU-h.\n\n"
    )
    rows = [[name, *(of(f) for f in runs.values())] for name, of in ROWS]
    return head + table(["", *runs], rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [_line(head), _line(["---"] * len(head)), *(_line(row) for row in rows)]
    return "\n".join(lines) + "\n"


def cost_markdown(studies: Mapping[str, CostStudy]) -> str:
    """Costs against the ideal reservation, a row per run."""
    first = next(iter(studies.values())).reservation
    rows = [
        [
            "ideal reservation",
            f"{first.provider:,.0f}",
            "",
            f"{first.users:,.0f}",
            "",
            percent(first.margin_share),
        ],
    ]
    rows += [
        [
            name,
            f"{s.policy.provider:,.0f}",
            percent(s.provider_saving_share),
            f"{s.policy.users:,.0f}",
            percent(s.users_saving_share),
            percent(s.policy.margin_share),
        ]
        for name, s in studies.items()
    ]
    return table(
        ["", "provider pays", "less by", "users pay", "less by", "provider's margin"], rows
    )


def figures_csv(runs: Mapping[str, Figures]) -> str:
    """The same figures for programs: one line per run, plain numbers, units in the names."""
    out = io.StringIO()
    rows = csv.writer(out)
    columns = _plain(next(iter(runs.values())))
    gpus = sorted({g for f in runs.values() for g in f.at_once_by_gpus})
    rows.writerow(["run", *columns, *(f"at_once_share_{g}_gpus" for g in gpus)])
    for name, f in runs.items():
        shares = [f.at_once_by_gpus[g].share if g in f.at_once_by_gpus else "" for g in gpus]
        rows.writerow([name, *_plain(f).values(), *shares])
    return out.getvalue()


def cells_csv(recorder: Recorder, path: Path) -> None:
    """Every cell of a run, one line each."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(
            ("kernel", "cell", "gpus", "submitted_s", "started_s", "ended_s", "end", "replica")
        )
        rows.writerows(
            (c.kernel, c.cell, c.gpus, c.submitted_s, c.started_s, c.ended_s, c.end, c.replica)
            for c in recorder.cells
        )


def _plain(f: Figures) -> dict[str, float]:
    found = {
        "reservation_gpu_h": f.reservation_gpu_h,
        "oracle_gpu_h": f.oracle_gpu_h,
        "provisioned_gpu_h": f.provisioned_gpu_h,
        "committed_gpu_h": f.committed_gpu_h,
        "deferred_gpu_h": f.deferred_gpu_h,
        "saved_gpu_h": f.saved_gpu_h,
        "saved_share": f.saved_share,
        "cells": f.cells,
        "at_once_share": f.at_once.share,
        "same_executor_share": f.same_executor_share,
        "gpus_most": f.hosts_most,
        "subscription_ratio": f.subscription_ratio,
        "migrations": f.counts.get("migrations", 0),
        "hosts_added": f.counts.get("hosts added", 0),
        "cells_lost": f.outcomes.get("lost", 0),
        "cells_unfinished": f.unfinished_cells,
        "wait_mean_s": f.wait.mean_s,
        "completion_mean_s": f.completion.mean_s,
    }
    for kind, times in (("wait", f.wait), ("completion", f.completion)):
        for share, value in zip(SHARES, times.percentiles_s, strict=True):
            found[f"{kind}_p{share * 100:.0f}_s"] = value
    return {name: round(value, 4) for name, value in found.items()}


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
