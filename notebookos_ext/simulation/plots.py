"""Plots of runs through matplotlib, which is loaded only when a plot is drawn.

It comes with the extra `notebookos_ext[analysis]`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from notebookos_ext.errors import InvalidRequest
from notebookos_ext.simulation.measures import Recorder, Steps
from notebookos_ext.simulation.workload import HOUR_S

POINTS_MAX = 2_000
"""A curve with more points than this looks the same and takes long to draw."""
FORMATS = ("png", "svg")


def plot_all(
    runs: Mapping[str, Recorder], horizon_s: float, folder: Path, *, form: str = "png"
) -> list[Path]:
    """Provisioned GPUs and subscription ratio over time, and the distributions of waits and
    completion times, one file each. Raises InvalidRequest without matplotlib.
    """
    if form not in FORMATS:
        raise InvalidRequest(f"plots are drawn as {' or '.join(FORMATS)}, not {form!r}")
    pyplot = _pyplot()
    folder.mkdir(parents=True, exist_ok=True)
    first = next(iter(runs.values()))
    over_time = {name: sampled(r.provisioned, horizon_s) for name, r in runs.items()}
    over_time["GPUs bound (first run)"] = sampled(first.bound, horizon_s)
    ratios = {name: ratio(r.subscribed, r.provisioned, horizon_s) for name, r in runs.items()}
    waits = {name: [c.wait_s for c in r.cells if c.wait_s is not None] for name, r in runs.items()}
    done = {
        name: [c.completion_s for c in r.cells if c.completion_s is not None]
        for name, r in runs.items()
    }
    return [
        _over_time(pyplot, over_time, "GPUs provisioned", folder / f"provisioned.{form}"),
        _over_time(pyplot, ratios, "subscription ratio", folder / f"subscription.{form}"),
        _cdf(pyplot, waits, "wait of a cell (s)", folder / f"waits.{form}"),
        _cdf(pyplot, done, "completion time of a cell (s)", folder / f"completions.{form}"),
    ]


def sampled(steps: Steps, horizon_s: float) -> tuple[list[float], list[float]]:
    """The quantity at evenly spaced times up to the horizon, in hours."""
    count = min(POINTS_MAX, max(2, len(steps.times_s)))
    hours, values, place = [], [], 0
    for number in range(count):
        at_s = horizon_s * number / (count - 1)
        while place + 1 < len(steps.times_s) and steps.times_s[place + 1] <= at_s:
            place += 1
        hours.append(at_s / HOUR_S)
        values.append(steps.values[place])
    return hours, values


def ratio(above: Steps, below: Steps, horizon_s: float) -> tuple[list[float], list[float]]:
    """One quantity over another at `POINTS_MAX` times; 0 where the other is 0."""
    grid = [horizon_s * number / (POINTS_MAX - 1) for number in range(POINTS_MAX)]
    tops, bottoms = _at(above, grid), _at(below, grid)
    values = [t / b if b else 0.0 for t, b in zip(tops, bottoms, strict=True)]
    return [at_s / HOUR_S for at_s in grid], values


def _at(steps: Steps, grid: Sequence[float]) -> list[float]:
    values, place = [], 0
    for at_s in grid:
        while place + 1 < len(steps.times_s) and steps.times_s[place + 1] <= at_s:
            place += 1
        values.append(steps.values[place])
    return values


def _pyplot() -> Any:
    try:
        matplotlib = importlib.import_module("matplotlib")
    except ImportError:
        raise InvalidRequest(
            "plots need matplotlib; install it with pip install 'notebookos_ext[analysis]'"
        ) from None
    matplotlib.use("Agg")
    return importlib.import_module("matplotlib.pyplot")


def _over_time(
    pyplot: Any, curves: Mapping[str, tuple[list[float], list[float]]], what: str, path: Path
) -> Path:
    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    for name, (hours, values) in curves.items():
        axes.step(hours, values, where="post", label=name, linewidth=1)
    axes.set_xlabel("hours")
    axes.set_ylabel(what)
    return _save(pyplot, figure, axes, path)


def _cdf(pyplot: Any, values: Mapping[str, list[float]], what: str, path: Path) -> Path:
    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    for name, unordered in values.items():
        ordered = sorted(unordered)
        every = max(1, len(ordered) // POINTS_MAX)
        shown = ordered[::every]
        shares = [(number * every + 1) / len(ordered) for number in range(len(shown))]
        axes.step(shown, shares, where="post", label=name, linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel(what)
    axes.set_ylabel("share of cells")
    return _save(pyplot, figure, axes, path)


def _save(pyplot: Any, figure: Any, axes: Any, path: Path) -> Path:
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path
