"""What is learnt of the load, and what is made of it."""

from __future__ import annotations

import random

import pytest

from notebookos_ext.cluster.autoscaler import Demand
from notebookos_ext.cluster.load import RESTS, RUNS, Launches, Lengths, Scaling
from notebookos_ext.cluster.options import PrewarmOptions, PrewarmRule
from notebookos_ext.cluster.prewarm import target


@pytest.mark.parametrize("prior", [RESTS, RUNS])
def test_priors_are_shares(prior: tuple[float, ...]) -> None:
    assert sum(prior) == pytest.approx(1.0)


@pytest.mark.parametrize("prior", [RESTS, RUNS])
def test_longer_is_rarer(prior: tuple[float, ...]) -> None:
    lengths = Lengths(prior)
    shares = [lengths.longer_than(seconds) for seconds in (0, 1, 14, 16, 100, 5e3, 6e4, 1e6)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1.0
    assert 0 < shares[-1] < 0.01


def test_own_lengths_outweigh_the_prior() -> None:
    lengths, rng = Lengths(RUNS), random.Random(1)
    for _ in range(3000):
        lengths.add(rng.uniform(70.0, 110.0))
    assert lengths.longer_than(60.0) > 0.95
    assert lengths.longer_than(130.0) < 0.05
    assert lengths.ends_within(0.0, 200.0) > 0.95
    assert 60.0 < lengths.half_of_rest_s(0.0) < 120.0


def test_what_has_lasted_goes_on() -> None:
    lengths = Lengths(RUNS)
    assert lengths.half_of_rest_s(600.0) > lengths.half_of_rest_s(10.0)
    assert lengths.ends_within(600.0, 60.0) < lengths.ends_within(10.0, 60.0)


def test_demand_counts_whole_hosts_for_large_cells() -> None:
    demand = Demand(8)
    for gpus in (8, 5, 1, 2):
        demand.add(gpus)
    assert demand.hosts(0.0) == 3
    demand.expect(8, 0.5)
    assert demand.hosts(0.0) == 3
    assert demand.hosts(2.0) == 4


def test_what_was_wanted_is_kept_for_a_while() -> None:
    scaling = Scaling()
    for at, count in ((0.0, 3), (10.0, 7), (20.0, 5), (30.0, 2)):
        scaling.want(count, at)
    assert scaling.wanted_since(0.0) == 7
    assert scaling.wanted_since(15.0) == 5
    assert scaling.wanted_since(25.0) == 2
    assert scaling.wanted_since(100.0) == 2, "what is wanted now, always"


def test_pool_targets() -> None:
    fixed = PrewarmOptions(rule=PrewarmRule.FIXED, per_host=3)
    assert target(fixed, hosts=4, launches_per_minute=1000.0) == 3
    assert target(PrewarmOptions(per_host=20, most_per_host=8), 4, 0.0) == 8
    law = PrewarmOptions(rule=PrewarmRule.LITTLES_LAW, per_host=1, start_s=30.0)
    assert target(law, hosts=4, launches_per_minute=24.0) == 3, "12 are on their way at a time"
    assert target(law, hosts=4, launches_per_minute=0.0) == 1
    launches = Launches()
    for at in range(100):
        launches.note(float(at))
    assert launches.per_minute(100.0) == pytest.approx(10.0)
    assert launches.per_minute(2000.0) == 0.0
