"""Moves torch's tensors off the devices between cells and back on, in place.

Every tensor object stays the same object, so modules, optimizers and closures that refer to it
follow. Tensors that share a storage still share one afterwards. torch is used only when the user's
kernel has loaded it and its CUDA is initialised. Not run on real hardware so far: the tests treat
host memory as the device.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping
from typing import Any


class TorchParking:
    """Remembers which tensors it moved to host memory and where they came from."""

    def __init__(
        self,
        modules: Mapping[str, Any],
        *,
        on_device: Callable[[Any], bool] = lambda tensor: bool(tensor.is_cuda),
    ) -> None:
        self._modules = modules
        self._on_device = on_device
        self._parked: list[tuple[weakref.ref[Any], str]] = []

    def _torch(self) -> Any | None:
        torch = self._modules.get("torch")
        cuda = getattr(torch, "cuda", None)
        if cuda is None or not cuda.is_initialized():
            return None
        return torch

    def park(self) -> int:
        """Move every live tensor to host memory and empty the allocator's cache.

        Returns the bytes that torch still reserves on the devices.
        """
        torch = self._torch()
        if torch is None:
            return 0
        torch.cuda.synchronize()
        # A collection first: garbage that lives on the device need not be copied.
        gc.collect()
        found = self._tensors(torch)
        homes = [(weakref.ref(tensor), str(tensor.device)) for tensor in found]
        self._move(torch, [(tensor, "cpu") for tensor in found])
        self._parked += homes
        del found
        torch.cuda.empty_cache()
        return sum(
            int(torch.cuda.memory_reserved(index)) for index in range(torch.cuda.device_count())
        )

    def restore(self) -> None:
        """Move what was parked, and is still alive and on the host, back where it came from.

        A device that is not among the visible ones any more is replaced by the first.
        """
        torch = self._torch()
        parked, self._parked = self._parked, []
        if torch is None:
            return
        count = torch.cuda.device_count()
        moves = []
        for reference, home in parked:
            tensor = reference()
            if tensor is None or str(tensor.device) != "cpu":
                continue
            index = int(home.partition(":")[2] or 0)
            moves.append((tensor, home if index < count else "cuda:0"))
        self._move(torch, moves)

    def home(self, tensor: Any) -> str | None:
        """The device a parked tensor came from, else None."""
        for reference, home in self._parked:
            if reference() is tensor:
                return home
        return None

    def _tensors(self, torch: Any) -> list[Any]:
        found: dict[int, Any] = {}
        for thing in gc.get_objects():
            # `type`, not isinstance: that would call `__class__` properties of the user's proxies.
            if not issubclass(type(thing), torch.Tensor):
                continue
            for tensor in (thing, thing.grad if thing.is_leaf else None):
                if tensor is not None and self._on_device(tensor):
                    found[id(tensor)] = tensor
        return list(found.values())

    @staticmethod
    def _move(torch: Any, moves: list[tuple[Any, str]]) -> None:
        storages: dict[tuple[int, str], Any] = {}
        with torch.no_grad():
            for tensor, device in moves:
                if tensor.layout != torch.strided:
                    tensor.data = tensor.data.to(device)
                    continue
                storage = tensor.untyped_storage()
                key = (storage.data_ptr(), device)
                if key not in storages:
                    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
                    whole.set_(storage)
                    storages[key] = whole.to(device, copy=True).untyped_storage()
                view = torch.empty(0, dtype=tensor.dtype, device=device)
                view.set_(storages[key], tensor.storage_offset(), tensor.size(), tensor.stride())
                tensor.data = view
