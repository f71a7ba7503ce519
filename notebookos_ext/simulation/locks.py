"""Who holds which device, in the eyes of the simulated agents."""

from __future__ import annotations

from notebookos_ext.cluster.actions import StartAttempt
from notebookos_ext.cluster.model import DeviceId, ReplicaId
from notebookos_ext.errors import Defect


class DeviceLocks:
    """Devices are bound by attempts, and held by the replica until they are released."""

    def __init__(self) -> None:
        self._locks: dict[DeviceId, StartAttempt] = {}
        self._held: dict[ReplicaId, StartAttempt] = {}

    def taken(self, device: DeviceId) -> bool:
        """Whether somebody holds it."""
        return device in self._locks

    def take(self, action: StartAttempt) -> None:
        """Bind the devices of an attempt. Raises Defect when another replica holds one."""
        if not action.devices:
            return
        # A replica takes over what it holds from its last cell.
        self.drop(action.replica)
        for device in action.devices:
            if device in self._locks:
                raise Defect(f"{device} is bound twice, by {self._locks[device]} and {action}")
            self._locks[device] = action
        self._held[action.replica] = action

    def drop(self, replica: ReplicaId, attempt: int | None = None) -> None:
        """Free what a replica holds; with `attempt`, only what that one bound."""
        held = self._held.get(replica)
        if held is not None and attempt in (None, held.attempt):
            del self._held[replica]
            for device in held.devices:
                del self._locks[device]
