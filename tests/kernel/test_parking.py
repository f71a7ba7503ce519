"""Parking moves tensors in place and keeps what they share; host memory plays the device here."""

from __future__ import annotations

import sys
import weakref
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from notebookos_ext.kernel.device_homes import HOMES, DeviceHomes
from notebookos_ext.kernel.parking import TorchParking
from notebookos_ext.kernel.synchronizer import Synchronizer, SyncOptions

torch = pytest.importorskip("torch")


class Cuda:
    """`torch.cuda` of a machine with `count` devices."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.initialized = True
        self.count = 1

    def is_initialized(self) -> bool:
        return self.initialized

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def empty_cache(self) -> None:
        self.calls.append("empty_cache")

    def device_count(self) -> int:
        return self.count

    def memory_reserved(self, index: int) -> int:
        return 1000 + index


class FakeTorch(ModuleType):
    """torch with another `cuda`."""

    def __init__(self, cuda: Cuda) -> None:
        super().__init__("torch")
        self.cuda = cuda

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class Machine:
    """Says of some storages in host memory that they lie on a device."""

    def __init__(self) -> None:
        self.cuda = Cuda()
        self.homes = DeviceHomes()
        self._devices: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self.parking = TorchParking(
            {"torch": FakeTorch(self.cuda)},
            homes=self.homes,
            device_of=self.device,
            copy_storage=self._copy,
        )

    def put(self, device: str, *tensors: Any) -> None:
        for tensor in tensors:
            self._devices[tensor.untyped_storage()] = device

    def device(self, tensor: Any) -> str:
        return self._devices.get(tensor.untyped_storage(), "cpu")

    def _copy(self, _torch: Any, storage: Any, device: str) -> Any:
        copy = storage.clone()
        if device != "cpu":
            self._devices[copy] = device
        return copy


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_tensors_stay_the_same_objects_with_the_same_values(machine: Machine) -> None:
    x, other = torch.arange(6.0), torch.arange(2.0)
    machine.put("cuda:0", x)
    place, host = x.untyped_storage().data_ptr(), other.untyped_storage().data_ptr()
    assert machine.parking.park() == 1000
    assert machine.device(x) == "cpu"
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    assert x.untyped_storage().data_ptr() != place
    assert other.untyped_storage().data_ptr() == host
    assert machine.cuda.calls == ["synchronize", "empty_cache"]


def test_what_was_parked_goes_back_where_it_came_from(machine: Machine) -> None:
    machine.cuda.count = 2
    x, y = torch.ones(2), torch.ones(3)
    machine.put("cuda:1", x)
    machine.put("cuda:0", y)
    machine.parking.park()
    machine.parking.restore()
    assert (machine.device(x), machine.device(y)) == ("cuda:1", "cuda:0")
    assert len(machine.homes) == 0


def test_the_first_device_stands_in_for_one_that_is_not_there(machine: Machine) -> None:
    x = torch.ones(2)
    machine.put("cuda:3", x)
    machine.parking.park()
    machine.parking.restore()
    assert machine.device(x) == "cuda:0"


def test_without_a_visible_device_it_stays_in_host_memory(machine: Machine) -> None:
    x = torch.ones(2)
    machine.put("cuda:0", x)
    machine.parking.park()
    machine.cuda.count = 0
    machine.parking.restore()
    assert machine.device(x) == "cpu"
    assert machine.homes.get(x.untyped_storage()) == "cuda:0"


def test_views_of_one_storage_still_share_it(machine: Machine) -> None:
    x = torch.arange(6.0)
    row, transposed = x[2:4], x.view(2, 3).t()
    machine.put("cuda:0", x)
    for move in (machine.parking.park, machine.parking.restore):
        move()
        x += 1
        assert row.tolist() == x.tolist()[2:4]
        assert transposed.tolist() == [[x[0], x[3]], [x[1], x[4]], [x[2], x[5]]]


def test_a_module_and_its_optimizer_go_on_together(machine: Machine) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    state = [v for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)]
    grads = [p.grad for p in model.parameters()]
    machine.put("cuda:0", *model.parameters(), *grads, *state)
    before = [p.detach().clone() for p in model.parameters()]
    for move in (machine.parking.park, machine.parking.restore):
        move()
        devices = {machine.device(t) for t in (*model.parameters(), *grads, *state)}
        assert len(devices) == 1
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    optimizer.step()
    assert not torch.equal(before[0], next(iter(model.parameters())))


def test_storages_that_died_are_forgotten(machine: Machine) -> None:
    x = torch.ones(1)
    machine.put("cuda:0", x)
    machine.parking.park()
    assert len(machine.homes) == 1
    del x
    assert len(machine.homes) == 0


@pytest.mark.parametrize("modules", [{}, {"torch": SimpleNamespace()}])
def test_without_torch_there_is_nothing_to_park(modules: dict[str, Any]) -> None:
    parking = TorchParking(modules, homes=DeviceHomes())
    assert parking.park() == 0
    parking.restore()


def test_torch_without_initialised_cuda_is_left_alone(machine: Machine) -> None:
    machine.cuda.initialized = False
    x = torch.ones(3)
    machine.put("cuda:0", x)
    assert machine.parking.park() == 0
    assert machine.device(x) == "cuda:0"
    assert machine.cuda.calls == []


def test_real_torch_on_this_machine_has_nothing_to_park() -> None:
    if torch.cuda.is_initialized():
        pytest.skip("a real device is in use")
    assert TorchParking(sys.modules).park() == 0


def namespace(chunks: dict[str, bytes], **variables: Any) -> tuple[Synchronizer, dict[str, Any]]:
    shell = SimpleNamespace(user_ns={})
    synchronizer = Synchronizer(
        shell,
        options=SyncOptions(),
        put_chunk=chunks.__setitem__,
        fetch_chunks=lambda digests: map(chunks.__getitem__, digests),
    )
    shell.user_ns |= variables
    return synchronizer, shell.user_ns


def test_a_parked_storage_travels_as_one_of_its_device() -> None:
    chunks: dict[str, bytes] = {}
    x = torch.arange(100_000.0)
    HOMES.put(x.untyped_storage(), "cuda:1")
    executor, _ = namespace(chunks, x=x, row=x[1:3], host=torch.ones(2))
    standby, there = namespace(chunks)
    found = executor.collect()
    assert found is not None
    assert standby.apply(found.delta) == ()
    assert there["x"].tolist() == x.tolist()
    there["x"][1] = 7
    assert there["row"].tolist() == [7, 2]
    assert HOMES.get(there["x"].untyped_storage()) == "cuda:1"
    assert HOMES.get(there["host"].untyped_storage()) is None
    there["x"][1] = 1
    # Neither side sees a change in a storage that only waits for its device.
    assert executor.collect() is None
    again = standby.collect()
    assert again is None or again.delta.components == ()
