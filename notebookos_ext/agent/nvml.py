"""Reading NVIDIA's devices: the one home of NVML. Whatever the driver does not offer reads as None.

Devices are named by UUID, never by index: NVML and CUDA count differently.
On a device in MIG mode its slices are the devices.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

from notebookos_ext.cluster.messages.control import DeviceUse
from notebookos_ext.cluster.model import DeviceId, DeviceKind, DeviceSpec

log = logging.getLogger(__name__)

Value = TypeVar("Value")

_PROCESS_QUERIES = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetComputeRunningProcesses_v2",
)
"""The unversioned one refuses to work when the driver is older than the library."""


class DeviceReader(Protocol):
    """What the inventory needs to know of real devices. Calls may block for some milliseconds."""

    @property
    def devices(self) -> tuple[DeviceSpec, ...]:
        """Every device that was found."""
        ...

    def use(self, device: DeviceId) -> DeviceUse:
        """One reading."""
        ...

    def owners(self, device: DeviceId) -> Mapping[int, int | None]:
        """Processes that compute on the device, and the bytes each holds (None: not measurable)."""
        ...


class NvmlReader:
    """Reads through a module shaped like `pynvml`."""

    def __init__(self, library: Any) -> None:
        """Initialise NVML. Raises the library's NVMLError when there is no driver to talk to."""
        self._library = library
        mismatch = getattr(library, "NVMLLibraryMismatchError", library.NVMLError)
        self._silent: tuple[type[Exception], ...] = (library.NVMLError, mismatch, AttributeError)
        library.nvmlInit()
        self._handles: dict[DeviceId, Any] = {}
        specs = []
        for index, handle in enumerate(self._find()):
            spec = self._describe(index, handle)
            self._handles[spec.device] = handle
            specs.append(spec)
        self._devices = tuple(specs)

    @property
    def devices(self) -> tuple[DeviceSpec, ...]:
        """Every device that was found at the start."""
        return self._devices

    def use(self, device: DeviceId) -> DeviceUse:
        """One reading of memory, utilisation, temperature and power."""
        library, handle = self._library, self._handles[device]
        memory = self._ask(lambda: library.nvmlDeviceGetMemoryInfo(handle))
        rates = self._ask(lambda: library.nvmlDeviceGetUtilizationRates(handle))
        celsius = self._ask(
            lambda: library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU)
        )
        milliwatts = self._ask(lambda: library.nvmlDeviceGetPowerUsage(handle))
        return DeviceUse(
            device=device,
            memory_used_bytes=None if memory is None else int(memory.used),
            utilization_percent=None if rates is None else float(rates.gpu),
            temperature_c=None if celsius is None else float(celsius),
            power_w=None if milliwatts is None else milliwatts / 1000,
        )

    def owners(self, device: DeviceId) -> Mapping[int, int | None]:
        """Processes with a compute context on the device."""
        handle = self._handles[device]
        for name in _PROCESS_QUERIES:
            query = getattr(self._library, name, None)
            found = None if query is None else self._ask(partial(query, handle))
            if found is not None:
                return {int(one.pid): one.usedGpuMemory for one in found}
        return {}

    def _find(self) -> Iterator[Any]:
        library = self._library
        for index in range(self._ask(library.nvmlDeviceGetCount) or 0):
            handle = self._ask(partial(library.nvmlDeviceGetHandleByIndex, index))
            if handle is None:
                continue
            slices = list(self._slices(handle))
            yield from slices or [handle]

    def _slices(self, handle: Any) -> Iterator[Any]:
        library = self._library
        mode = self._ask(lambda: library.nvmlDeviceGetMigMode(handle))
        if mode is None or not mode[0]:
            return
        for index in range(self._ask(lambda: library.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0):
            found = self._ask(partial(library.nvmlDeviceGetMigDeviceHandleByIndex, handle, index))
            if found is not None:
                yield found

    def _describe(self, index: int, handle: Any) -> DeviceSpec:
        library = self._library
        memory = self._ask(lambda: library.nvmlDeviceGetMemoryInfo(handle))
        name = self._ask(lambda: library.nvmlDeviceGetName(handle))
        return DeviceSpec(
            device=DeviceId(_text(library.nvmlDeviceGetUUID(handle))),
            index=index,
            kind=DeviceKind.CUDA,
            name="NVIDIA GPU" if name is None else _text(name),
            memory_bytes=0 if memory is None else int(memory.total),
        )

    def _ask(self, question: Callable[[], Value]) -> Value | None:
        """None when the driver, the device or this version of the library cannot tell."""
        try:
            return question()
        except self._silent as error:
            log.debug("NVML does not tell: %s", error)
            return None


def find_nvml(library_name: str = "pynvml") -> NvmlReader | None:
    """The machine's NVIDIA devices, or None when there is no library, no driver or no device."""
    try:
        library = importlib.import_module(library_name)
    except ImportError as error:
        log.info("no NVML here: %s", error)
        return None
    try:
        reader = NvmlReader(library)
    except library.NVMLError as error:
        log.info("no NVIDIA driver here: %s", error)
        return None
    return reader if reader.devices else None


def _text(value: str | bytes) -> str:
    """Older versions of the library answer in bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value
