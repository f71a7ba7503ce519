"""What goes wrong in the simulated world, and how often; all of it drawn from the run's seed."""

from __future__ import annotations

import random

import msgspec

from notebookos_ext.errors import InvalidRequest

DAY_S = 86_400.0


class Faults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rates of faults; the default is a world without any."""

    host_losses_per_day: float = 0.0
    """For each host."""
    host_returns_after_s: float = 300.0
    """A lost host comes back, empty, after about so long."""
    replica_crashes_per_day: float = 0.0
    """For each replica."""
    start_failure_share: float = 0.0
    """Replicas whose process ends before it answers."""
    refusal_share: float = 0.0
    """Attempts that the agent refuses, because somebody else's process is on a device."""
    store_slow_share: float = 0.0
    """Transfers that take ten times as long."""
    store_failure_share: float = 0.0
    """Transfers that fail and are tried again."""
    store_retry_s: float = 5.0
    interrupt_share: float = 0.0
    """Cells that wait and whose user takes them back."""

    @property
    def none(self) -> bool:
        """Nothing goes wrong."""
        return self == Faults()


CHAOS = Faults(
    host_losses_per_day=40.0,
    host_returns_after_s=120.0,
    replica_crashes_per_day=60.0,
    start_failure_share=0.1,
    refusal_share=0.1,
    store_slow_share=0.2,
    store_failure_share=0.2,
    interrupt_share=0.05,
)
"""Far more than any machine room has: for finding mistakes, not for figures."""

COMMON = Faults(
    host_losses_per_day=1 / 30,
    replica_crashes_per_day=1 / 10,
    store_slow_share=0.01,
    store_failure_share=0.001,
)
"""A host lost once a month and a replica crashed every ten days."""

PRESETS = {"none": Faults(), "common": COMMON, "chaos": CHAOS}


def read_faults(name_or_json: str) -> Faults:
    """A preset by its name, else a JSON object of rates. Raises InvalidRequest."""
    if name_or_json in PRESETS:
        return PRESETS[name_or_json]
    try:
        faults = msgspec.json.decode(name_or_json, type=Faults)
    except msgspec.DecodeError as problem:
        raise InvalidRequest(
            f"{name_or_json!r} gives no faults ({problem}); use {', '.join(PRESETS)} or a JSON "
            'object such as {"host_losses_per_day": 0.1}'
        ) from problem
    for field in faults.__struct_fields__:
        if getattr(faults, field) < 0:
            raise InvalidRequest(f"{field} is {getattr(faults, field)}; it must be 0 or more")
        if field.endswith("_share") and getattr(faults, field) > 1:
            raise InvalidRequest(f"{field} is {getattr(faults, field)}; a share is at most 1")
    return faults


def after_s(per_day: float, rng: random.Random) -> float | None:
    """When the next fault of that rate happens; None for never."""
    return rng.expovariate(per_day / DAY_S) if per_day > 0 else None
