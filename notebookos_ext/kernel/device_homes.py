"""Which torch storages lie in host memory for now but belong on a device.

A parked storage does, and so does one that came with a delta to a standby, which has no device
bound. It is pickled as one of its device, so that parking changes nothing for the other replicas,
and goes to the device when the next cell that binds one begins.
"""

from __future__ import annotations

import weakref
from typing import Any


class DeviceHomes:
    """Storages (by identity; they may die) and the names of their devices, such as `cuda:0`."""

    def __init__(self) -> None:
        # torch keeps one Python object per storage for as long as anything uses the storage.
        self._homes: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def put(self, storage: Any, device: str) -> None:
        """`storage` belongs on `device`."""
        self._homes[storage] = device

    def get(self, storage: Any) -> str | None:
        """Where `storage` belongs, or None when it is where it belongs."""
        return self._homes.get(storage)

    def __len__(self) -> int:
        return len(self._homes)


HOMES = DeviceHomes()
"""This process's; unpickling reaches it through module functions, hence a global."""
