"""How a workload is run: the policy and its options, the cluster, delays, faults and the seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from notebookos_ext.cluster.options import (
    AutoscalerOptions,
    Options,
    PrewarmOptions,
    PrewarmRule,
    ScalingRule,
    changed,
)
from notebookos_ext.errors import InvalidRequest
from notebookos_ext.simulation.delays import Delays
from notebookos_ext.simulation.faults import Faults
from notebookos_ext.simulation.machines import HostShape


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a workload is run."""

    policy: str = "replicated"
    replica_count: int = 3
    shape: HostShape = HostShape()
    hosts_min: int = 4
    """Hosts that are there from the start; fewer only if the options say so."""
    hosts_max: int = 30
    delays: Delays = Delays()
    faults: Faults = Faults()
    options: Options | None = None
    """What the scheduler may do; None for what its policy is usually run with."""
    users: int = 0
    """So many people have the sessions, in turn; 0: each session is somebody else's."""
    seed: int = 0
    check_all: bool = False
    """Check the scheduler's whole state after each event, not only what the world can tell."""
    tick_s: float = 10.0
    """How often the scheduler is told the time when nothing waits; once a second when it does."""
    overtime_s: float = 7 * 86_400.0
    """How long after the horizon what is still to be done may take."""

    def scheduler_options(self) -> Options:
        """The options of the scheduler."""
        return usual_options(self) if self.options is None else self.options


def usual_options(plan: Plan) -> Options:
    """What the paper's baselines and our policies are run with, when nothing else is said."""
    scaler = AutoscalerOptions(
        least_hosts=plan.hosts_min, boot_s=plan.delays.host_boot_s, gpus_per_host=plan.shape.gpus
    )
    return _USUAL.get(plan.policy, _replicated)(scaler, plan)


def changed_options(usual: Options, text: str) -> Options:
    """The options with those replaced that a JSON object names, within `autoscaler` and `prewarm`
    as well; null turns either off. Raises InvalidRequest.
    """
    try:
        return changed(usual, msgspec.json.decode(text, type=dict[str, Any]))
    except (msgspec.DecodeError, msgspec.ValidationError) as problem:
        raise InvalidRequest(
            f"{text!r} gives no options ({problem}); use a JSON object such as "
            '{"subscription_limit": 2, "autoscaler": {"keep_s": 1200}}'
        ) from problem


def _reservation(scaler: AutoscalerOptions, _plan: Plan) -> Options:
    return Options(
        autoscaler=msgspec.structs.replace(scaler, rule=ScalingRule.RESERVED),
    )


def _batch(scaler: AutoscalerOptions, _plan: Plan) -> Options:
    return Options(autoscaler=scaler)


def _replicated(scaler: AutoscalerOptions, plan: Plan) -> Options:
    return Options(
        migrate=True,
        rebalance=True,
        autoscaler=scaler,
        prewarm=PrewarmOptions(start_s=plan.delays.replica_start_cold_s),
    )


def _pooled(scaler: AutoscalerOptions, plan: Plan) -> Options:
    # Thrift first: replicas come from the pool in half a second, so hosts may be few and full.
    thrifty = msgspec.structs.replace(scaler, least_hosts=1, spread=0.25, keep_s=260.0)
    prewarm = PrewarmOptions(
        rule=PrewarmRule.MINIMUM, per_host=8, start_s=plan.delays.replica_start_cold_s
    )
    return Options(migrate=True, rebalance=True, autoscaler=thrifty, prewarm=prewarm)


_USUAL: dict[str, Callable[[AutoscalerOptions, Plan], Options]] = {
    "reservation": _reservation,
    "batch": _batch,
    "replicated": _replicated,
    "pooled": _pooled,
}
