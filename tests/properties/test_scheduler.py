"""Random days of a cluster: whatever happens, in whatever order answers come.

`scheduler_world.World` says what must be true; here is who rolls the dice. Seeds walk far, because
cells meet only once kernels, hosts and queues have grown; Hypothesis walks short ways and shrinks
what it finds to the fewest steps.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from scheduler_world import HOSTS, World

from notebookos_ext.cluster.options import Options, PrewarmOptions, WithoutMajority
from notebookos_ext.cluster.policies import POLICIES
from notebookos_ext.cluster.scheduler import Scheduler

SEEDS = range(400 if os.environ.get("NOTEBOOKOS_FULL") else 24)
STEPS = 600


def a_scheduler(seed: int) -> Scheduler:
    """Half of them as live clusters have it now; the others with all there is, by all policies."""
    without = WithoutMajority.CONTINUE if seed % 3 == 1 else WithoutMajority.WAIT
    if seed % 2 == 0:
        return Scheduler(
            max_hosts=6,
            options=Options(without_majority=without, majority_grace_s=10.0),
        )
    options = Options(
        migrate=True,
        rebalance=seed % 4 == 1,
        idle_s=30.0 if seed % 3 == 0 else 0.0,
        prewarm=PrewarmOptions(per_host=2) if seed % 5 < 3 else None,
        hints=seed % 8 != 3,
        subscription_limit=2.0 if seed % 7 == 0 else 0.0,
        without_majority=without,
        majority_grace_s=10.0,
    )
    policies = ("replicated", "replicated", *sorted(POLICIES))
    return Scheduler(policies[seed // 2 % len(policies)], max_hosts=6, options=options)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_long_random_day(seed: int) -> None:
    """The failing seed is in the test's name, which repeats it."""
    rng = random.Random(seed)
    world = World(a_scheduler(seed))
    for host in HOSTS[: rng.randint(0, len(HOSTS))]:
        world.join(host)
    for _ in range(STEPS):
        world.step(rng)
        world.examine()
    world.calm_down()


class Days(RuleBasedStateMachine):
    """Short ways, one throw of the dice a step, so that a failure shrinks to few steps."""

    @initialize(
        hosts=st.integers(min_value=0, max_value=6), kind=st.integers(min_value=0, max_value=420)
    )
    def begin(self, hosts: int, kind: int) -> None:
        self.world = World(a_scheduler(kind))
        for host in HOSTS[:hosts]:
            self.world.join(host)

    @rule(dice=st.integers(min_value=0, max_value=10_000))
    def something_happens(self, dice: int) -> None:
        self.world.step(random.Random(dice))

    @invariant()
    def all_is_well(self) -> None:
        if hasattr(self, "world"):
            self.world.examine()

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.calm_down()


TestDays = Days.TestCase
TestDays.settings = settings(max_examples=50, stateful_step_count=60, deadline=None)
