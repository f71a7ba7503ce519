"""Moves torch's tensors off the devices between cells and back on, in place.

Every tensor object stays the same object, so modules, optimizers and closures that refer to it
follow. Tensors that share a storage still share one afterwards. torch is used only when the user's
kernel has loaded it. Tensors that live only inside torch (in a graph that was kept for backward)
are not found. Not run on real hardware so far: the tests let host memory play the device.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from notebookos_ext.kernel.device_homes import HOMES, DeviceHomes

HOST = "cpu"


def device_of(tensor: Any) -> str:
    """The name of a tensor's CUDA device; the host's for every other kind."""
    return str(tensor.device) if tensor.is_cuda else HOST


def copy_storage(torch: Any, storage: Any, device: str) -> Any:
    """A storage with the same bytes on `device`."""
    whole = torch.empty(0, dtype=torch.uint8, device=storage.device)
    whole.set_(storage)
    return whole.to(device, copy=True).untyped_storage()


class TorchParking:
    """Parks and restores the tensors of this process; used on its main thread."""

    def __init__(
        self,
        modules: Mapping[str, Any],
        *,
        homes: DeviceHomes = HOMES,
        device_of: Callable[[Any], str] = device_of,
        copy_storage: Callable[[Any, Any, str], Any] = copy_storage,
    ) -> None:
        """`modules` is `sys.modules`; the other arguments are for tests without a device."""
        self._modules = modules
        self._homes = homes
        self._device_of = device_of
        self._copy_storage = copy_storage

    def park(self) -> int:
        """Move every live tensor to host memory and empty the allocator's cache.

        Returns the bytes that torch still reserves on the devices.
        """
        torch = self._modules.get("torch")
        cuda = getattr(torch, "cuda", None)
        if torch is None or cuda is None or not cuda.is_initialized():
            return 0
        cuda.synchronize()
        # A collection first: garbage that lives on the device need not be copied.
        gc.collect()
        moved: dict[Any, Any] = {}
        for tensor in list(self._tensors(torch)):
            device = self._device_of(tensor)
            if device != HOST:
                storage = self._move(torch, tensor, HOST, moved)
                self._homes.put(storage, device)
        moved.clear()
        cuda.empty_cache()
        return sum(int(cuda.memory_reserved(index)) for index in range(cuda.device_count()))

    def restore(self) -> None:
        """Move what belongs on a device there; the first stands in for one that is not visible."""
        torch = self._modules.get("torch")
        if torch is None or not len(self._homes):
            return
        count = torch.cuda.device_count()
        if not count:
            return
        moved: dict[Any, Any] = {}
        for tensor in list(self._tensors(torch)):
            home = self._homes.get(tensor.untyped_storage())
            if home is not None:
                index = int(home.partition(":")[2] or 0)
                device = home if index < count else "cuda:0"
                self._move(torch, tensor, device, moved)

    @staticmethod
    def _tensors(torch: Any) -> Iterator[Any]:
        """Every dense tensor that Python knows, gradients included."""
        seen: set[int] = set()
        for thing in gc.get_objects():
            # `type`, not isinstance: that would call `__class__` properties of the user's proxies.
            if not issubclass(type(thing), torch.Tensor):
                continue
            for tensor in (thing, thing.grad if thing.is_leaf else None):
                if tensor is None or id(tensor) in seen or tensor.layout != torch.strided:
                    continue
                seen.add(id(tensor))
                yield tensor

    def _move(self, torch: Any, tensor: Any, device: str, moved: dict[Any, Any]) -> Any:
        """Give a tensor the copy of its storage on `device`, made once per storage."""
        storage = tensor.untyped_storage()
        if storage not in moved:
            moved[storage] = self._copy_storage(torch, storage, device)
        new = moved[storage]
        with torch.no_grad():
            view = torch.empty(0, dtype=tensor.dtype, device=new.device)
            view.set_(new, tensor.storage_offset(), tensor.size(), tensor.stride())
            tensor.data = view
        return new
