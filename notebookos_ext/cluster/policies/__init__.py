"""Policy name to policy: the one registry."""

from __future__ import annotations

from collections.abc import Callable

from notebookos_ext.cluster.policies.base import Policy
from notebookos_ext.cluster.policies.batch import BatchPolicy
from notebookos_ext.cluster.policies.pooled import PooledPolicy
from notebookos_ext.cluster.policies.replicated import ReplicatedPolicy
from notebookos_ext.cluster.policies.reservation import ReservationPolicy
from notebookos_ext.errors import InvalidSettings

POLICIES: dict[str, Callable[[], Policy]] = {
    BatchPolicy.name: BatchPolicy,
    PooledPolicy.name: PooledPolicy,
    ReplicatedPolicy.name: ReplicatedPolicy,
    ReservationPolicy.name: ReservationPolicy,
}


def make_policy(name: str) -> Policy:
    """The policy of that name. Raises InvalidSettings."""
    maker = POLICIES.get(name)
    if maker is None:
        known = ", ".join(sorted(POLICIES))
        raise InvalidSettings(f"there is no policy {name!r}; choose one of: {known}")
    return maker()
