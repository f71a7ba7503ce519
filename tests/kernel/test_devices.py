"""Which devices a replica lets its user code see, and when it must be recycled."""

from __future__ import annotations

from pathlib import Path

import pytest

from notebookos_ext.cluster.messages.replica import LeadAnswer, Parked, Prepare
from notebookos_ext.cluster.model import DeviceId
from notebookos_ext.kernel.devices import HIDDEN_AT_START, Devices, driver_is_loaded


class Parking:
    """Records what it was told."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def park(self) -> int:
        self.calls.append("park")
        return 42

    def restore(self) -> None:
        self.calls.append("restore")


class Process:
    """A replica process as far as devices go."""

    def __init__(self) -> None:
        self.environ = dict(HIDDEN_AT_START)
        self.driver = False
        self.parking = Parking()
        self.devices = Devices(
            self.environ,
            self.parking,  # type: ignore[arg-type]
            driver_is_loaded=lambda: self.driver,
        )

    def prepare(self, *devices: str, simulated: bool = False) -> LeadAnswer:
        names = tuple(DeviceId(d) for d in devices)
        return self.devices.prepare(Prepare(names, ",".join(devices), simulated))

    @property
    def seen(self) -> tuple[str, str, str]:
        names = ("CUDA_VISIBLE_DEVICES", "NOTEBOOKOS_GPUS", "NOTEBOOKOS_GPU_KIND")
        visible, gpus, kind = (self.environ[name] for name in names)
        return visible, gpus, kind


@pytest.fixture
def process() -> Process:
    return Process()


def test_a_cell_without_devices_does_not_look_for_the_driver(process: Process) -> None:
    vars(process.devices)["_driver_is_loaded"] = lambda: pytest.fail("looked")
    assert process.prepare().accepted


def test_nothing_is_visible_at_first(process: Process) -> None:
    assert process.seen == ("", "", "")
    assert process.prepare().accepted
    assert process.seen == ("", "", "")


def test_the_first_bind_makes_devices_visible(process: Process) -> None:
    assert process.prepare("GPU-a", "GPU-b").accepted
    assert process.seen == ("GPU-a,GPU-b", "GPU-a,GPU-b", "cuda")


def test_before_the_driver_is_loaded_devices_may_change(process: Process) -> None:
    process.prepare("GPU-a")
    assert process.prepare("GPU-b").accepted
    assert process.seen == ("GPU-b", "GPU-b", "cuda")
    assert process.prepare().accepted
    assert process.seen == ("", "", "")


def test_the_same_devices_are_accepted_after_it_is_loaded(process: Process) -> None:
    process.prepare("GPU-a")
    process.driver = True
    assert process.devices.park() == Parked(42)
    assert process.seen == ("GPU-a", "", "")
    assert process.prepare().accepted
    assert process.seen == ("GPU-a", "", "")
    assert process.prepare("GPU-a").accepted
    assert process.seen == ("GPU-a", "GPU-a", "cuda")
    assert process.parking.calls == ["restore", "park", "restore"]


@pytest.mark.parametrize("first", ["GPU-a", ""])
def test_other_devices_ask_for_a_recycled_replica(process: Process, first: str) -> None:
    process.prepare(*([first] if first else []))
    process.driver = True
    before = process.seen
    answer = process.prepare("GPU-b")
    assert (answer.accepted, answer.recycle) == (False, True)
    assert (first or "no device") in answer.reason
    assert "GPU-b" in answer.reason
    assert process.seen == before


def test_simulated_devices_are_named_only(process: Process) -> None:
    process.driver = True
    assert process.prepare("SIM-host-1-0", simulated=True).accepted
    assert process.seen == ("", "SIM-host-1-0", "simulated")
    assert process.parking.calls == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [("7f00-7f01 r-xp /usr/lib/libcuda.so.550.54\n", True), ("7f00-7f01 /lib/libc.so.6\n", False)],
)
def test_the_driver_is_found_in_the_process_map(tmp_path: Path, text: str, expected: bool) -> None:
    maps = tmp_path / "maps"
    maps.write_text(text)
    assert driver_is_loaded(maps) is expected


def test_without_a_process_map_the_driver_counts_as_not_loaded(tmp_path: Path) -> None:
    assert driver_is_loaded(tmp_path / "none") is False
