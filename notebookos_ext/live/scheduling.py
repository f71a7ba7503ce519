"""What the scheduler of a live cluster may do: its policy's usual options, and what was chosen."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from notebookos_ext.cluster.options import (
    AutoscalerOptions,
    Options,
    PrewarmOptions,
    ScalingRule,
    changed,
    check,
)
from notebookos_ext.errors import InvalidSettings
from notebookos_ext.settings import Settings

FIXED_PLACE = ("reservation", "batch")
"""Policies whose replicas stay where they are."""
BATCH_IDLE_S = 60.0
"""What a client asked of a kernel between two cells may have brought it back: it goes again."""
MOVING = ("migrate", "rebalance", "consolidate")


def scheduler_options(settings: Settings, *, boot_s: float) -> Options:
    """The checked options of a live scheduler; `boot_s` is what a host of the backend takes.

    Raises InvalidSettings with a sentence for the first wrong name or value.
    """
    chosen = dict(settings.scheduling)
    if chosen.get("idle_s") and settings.idle_minutes:
        raise InvalidSettings(
            f"scheduling.idle_s is {chosen['idle_s']!r} and idle_minutes is "
            f"{settings.idle_minutes:g}; set only one of them"
        )
    if chosen.get("without_majority") == "continue" and settings.consensus_engine == "raftos":
        raise InvalidSettings(
            "scheduling.without_majority is continue, but the engine raftos can found no group "
            "from another; leave it out or set consensus_engine to raft"
        )
    fixed = settings.policy in FIXED_PLACE
    if fixed:
        _refuse_moves(settings.policy, chosen)
    usual = Options(
        migrate=not fixed,
        prewarm=PrewarmOptions() if settings.policy == "pooled" else None,
        idle_s=settings.idle_minutes * 60.0
        or (BATCH_IDLE_S if settings.policy == "batch" else 0.0),
    )
    if isinstance(chosen.get("autoscaler"), Mapping):
        reserved = settings.policy == "reservation"
        rule = ScalingRule.RESERVED if reserved else ScalingRule.DEMAND
        # Whoever names no least number of hosts keeps those that were there at the start.
        scaler = AutoscalerOptions(
            rule=rule, least_hosts=settings.hosts, boot_s=boot_s, gpus_per_host=0
        )
        usual = msgspec.structs.replace(usual, autoscaler=scaler)
    return check(changed(usual, chosen), max_hosts=settings.max_hosts)


def _refuse_moves(policy: str, chosen: Mapping[str, object]) -> None:
    for name in MOVING:
        if chosen.get(name):
            raise InvalidSettings(
                f"scheduling.{name} is on, but under the policy {policy} no replica moves; "
                "leave it out or choose another policy"
            )
    if chosen.get("hints") is False:
        raise InvalidSettings(
            f"scheduling.hints is off, but under the policy {policy} there is nobody to elect; "
            "leave it out or choose another policy"
        )
