"""Parking moves tensors in place and keeps what they share; host memory plays the device here."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from notebookos_ext.kernel.parking import TorchParking

torch = pytest.importorskip("torch")


class Cuda:
    """`torch.cuda` of a machine with one device."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.initialized = True

    def is_initialized(self) -> bool:
        return self.initialized

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def empty_cache(self) -> None:
        self.calls.append("empty_cache")

    def device_count(self) -> int:
        return 1

    def memory_reserved(self, index: int) -> int:
        return 1000 + index


class FakeTorch(ModuleType):
    """torch with another `cuda`."""

    def __init__(self, cuda: Cuda) -> None:
        super().__init__("torch")
        self.cuda = cuda

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@pytest.fixture
def cuda() -> Cuda:
    return Cuda()


def parking_of(cuda: Cuda, *tensors: Any) -> TorchParking:
    """Treat exactly these tensors (and their gradients) as being on the device."""
    wanted = {id(t) for t in tensors}
    return TorchParking({"torch": FakeTorch(cuda)}, on_device=lambda tensor: id(tensor) in wanted)


def test_tensors_stay_the_same_objects_with_the_same_values(cuda: Cuda) -> None:
    x = torch.arange(6.0)
    before = x.untyped_storage().data_ptr()
    parking = parking_of(cuda, x)
    assert parking.park() == 1000
    assert x.tolist() == [0, 1, 2, 3, 4, 5]
    assert x.untyped_storage().data_ptr() != before
    assert cuda.calls == ["synchronize", "empty_cache"]


def test_views_of_one_storage_still_share_it(cuda: Cuda) -> None:
    x = torch.arange(6.0)
    row, transposed = x[2:4], x.view(2, 3).t()
    parking_of(cuda, x, row, transposed).park()
    x[2] = 20
    x[3] = 30
    assert row.tolist() == [20, 30]
    assert transposed.tolist() == [[0, 30], [1, 4], [20, 5]]


def test_a_module_and_its_optimizer_go_on_together(cuda: Cuda) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()
    state = [v for s in optimizer.state.values() for v in s.values() if torch.is_tensor(v)]
    before = [p.detach().clone() for p in model.parameters()]
    grads = [p.grad for p in model.parameters()]
    parking = parking_of(cuda, *model.parameters(), *grads, *state)
    parking.park()
    parking.restore()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    optimizer.step()
    assert not torch.equal(before[0], next(iter(model.parameters())))


def test_home_tells_where_a_parked_tensor_came_from(cuda: Cuda) -> None:
    x, other = torch.ones(1), torch.ones(1)
    parking = parking_of(cuda, x)
    parking.park()
    assert parking.home(x) == "cpu"
    assert parking.home(other) is None


def test_restore_goes_to_the_device_the_tensor_came_from_or_the_first(cuda: Cuda) -> None:
    parking = parking_of(cuda)
    moved: list[tuple[Any, str]] = []
    parking._move = lambda _torch, moves: moved.extend(moves)  # type: ignore[method-assign]
    tensors = [torch.ones(1) for _ in range(4)]
    homes = ["cuda:0", "cuda:3", "cuda"]
    parking._parked = [(_weak(t), home) for t, home in zip(tensors, homes, strict=False)]
    parking.restore()
    assert [device for _, device in moved] == ["cuda:0", "cuda:0", "cuda"]
    parking.restore()
    assert len(moved) == 3


def _weak(tensor: Any) -> Any:
    import weakref

    return weakref.ref(tensor)


def test_dead_tensors_are_forgotten(cuda: Cuda) -> None:
    parking = parking_of(cuda)
    tensor = torch.ones(1)
    parking._parked = [(_weak(tensor), "cuda:0")]
    del tensor
    parking.restore()
    assert parking._parked == []


@pytest.mark.parametrize("modules", [{}, {"torch": SimpleNamespace()}])
def test_without_torch_there_is_nothing_to_park(modules: dict[str, Any]) -> None:
    parking = TorchParking(modules)
    assert parking.park() == 0
    parking.restore()


def test_torch_without_initialised_cuda_is_left_alone(cuda: Cuda) -> None:
    cuda.initialized = False
    x = torch.ones(3)
    before = x.untyped_storage().data_ptr()
    assert parking_of(cuda, x).park() == 0
    assert x.untyped_storage().data_ptr() == before
    assert cuda.calls == []


def test_real_torch_on_this_machine_is_found_uninitialised_or_parked() -> None:
    if torch.cuda.is_initialized():
        pytest.skip("a real device is in use")
    assert TorchParking(sys.modules).park() == 0
