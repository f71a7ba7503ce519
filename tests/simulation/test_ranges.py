"""The figures of one draw of the 17.5 hours, within ranges, so that a change that costs is seen.

A change that moves a figure out of its range moves the range too, with a line in the diary that
says why. The draw is seed 4 of the profile `idlt17h5`, 4 to 30 hosts of 8 GPUs.

Diary:
- First policies with migration, autoscaling by demand and pre-warming: replicated saves 74 % of the
  possible with 99.4 % of cells at once.
- All four policies: reservation -5.3 % / 99.9 %, batch 61.8 % / 0 % (each cell pays for a cold
  start), replicated 73.5 % / 98.9 %, pooled 88.7 % / 86.0 % (tuned for thrift on the canonical
  file, where it has 90 % of both).
- batch 73.0 % / 0 %: it gives hosts back that have become empty.
- replicated 73.2 % / 98.2 %, p99 93 s: what no host has room for gets a host of its own. Over
  twelve seeds the longest wait falls from 787 to 296 s on average and the mean from 1.5 to 1.2 s,
  at the same saving; this seed is the one of them where fewer cells start at once.
"""

from __future__ import annotations

import msgspec
import pytest

from notebookos_ext.cluster.options import ScalingRule
from notebookos_ext.simulation.experiment import read_workload, run_plan
from notebookos_ext.simulation.figures import Figures
from notebookos_ext.simulation.plans import Plan, usual_options

SEED = 4


class Range(msgspec.Struct, frozen=True):
    """From the least to the most, both included."""

    saved_share: tuple[float, float]
    at_once: tuple[float, float]
    wait_mean_s: tuple[float, float]
    wait_p99_s: tuple[float, float]


RANGES = {
    "reservation": Range((-0.15, 0.0), (0.98, 1.0), (0.05, 2.0), (0.1, 20.0)),
    "batch": Range((0.68, 0.80), (0.0, 0.05), (10.0, 20.0), (10.0, 60.0)),
    "replicated": Range((0.70, 0.80), (0.98, 1.0), (0.05, 3.0), (0.1, 120.0)),
    "pooled": Range((0.84, 0.93), (0.83, 0.95), (1.0, 30.0), (10.0, 600.0)),
}


def figures(plan: Plan) -> Figures:
    return run_plan(read_workload("idlt17h5", seed=SEED), plan).figures


@pytest.mark.parametrize("policy", RANGES)
def test_figures_stay_in_their_ranges(policy: str) -> None:
    found, expected = figures(Plan(policy=policy)), RANGES[policy]
    values = {
        "saved_share": found.saved_share,
        "at_once": found.at_once.share,
        "wait_mean_s": found.wait.mean_s,
        "wait_p99_s": found.wait.percentiles_s[-1],
    }
    for name, value in values.items():
        low, high = getattr(expected, name)
        assert low <= value <= high, f"{name} of {policy} is {value:.4f}"
    assert found.unfinished_cells == 0
    assert found.outcomes == {"done": found.cells}


def test_hosts_come_and_go_with_the_load() -> None:
    found = figures(Plan())
    assert found.counts["hosts added"] > 4
    assert found.counts["hosts given back"] > 0
    assert found.hosts_most < 30 * 8


def test_the_originals_rule_keeps_more_hosts_than_ours() -> None:
    """Its buffer of three hosts is there in quiet hours too."""
    usual = usual_options(Plan())
    assert usual.autoscaler is not None
    committed = msgspec.structs.replace(usual.autoscaler, rule=ScalingRule.COMMITTED)
    theirs = figures(Plan(options=msgspec.structs.replace(usual, autoscaler=committed)))
    assert theirs.provisioned_gpu_h > figures(Plan()).provisioned_gpu_h
    assert theirs.unfinished_cells == 0


def test_fixed_hosts_save_less_the_more_there_are() -> None:
    shares = []
    for hosts in (8, 16, 30):
        usual = usual_options(Plan())
        fixed = msgspec.structs.replace(usual, autoscaler=None)
        plan = Plan(options=fixed, hosts_min=hosts, hosts_max=hosts)
        shares.append(figures(plan).saved_share)
    assert shares == sorted(shares, reverse=True)
