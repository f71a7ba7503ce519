"""What a person may choose about scheduling beyond the policy; everything is off by default."""

from __future__ import annotations

import enum

import msgspec


class ScalingRule(enum.StrEnum):
    """How the autoscaler finds the number of hosts."""

    COMMITTED = "committed"
    """The original's: a factor over the GPUs that are bound now, and a few hosts besides (paper
    section 5).
    """
    DEMAND = "demand"
    """By the sizes of the cells that recent activity lets expect while a host would boot."""
    RESERVED = "reserved"
    """As many as the reservations need."""


class AutoscalerOptions(msgspec.Struct, frozen=True):
    """When hosts come and go. The most hosts are the scheduler's own `max_hosts`."""

    rule: ScalingRule = ScalingRule.DEMAND
    least_hosts: int = 1
    interval_s: float = 30.0
    boot_s: float = 120.0
    """How long the backend takes to bring a host."""
    gpus_per_host: int = 8
    """What a new host brings."""
    keep_s: float = 600.0
    """No host goes that was needed, by the rule, within this time: flapping is impossible."""
    release_most: int = 2
    """How many hosts may be on their way out at once."""
    factor: float = 1.05
    """`committed`: hosts for so many times the bound GPUs …"""
    buffer_hosts: int = 3
    """`committed`: … but at least so many above the least."""
    active_s: float = 1_800.0
    """`demand`: a kernel is active for so long after its last GPU cell."""
    spread: float = 2.5
    """`demand`: how many standard deviations above the expected demand are provided for."""


class PrewarmRule(enum.StrEnum):
    """How many pre-warmed replicas a host should have."""

    FIXED = "fixed"
    """Exactly `per_host`."""
    MINIMUM = "minimum"
    """At least `per_host`; more, where there are, stay."""
    LITTLES_LAW = "littles-law"
    """Arrivals times the time that a start takes, over all hosts, measured as it goes."""


class PrewarmOptions(msgspec.Struct, frozen=True):
    """The pool of replicas that have started before anybody needs them."""

    rule: PrewarmRule = PrewarmRule.MINIMUM
    per_host: int = 1
    most_per_host: int = 8
    refill: bool = True
    """What was used is made up for; else there are only those that a host begins with."""
    start_s: float = 10.0
    """`littles-law`: how long a pre-warmed replica takes to start."""


class Options(msgspec.Struct, frozen=True):
    """For `Scheduler`. Quotas and weights are by user."""

    migrate: bool = False
    """Replicas may move: for cells that no host of their kernel can start, and off hosts."""
    rebalance: bool = False
    """Replicas of active kernels move ahead of cells that could not start where they are."""
    consolidate: bool = False
    """Replicas of active kernels move to fuller hosts, so that whole hosts become free."""
    rebalance_s: float = 1_800.0
    """How long a kernel without GPU cells counts as active, for `rebalance`."""
    hints: bool = True
    """The scheduler names the executor, which saves the ballots; without, the replicas elect it."""
    moves_most: int = 8
    """How many replicas may be moving at once, those for waiting cells apart."""
    subscription_limit: float = 0.0
    """How many times the GPUs, cores and memory of a host may be promised, a kernel's replicas
    counted together as one; 0: without limit.
    """
    idle_s: float = 0.0
    """A kernel without cells for so long is stored and its replicas end; 0: never."""
    autoscaler: AutoscalerOptions | None = None
    prewarm: PrewarmOptions | None = None
    quotas: dict[str, int] = {}
    """The most GPUs that a user's cells may hold at once."""
    quota: int = 0
    """For users that `quotas` does not name; 0: without limit."""
    weights: dict[str, float] = {}
    """A user of weight 2 gets twice the GPUs of one of weight 1 while both wait."""
