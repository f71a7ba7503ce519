"""What a person may choose about scheduling beyond the policy; everything is off by default."""

from __future__ import annotations

import difflib
import enum
import math
from collections.abc import Mapping
from typing import Any

import msgspec

from notebookos_ext.errors import InvalidSettings

MOST_GPUS = 1_000_000
MOST_PRIORITY = 1_000
MOST_S = 10 * 365 * 86_400.0


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
    """What a new host brings; 0: as many as the largest host that is there has."""
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


class WithoutMajority(enum.StrEnum):
    """What becomes of a kernel of which too few members are left to commit anything."""

    WAIT = "wait"
    """It waits for them, unless somebody has it go on."""
    CONTINUE = "continue"
    """It goes on unprotected with the member that knows most; the last cells may be lost."""


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
    without_majority: WithoutMajority = WithoutMajority.WAIT
    majority_grace_s: float = 60.0
    """How long a majority may be missing before the user is told and the kernel goes on."""
    autoscaler: AutoscalerOptions | None = None
    prewarm: PrewarmOptions | None = None
    quotas: dict[str, int] = {}
    """The most GPUs that a user's cells may hold at once."""
    quota: int = 0
    """For users that `quotas` does not name; 0: without limit."""
    weights: dict[str, float] = {}
    """A user of weight 2 gets twice the GPUs of one of weight 1 while both wait."""
    priorities: dict[str, int] = {}
    """Cells of a user of higher priority are served first, but overtake others only so often; 0
    for users that are not named.
    """


def changed(usual: Options, changes: Mapping[str, Any]) -> Options:
    """The options with those replaced that `changes` names, within `autoscaler` and `prewarm` too.

    None turns either off, an empty mapping turns it on. Raises InvalidSettings for a name that is
    no option and for a value of the wrong kind; what values mean is for `check`.
    """
    merged = _merged(msgspec.to_builtins(usual), changes, "")
    try:
        return msgspec.convert(merged, Options)
    except msgspec.ValidationError as problem:
        raise InvalidSettings(f"the scheduler's options do not fit: {problem}") from problem


_NESTED: dict[str, type[msgspec.Struct]] = {
    "autoscaler": AutoscalerOptions,
    "prewarm": PrewarmOptions,
}


def _merged(usual: dict[str, Any], changes: Mapping[str, Any], within: str) -> dict[str, Any]:
    for name, value in changes.items():
        if name not in usual:
            close = difflib.get_close_matches(str(name), usual, n=1)
            advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(usual)}"
            raise InvalidSettings(f"there is no option {within}{name}; {advice}")
        if name in _NESTED and not within and isinstance(value, Mapping):
            inner = usual[name] or msgspec.to_builtins(_NESTED[name]())
            usual[name] = _merged(inner, value, f"{name}.")
        else:
            usual[name] = dict(value) if isinstance(value, Mapping) else value
    return usual


def check(options: Options, *, max_hosts: int) -> Options:
    """Return the options. Raises InvalidSettings with a sentence for the first wrong value."""
    for name in ("migrate", "rebalance", "consolidate", "hints"):
        _is_bool(name, getattr(options, name))
    _number("rebalance_s", options.rebalance_s, 0, MOST_S)
    _whole("moves_most", options.moves_most, 1, MOST_GPUS)
    _number("subscription_limit", options.subscription_limit, 0, MOST_GPUS)
    _number("idle_s", options.idle_s, 0, MOST_S)
    _one_of("without_majority", options.without_majority, WithoutMajority)
    _number("majority_grace_s", options.majority_grace_s, 0, MOST_S)
    _whole("quota", options.quota, 0, MOST_GPUS)
    for user, quota in options.quotas.items():
        _whole(f"quotas.{_named(user, 'quotas')}", quota, 0, MOST_GPUS)
    for user, weight in options.weights.items():
        _number(f"weights.{_named(user, 'weights')}", weight, 1e-6, 1e6)
    for user, priority in options.priorities.items():
        _whole(f"priorities.{_named(user, 'priorities')}", priority, -MOST_PRIORITY, MOST_PRIORITY)
    if options.autoscaler is not None:
        _check_autoscaler(options.autoscaler, max_hosts)
    if options.prewarm is not None:
        _check_prewarm(options.prewarm)
    return options


def _check_autoscaler(options: AutoscalerOptions, max_hosts: int) -> None:
    _one_of("autoscaler.rule", options.rule, ScalingRule)
    _whole("autoscaler.least_hosts", options.least_hosts, 0, MOST_GPUS)
    if options.least_hosts > max_hosts:
        raise InvalidSettings(
            f"autoscaler.least_hosts is {options.least_hosts} but max_hosts is {max_hosts}; "
            "raise max_hosts or lower least_hosts"
        )
    _whole("autoscaler.gpus_per_host", options.gpus_per_host, 0, MOST_GPUS)
    _whole("autoscaler.release_most", options.release_most, 1, MOST_GPUS)
    _whole("autoscaler.buffer_hosts", options.buffer_hosts, 0, MOST_GPUS)
    for name in ("interval_s", "boot_s", "keep_s", "active_s"):
        _number(f"autoscaler.{name}", getattr(options, name), 0, MOST_S)
    _number("autoscaler.factor", options.factor, 0, MOST_GPUS)
    _number("autoscaler.spread", options.spread, 0, 1_000)


def _check_prewarm(options: PrewarmOptions) -> None:
    _one_of("prewarm.rule", options.rule, PrewarmRule)
    _whole("prewarm.per_host", options.per_host, 0, MOST_GPUS)
    _whole("prewarm.most_per_host", options.most_per_host, 0, MOST_GPUS)
    _is_bool("prewarm.refill", options.refill)
    _number("prewarm.start_s", options.start_s, 0, MOST_S)


def _is_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidSettings(f"{name} is {value!r}; it must be True or False")


def _whole(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidSettings(
            f"{name} is {value!r}; it must be a whole number from {least} to {most}"
        )


def _number(name: str, value: object, least: float, most: float) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not math.isfinite(value)
        or not least <= value <= most
    ):
        raise InvalidSettings(
            f"{name} is {value!r}; it must be a number from {least:g} to {most:g}"
        )


def _one_of(name: str, value: object, choices: type[enum.StrEnum]) -> None:
    if not isinstance(value, choices):
        allowed = ", ".join(choices)
        raise InvalidSettings(f"{name} is {value!r}; it must be one of {allowed}")


def _named(user: object, where: str) -> str:
    if not isinstance(user, str) or not user.strip():
        raise InvalidSettings(f"{where} names a user {user!r}; it must be the name of a user")
    return user
