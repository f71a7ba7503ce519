"""What a policy costs its provider and its users, with prices as parameters.

The provider pays for every hour of every host; users pay for what they were promised. Under
reservation that is their GPUs for the whole session. Under the other policies it is GPUs while a
cell holds them, and a small price for each standby replica, as the paper proposes; its own prices
are not published, so these are ours.
"""

from __future__ import annotations

import msgspec

from notebookos_ext.errors import InvalidRequest
from notebookos_ext.simulation.figures import Figures


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """In one currency, for one GPU or one replica and one hour."""

    provider_per_gpu_h: float = 2.0
    """What a GPU costs whoever runs the cluster."""
    reserved_per_gpu_h: float = 3.0
    """What a user pays for a GPU held for a session."""
    bound_per_gpu_h: float = 4.5
    """What a user pays for a GPU while a cell holds it: more, because it is there on demand."""
    standby_per_replica_h: float = 0.05
    """What a user pays for each replica that waits."""


class Cost(msgspec.Struct, frozen=True):
    """The account of one run."""

    provider: float
    users: float

    @property
    def margin_share(self) -> float:
        """What is left of what users pay, 0 … 1."""
        return 1 - self.provider / self.users if self.users else 0.0


class CostStudy(msgspec.Struct, frozen=True):
    """A policy beside the ideal reservation of the same workload."""

    reservation: Cost
    policy: Cost

    @property
    def provider_saving_share(self) -> float:
        """How much less the provider pays, 0 … 1."""
        return _less_share(self.policy.provider, self.reservation.provider)

    @property
    def users_saving_share(self) -> float:
        """How much less users pay, 0 … 1."""
        return _less_share(self.policy.users, self.reservation.users)


def _less_share(cost: float, than: float) -> float:
    """0 where nothing was to be paid: no GPU was asked for, or they are given away."""
    return 1 - cost / than if than else 0.0


def study(
    figures: Figures, session_h: float, prices: Prices, *, replica_count: int, reserved: bool
) -> CostStudy:
    """The cost of a run; `session_h` are hours of all sessions, `reserved` how users are charged.

    Deferred work is paid for as well, so that work left undone makes nothing cheaper.
    Raises InvalidRequest for prices below 0.
    """
    for name in prices.__struct_fields__:
        if getattr(prices, name) < 0:
            raise InvalidRequest(f"the price {name} is {getattr(prices, name)}; use 0 or more")
    ideal = Cost(
        figures.reservation_gpu_h * prices.provider_per_gpu_h,
        figures.reservation_gpu_h * prices.reserved_per_gpu_h,
    )
    provider = (figures.provisioned_gpu_h + figures.deferred_gpu_h) * prices.provider_per_gpu_h
    if reserved:
        return CostStudy(ideal, Cost(provider, ideal.users))
    standbys_h = session_h * max(0, replica_count - 1)
    users = (
        figures.committed_gpu_h + figures.deferred_gpu_h
    ) * prices.bound_per_gpu_h + standbys_h * prices.standby_per_replica_h
    return CostStudy(ideal, Cost(provider, users))
