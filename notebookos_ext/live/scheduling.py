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

FIXED_PLACE = ("reservation",)
"""Policies whose replicas stay where they are."""
NOT_YET = {"idle_s": 0, "without_majority": "wait"}
"""What a live cluster does not carry out yet, and the value that asks for nothing of it."""
MOVING = ("migrate", "rebalance", "consolidate")


def scheduler_options(settings: Settings, *, boot_s: float) -> Options:
    """The checked options of a live scheduler; `boot_s` is what a host of the backend takes.

    Raises InvalidSettings with a sentence for the first wrong name or value.
    """
    chosen = dict(settings.scheduling)
    for name, nothing in NOT_YET.items():
        if chosen.get(name, nothing) != nothing:
            raise InvalidSettings(
                f"scheduling.{name} is {chosen[name]!r}, which a live cluster does not carry out "
                "yet; leave it out"
            )
    fixed = settings.policy in FIXED_PLACE
    if fixed:
        _refuse_moves(settings.policy, chosen)
    usual = Options(
        migrate=not fixed,
        prewarm=PrewarmOptions() if settings.policy == "pooled" else None,
    )
    if isinstance(chosen.get("autoscaler"), Mapping):
        rule = ScalingRule.RESERVED if fixed else ScalingRule.DEMAND
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
