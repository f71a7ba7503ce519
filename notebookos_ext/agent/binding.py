"""Who holds which device of this host, under one lock.

A real device is shared by every virtual host of the machine and by other clusters of the user, so
its binding is a lock on a file that all of them know; one that a foreign process computes on is not
free. A simulated device belongs to its host alone.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from notebookos_ext.agent.inventory import HostInventory
from notebookos_ext.agent.procfs import belongs_to_an_agent
from notebookos_ext.cluster.model import (
    CellId,
    DeviceId,
    DeviceKind,
    DeviceSpec,
    KernelId,
    ReplicaId,
)
from notebookos_ext.errors import StorageError

log = logging.getLogger(__name__)


class Holder(msgspec.Struct, frozen=True):
    """The attempt that a device is bound for, and the process that uses it."""

    kernel: KernelId
    cell: CellId
    attempt: int
    replica: ReplicaId
    pid: int


class Refusal(msgspec.Struct, frozen=True):
    """Why devices could not be bound; `busy` are those that somebody else uses."""

    reason: str
    busy: tuple[DeviceId, ...] = ()


class DeviceBindings:
    """Binds and releases devices. All or none; a refused bind leaves everything as it was."""

    def __init__(
        self,
        inventory: HostInventory,
        lock_folder: Path,
        *,
        is_ours: Callable[[int], bool] = belongs_to_an_agent,
    ) -> None:
        self._inventory = inventory
        self._lock_folder = lock_folder
        self._is_ours = is_ours
        self._changing = asyncio.Lock()
        self._holders: dict[DeviceId, Holder] = {}
        self._files: dict[DeviceId, int] = {}
        self._last: dict[ReplicaId, tuple[DeviceId, ...]] = {}
        """What the living processes of replicas were bound to last."""

    def spec(self, device: DeviceId) -> DeviceSpec | None:
        """The device, if this host has it."""
        return self._inventory.spec(device)

    def holder(self, device: DeviceId) -> Holder | None:
        """Who holds the device now."""
        return self._holders.get(device)

    def held_by(self, replica: ReplicaId) -> tuple[DeviceId, ...]:
        """The devices that a replica holds, for whatever attempt."""
        return tuple(d for d, holder in self._holders.items() if holder.replica == replica)

    async def bind(self, devices: tuple[DeviceId, ...], holder: Holder) -> Refusal | None:
        """Bind all of `devices`. A replica that still holds one of them takes it over itself."""
        async with self._changing:
            refusal = self._refuse_unknown(devices) or self._refuse_held(devices, holder)
            if refusal is not None:
                return refusal
            fresh = [d for d in devices if d not in self._holders]
            bound = False
            try:
                refusal = self._lock(fresh) or await self._refuse_foreign(fresh)
                bound = refusal is None
            finally:
                if not bound:
                    for device in fresh:
                        self._unlock(device)
            if bound:
                self._holders.update(dict.fromkeys(devices, holder))
                self._last[holder.replica] = devices
            return refusal

    async def free_for(self, replica: ReplicaId) -> tuple[DeviceId, ...]:
        """The devices that the replica could bind just now, those first that it was bound to last.

        Nothing stays locked: somebody else may be faster.
        """
        before = self._last.get(replica, ())
        listed = [spec.device for spec in self._inventory.devices]
        free = []
        async with self._changing:
            for device in sorted(listed, key=lambda device: device not in before):
                if device in self._holders:
                    continue
                try:
                    refusal = self._lock([device]) or await self._refuse_foreign([device])
                finally:
                    self._unlock(device)
                if refusal is None:
                    free.append(device)
        return tuple(free)

    def release(self, devices: tuple[DeviceId, ...], replica: ReplicaId, attempt: int) -> None:
        """Give back what is still bound for this very attempt; a later one keeps its devices."""
        for device in devices:
            holder = self._holders.get(device)
            if holder is not None and (holder.replica, holder.attempt) == (replica, attempt):
                self._let_go(device)

    def release_all(self, pid: int) -> None:
        """The process is gone, so is what it had on its devices."""
        for device, holder in list(self._holders.items()):
            if holder.pid == pid:
                self._let_go(device)

    def forget(self, replica: ReplicaId) -> None:
        """Its process is gone; the next one has no devices that it knows."""
        self._last.pop(replica, None)

    async def residual_bytes(self, devices: tuple[DeviceId, ...], pids: set[int]) -> int | None:
        """What these processes still hold on real devices; None where nothing can be measured."""
        measured = None
        for device in devices:
            for pid, held in (await asyncio.to_thread(self._inventory.owners, device)).items():
                if pid in pids and held is not None:
                    measured = (measured or 0) + held
        return measured

    def _refuse_unknown(self, devices: tuple[DeviceId, ...]) -> Refusal | None:
        unknown = [d for d in devices if self._inventory.spec(d) is None]
        if unknown:
            return Refusal(reason=f"this host has no device {', '.join(unknown)}")
        return None

    def _refuse_held(self, devices: tuple[DeviceId, ...], holder: Holder) -> Refusal | None:
        held = {
            d: other
            for d in devices
            if (other := self._holders.get(d)) is not None and other.replica != holder.replica
        }
        if not held:
            return None
        words = ", ".join(f"{d} is bound to {other.replica}" for d, other in held.items())
        return Refusal(reason=words, busy=tuple(held))

    def _lock(self, devices: list[DeviceId]) -> Refusal | None:
        for device in devices:
            if not self.is_real(device):
                continue
            path = self._lock_folder / device
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise StorageError(
                    f"the device lock {path} cannot be opened: {error.strerror}"
                ) from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                return Refusal(
                    reason=f"{device} is bound by another host of this machine", busy=(device,)
                )
            self._files[device] = descriptor
        return None

    async def _refuse_foreign(self, devices: list[DeviceId]) -> Refusal | None:
        busy: dict[DeviceId, int] = {}
        for device in devices:
            if self.is_real(device):
                for pid in await asyncio.to_thread(self._inventory.owners, device):
                    if not self._is_ours(pid):
                        busy[device] = pid
        if not busy:
            return None
        words = ", ".join(
            f"{device} is in use by process {pid}, which is not a replica"
            for device, pid in busy.items()
        )
        return Refusal(reason=words, busy=tuple(busy))

    def is_real(self, device: DeviceId) -> bool:
        """Whether it is a GPU of this machine, not a simulated one."""
        spec = self._inventory.spec(device)
        return spec is not None and spec.kind is DeviceKind.CUDA

    def _let_go(self, device: DeviceId) -> None:
        del self._holders[device]
        self._unlock(device)

    def _unlock(self, device: DeviceId) -> None:
        descriptor = self._files.pop(device, None)
        if descriptor is not None:
            os.close(descriptor)
