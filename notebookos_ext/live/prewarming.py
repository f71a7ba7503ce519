"""Carries out what the scheduler asks for the hosts' pools of pre-warmed replicas."""

from __future__ import annotations

from notebookos_ext.clock import Clock
from notebookos_ext.cluster import actions, events
from notebookos_ext.cluster.messages import control as messages
from notebookos_ext.cluster.model import HostId
from notebookos_ext.errors import NotebookOSError
from notebookos_ext.live.chains import Chains
from notebookos_ext.live.fleet import Fleet
from notebookos_ext.live.ports import Outlet


class Prewarming:
    """Lives on the controller's thread."""

    def __init__(self, *, fleet: Fleet, chains: Chains, clock: Clock, outlet: Outlet) -> None:
        self._fleet = fleet
        self._chains = chains
        self._clock = clock
        self._outlet = outlet

    def start(self, action: actions.StartPrewarmed) -> None:
        """Have the host's agent start some; it tells what comes of each."""
        self._chains.spawn(self._start(action))

    async def _start(self, action: actions.StartPrewarmed) -> None:
        request = messages.StartPrewarmed(count=action.count)
        try:
            await self._fleet.agent(action.host).request(request, messages.Done)
        except NotebookOSError as error:
            # With a lost host its pool is forgotten, and these are of none.
            for _ in range(action.count):
                self.exited(action.host, messages.PrewarmedExited(ready=False, reason=str(error)))

    def stop(self, action: actions.StopPrewarmed) -> None:
        """Have the host's agent end some."""
        self._chains.spawn(self._stop(action))

    async def _stop(self, action: actions.StopPrewarmed) -> None:
        request = messages.StopPrewarmed(count=action.count)
        try:
            await self._fleet.agent(action.host).request(request, messages.Done)
        except NotebookOSError:
            # They have ended with their host.
            return

    def ready(self, host: HostId, _notice: messages.PrewarmedReady) -> None:
        """The host's agent says that one more is there."""
        spec = self._fleet.spec(host)
        if spec is not None:
            self._outlet.post(
                events.PrewarmedStarted(
                    host=host, incarnation=spec.incarnation, at=self._clock.now()
                )
            )

    def exited(self, host: HostId, notice: messages.PrewarmedExited) -> None:
        """One has ended, or could not be started."""
        spec = self._fleet.spec(host)
        if spec is not None:
            self._outlet.post(
                events.PrewarmedLost(
                    host=host,
                    incarnation=spec.incarnation,
                    ready=notice.ready,
                    reason=notice.reason,
                    at=self._clock.now(),
                )
            )
