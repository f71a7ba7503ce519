"""What provides hosts: the contract between the controller and whatever starts host agents.

A backend starts agents, finds those that already run, and tells when one is gone; it knows neither
kernels nor cells. The controller connects to the agents by itself. A host that comes back has the
same id and a new incarnation, which its agent makes (findings on engines, rule 1). All methods are
called on the controller's event loop, and all callbacks come on it.
"""

from __future__ import annotations

from typing import Protocol

from notebookos_ext.cluster.model import HostId


class BackendListener(Protocol):
    """What the controller wants to hear."""

    def host_up(self, host: HostId, control_path: str, *, adopted: bool) -> None:
        """An agent listens at `control_path`; `adopted` when this backend did not start it."""
        ...

    def host_down(self, host: HostId, reason: str) -> None:
        """The host's agent process is gone, or could not be started, for `reason`."""
        ...


class Backend(Protocol):
    """Hosts on request."""

    name: str
    max_hosts: int
    boot_s: float
    """How long a host usually takes, from being asked for to being attached."""

    async def start(self, listener: BackendListener) -> None:
        """Adopt agents that run, start those that are missing. Returns before they all listen."""
        ...

    @property
    def host_count(self) -> int:
        """Hosts that are there, begin, or are about to leave."""
        ...

    async def request_hosts(self, count: int) -> None:
        """Have `count` hosts in all, clamped to `max_hosts`; more than asked for are kept.

        Raises Unavailable with a sentence when there are no more to be had for now; one that was
        begun and could not be brought up is told by `host_down`.
        """
        ...

    async def release_host(self, host: HostId, *, grace_s: float) -> None:
        """Its agent was told to end: wait `grace_s`, then kill, and give the host back for good.

        No `host_down` follows. The same id may be given out again later.
        """
        ...

    def attached(self, host: HostId) -> None:
        """The controller commands this agent now: it works."""
        ...

    def failed(self, host: HostId) -> None:
        """The controller lost this agent: end what is left of it and start another."""
        ...

    async def stop(self, *, grace_s: float) -> None:
        """The agents were told to end: wait `grace_s`, then kill. Nothing remains running."""
        ...
