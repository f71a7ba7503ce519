"""One host in the scheduler's eyes: what it is, whether it lives, which replicas it carries."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from notebookos_ext.cluster.model import HostId, HostSpec, HostState, KernelSpec, ReplicaId

PARTS = 15
"""A multiple of every replica count: what is promised to one of so many replicas stays whole."""


class Share(NamedTuple):
    """What one replica's kernel may come to need of its host, in fifteenths.

    Only one replica of a kernel runs a cell at a time, so each of three promises a third (the
    subscription ratio of paper section 2).
    """

    gpus: int = 0
    millicpus: int = 0
    memory_bytes: int = 0


NOTHING = Share()


def share_of(spec: KernelSpec, count: int) -> Share:
    """What each of `count` replicas of the kernel promises."""
    parts = PARTS // count if PARTS % count == 0 else PARTS / count
    return Share(
        int(spec.gpus_per_cell * parts),
        int(spec.millicpus * parts),
        int(spec.memory_bytes * parts),
    )


@dataclass(slots=True, eq=False)
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
    surplus: bool = False
    """It is emptied because fewer hosts are wanted; it stays if more are wanted again."""
    removed: bool = False
    """It does not come back; its replicas must move."""
    releasing: bool = False
    """It is being given back."""
    promised: Share = NOTHING
    """The sum of its replicas' shares."""
    prewarmed: int = 0
    """Pre-warmed replicas that are ready."""
    prewarming: int = 0
    """Pre-warmed replicas that are being started."""
    prewarm_again_at: float = 0.0
    """When the next pre-warmed replica may be tried, after one could not be started."""
    filled: bool = False
    """Pre-warmed replicas were started on it."""
    joined_at: float = 0.0

    @property
    def id(self) -> HostId:
        """Its stable name."""
        return self.spec.host

    @property
    def ready(self) -> bool:
        """Its agent answers."""
        return self.state is HostState.READY

    @property
    def usable(self) -> bool:
        """Something new may go there."""
        return self.state is HostState.READY and not self.draining

    @property
    def gpu_count(self) -> int:
        """How many GPUs it has, or had when it was lost."""
        return len(self.spec.devices)

    @property
    def gpu_load(self) -> float:
        """How many times its GPUs are promised: its subscription ratio."""
        return self.promised.gpus / PARTS / max(1, len(self.spec.devices))

    def add(self, replica: ReplicaId, share: Share) -> None:
        """A replica is to live here."""
        self.replicas.add(replica)
        self.promised = Share(*(a + b for a, b in zip(self.promised, share, strict=True)))

    def remove(self, replica: ReplicaId, share: Share) -> None:
        """It no longer is."""
        if replica in self.replicas:
            self.replicas.discard(replica)
            self.promised = Share(*(a - b for a, b in zip(self.promised, share, strict=True)))


def host_order(host: HostId) -> tuple[int, str]:
    """Orders `host-2` before `host-10`."""
    return len(host), host


LoadKey = tuple[float, int, tuple[int, str]]


def load_key(host: Host) -> LoadKey:
    """The least promised first, then those with the fewest replicas, then by name."""
    return host.gpu_load, len(host.replicas), host_order(host.id)


class HostsByLoad:
    """The usable hosts, the least loaded first, so that placement need not look at all of them."""

    def __init__(self) -> None:
        self._keys: list[tuple[LoadKey, HostId]] = []
        self._key_of: dict[HostId, LoadKey] = {}
        self._hosts: dict[HostId, Host] = {}

    def __iter__(self) -> Iterator[Host]:
        hosts = self._hosts
        return (hosts[host] for _, host in self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def note(self, host: Host) -> None:
        """The host, or what it carries, has changed."""
        key = load_key(host) if host.usable else None
        before = self._key_of.get(host.id)
        if key == before:
            return
        if before is not None:
            del self._keys[bisect.bisect_left(self._keys, (before, host.id))]
            del self._key_of[host.id]
        if key is not None:
            bisect.insort(self._keys, (key, host.id))
            self._key_of[host.id] = key
            self._hosts[host.id] = host
        else:
            self._hosts.pop(host.id, None)
