"""One host in the scheduler's eyes: what it is, whether it lives, which replicas it carries."""

from __future__ import annotations

from dataclasses import dataclass, field

from notebookos_ext.cluster.model import HostId, HostSpec, HostState, ReplicaId


@dataclass(slots=True)
class Host:
    """A host that has joined at least once. A lost one is kept: its replicas return with it."""

    spec: HostSpec
    state: HostState = HostState.READY
    replicas: set[ReplicaId] = field(default_factory=set)
    executing: int = 0
    """How many of its replicas run a cell; spreads cells that need no GPU."""
    lost_reason: str = ""
    draining: bool = False
    """Nothing new goes there, and what is there moves."""
    release: bool = False
    """It is given back once it is empty."""

    @property
    def id(self) -> HostId:
        """Its stable name."""
        return self.spec.host

    @property
    def ready(self) -> bool:
        """Its agent answers."""
        return self.state is HostState.READY

    @property
    def gpu_count(self) -> int:
        """How many GPUs it has, or had when it was lost."""
        return len(self.spec.devices)


def host_order(host: HostId) -> tuple[int, str]:
    """Orders `host-2` before `host-10`."""
    return len(host), host
