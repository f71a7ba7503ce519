"""Reading devices: what a driver says, what it does not say, and the simulated ones."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from agent.fake_nvml import FakeMigNvml, FakeNvml, gpu

from notebookos_ext.agent.inventory import open_inventory
from notebookos_ext.agent.nvml import NvmlReader, find_nvml
from notebookos_ext.cluster.messages.control import DeviceUse
from notebookos_ext.cluster.model import DeviceId, DeviceKind, DeviceSpec, HostId
from notebookos_ext.errors import InvalidSettings

HOST = HostId("host-1")
ROOT = Path(__file__).resolve().parents[2]


def test_a_device_is_described_by_its_uuid() -> None:
    reader = NvmlReader(FakeNvml(gpu("GPU-a"), gpu("GPU-b", name=b"Tesla")))
    assert reader.devices == (
        DeviceSpec(DeviceId("GPU-a"), 0, DeviceKind.CUDA, "NVIDIA A100", 40 << 30),
        DeviceSpec(DeviceId("GPU-b"), 1, DeviceKind.CUDA, "Tesla", 40 << 30),
    )


def test_a_reading_has_units_and_gaps() -> None:
    reader = NvmlReader(FakeNvml(gpu("GPU-a"), gpu("GPU-b", busy=None)))
    assert reader.use(DeviceId("GPU-a")) == DeviceUse(DeviceId("GPU-a"), 3 << 30, 55.0, 61.0, 120.5)
    assert reader.use(DeviceId("GPU-b")).utilization_percent is None


def test_functions_that_an_old_driver_lacks_read_as_none() -> None:
    class OldNvml(FakeNvml):
        nvmlDeviceGetPowerUsage = property()  # type: ignore[assignment]  # noqa: N815
        nvmlDeviceGetComputeRunningProcesses = property()  # type: ignore[assignment]  # noqa: N815

    reader = NvmlReader(OldNvml(gpu("GPU-a", owners={1: 2})))
    assert reader.use(DeviceId("GPU-a")).power_w is None
    assert reader.owners(DeviceId("GPU-a")) == {}


def test_a_lost_device_is_left_out() -> None:
    reader = NvmlReader(FakeNvml(gpu("GPU-a", name="lost"), gpu("GPU-b")))
    assert [spec.device for spec in reader.devices] == ["GPU-b"]


def test_the_slices_of_a_partitioned_device_are_the_devices() -> None:
    parted = gpu("GPU-a", slices=[gpu("MIG-1", total=5 << 30, owners={9: None}), gpu("MIG-2")])
    reader = NvmlReader(FakeMigNvml(parted, gpu("GPU-b")))
    assert [spec.device for spec in reader.devices] == ["MIG-1", "MIG-2", "GPU-b"]
    assert reader.devices[0].memory_bytes == 5 << 30
    assert reader.owners(DeviceId("MIG-1")) == {9: None}


@pytest.mark.parametrize("fake", [FakeNvml(gpu(), driver=False), FakeNvml()])
def test_no_driver_and_no_device_are_no_devices(
    monkeypatch: pytest.MonkeyPatch, fake: FakeNvml
) -> None:
    monkeypatch.setitem(sys.modules, "some_nvml", fake)
    assert find_nvml("some_nvml") is None


def test_a_library_that_is_not_installed_is_no_devices() -> None:
    assert find_nvml("there_is_no_such_nvml") is None


def test_real_devices_come_before_simulated_ones() -> None:
    reader = NvmlReader(FakeNvml(gpu("GPU-a")))
    real = open_inventory(HOST, gpus="auto", simulated_gpus=2, find=lambda: reader)
    assert [spec.device for spec in real.devices] == ["GPU-a"]
    assert real.use() == (reader.use(DeviceId("GPU-a")),)
    asked_for = open_inventory(HOST, gpus="simulated", simulated_gpus=1, find=lambda: reader)
    assert [spec.device for spec in asked_for.devices] == ["SIM-host-1-0"]
    none_there = open_inventory(HOST, gpus="auto", simulated_gpus=1, find=lambda: None)
    assert none_there.devices == asked_for.devices
    assert open_inventory(HOST, gpus="none", simulated_gpus=5, find=lambda: reader).devices == ()


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(InvalidSettings, match='choose "auto", "simulated" or "none"'):
        open_inventory(HOST, gpus="yes", simulated_gpus=1)


STUB = r"""
#include <string.h>
typedef void *device;
typedef struct { unsigned long long total, free, used; } memory;
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *found) {
    *found = (device)(long)(index + 1);
    return 0;
}
int nvmlDeviceGetUUID(device d, char *text, unsigned size) {
    strncpy(text, (long)d == 1 ? "GPU-one" : "GPU-two", size);
    return 0;
}
int nvmlDeviceGetName(device d, char *text, unsigned size) {
    strncpy(text, "Stub GPU", size);
    return 0;
}
int nvmlDeviceGetMemoryInfo(device d, memory *m) {
    m->total = 1000; m->used = 10; m->free = 990;
    return 0;
}
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } process;
int nvmlDeviceGetComputeRunningProcesses_v2(device d, unsigned *count, process *found) {
    if (*count < 1) { *count = 1; return 7; }
    *count = 1; found[0].pid = 4242; found[0].used = 77;
    return 0;
}
const char *nvmlErrorString(int code) { return "stub error"; }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_real_library_with_a_stub_driver(tmp_path: Path) -> None:
    """nvidia-ml-py itself, on a driver that knows only a few functions."""
    (tmp_path / "stub.c").write_text(STUB)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-w", "-o", "libnvidia-ml.so.1", "stub.c"],
        cwd=tmp_path,
        check=True,
    )
    program = (
        "from notebookos_ext.agent.nvml import find_nvml\n"
        "reader = find_nvml()\n"
        "for spec in reader.devices:\n"
        "    print(spec.device, spec.name, spec.memory_bytes, reader.use(spec.device).power_w,"
        " dict(reader.owners(spec.device)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (
        "GPU-one Stub GPU 1000 None {4242: 77}\nGPU-two Stub GPU 1000 None {4242: 77}\n"
    )
