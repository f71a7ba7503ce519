"""A module shaped like pynvml, with devices that a test describes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    pass


def gpu(uuid: str = "GPU-a", **facts: Any) -> SimpleNamespace:
    values: dict[str, Any] = {
        "uuid": uuid,
        "name": "NVIDIA A100",
        "total": 40 << 30,
        "used": 3 << 30,
        "busy": 55,
        "celsius": 61,
        "milliwatts": 120_500,
        "owners": {},
        "slices": None,
    }
    return SimpleNamespace(**(values | facts))


class FakeNvml:
    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, *gpus: SimpleNamespace, driver: bool = True) -> None:
        self.gpus = gpus
        self.driver = driver

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names
        if not self.driver:
            raise NVMLError("Driver Not Loaded")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        found = self.gpus[index]
        if found.name == "lost":
            raise NVMLError("GPU is lost")
        return found

    def nvmlDeviceGetUUID(self, handle: Any) -> Any:  # noqa: N802
        return handle.uuid

    def nvmlDeviceGetName(self, handle: Any) -> Any:  # noqa: N802
        return handle.name

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:  # noqa: N802
        return SimpleNamespace(total=handle.total, used=handle.used)

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:  # noqa: N802
        if handle.busy is None:
            raise NVMLError("Not Supported")
        return SimpleNamespace(gpu=handle.busy)

    def nvmlDeviceGetTemperature(self, handle: Any, _sensor: int) -> int:  # noqa: N802
        return int(handle.celsius)

    def nvmlDeviceGetPowerUsage(self, handle: Any) -> int:  # noqa: N802
        return int(handle.milliwatts)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> Any:  # noqa: N802
        return [SimpleNamespace(pid=p, usedGpuMemory=m) for p, m in handle.owners.items()]


class FakeMigNvml(FakeNvml):
    def nvmlDeviceGetMigMode(self, handle: Any) -> list[int]:  # noqa: N802
        return [int(handle.slices is not None), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, _handle: Any) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: int) -> Any:  # noqa: N802
        if index >= len(handle.slices):
            raise NVMLError("Not Found")
        return handle.slices[index]
