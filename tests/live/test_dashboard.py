"""The Grafana dashboard in `docs/` against the metrics: it asks for all of them, for no other."""

from __future__ import annotations

import json
import re
from pathlib import Path

from builders import Cluster
from prometheus_client import CollectorRegistry, Gauge, Histogram

from notebookos_ext.live.metrics import Metrics

DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"


def metrics() -> dict[str, frozenset[str]]:
    """Each metric's name and labels, as they are declared."""
    registry = CollectorRegistry()
    made = vars(Metrics(Cluster(hosts=1, gpus=1).scheduler.view, registry)).values()
    declared = {}
    for one in made:
        if hasattr(one, "_labelnames"):
            suffix = "_bucket" if isinstance(one, Histogram) else ""
            suffix = suffix or ("" if isinstance(one, Gauge) else "_total")
            bound = {"le"} if suffix == "_bucket" else set()
            declared[one._name + suffix] = frozenset(one._labelnames) | bound
    return declared


def expressions() -> list[str]:
    """What every panel asks for."""
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_it_asks_for_every_metric_and_no_other() -> None:
    asked = {name for text in expressions() for name in re.findall(r"notebookos_\w+", text)}
    assert asked == set(metrics())


def test_it_sums_and_selects_by_labels_that_are_there() -> None:
    declared = metrics()
    for text in expressions():
        labels = {name for group in re.findall(r"by \((.*?)\)", text) for name in group.split(",")}
        labels |= set(re.findall(r"[{,]\s*(\w+)!?=", text))
        for name in re.findall(r"notebookos_\w+", text):
            assert {label.strip() for label in labels} <= declared[name], text


def test_panels_do_not_overlap() -> None:
    places = [
        (panel["gridPos"]["x"], panel["gridPos"]["y"])
        for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    ]
    assert len(set(places)) == len(places)
