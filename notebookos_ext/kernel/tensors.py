"""torch storages, tensors and their gradients: what shares memory goes on sharing it.

Used only when the user's kernel has loaded torch. Storages are known by their address, because a
tensor, its views, its `.data` and its `.numpy()` reach one storage through different objects. A
storage that lies in a numpy array's memory (`torch.from_numpy`) is a view on that array.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from notebookos_ext.kernel.device_homes import HOMES
from notebookos_ext.kernel.memory_owners import owners_of
from notebookos_ext.kernel.pieces import Data, size_of, whole, write
from notebookos_ext.kernel.reduction import Reduced, Reduction


class StorageRoot:
    """One piece of memory that torch owns, or that lies in a numpy array."""

    def __init__(self, storage: Any, owner: Any = None, offset: int = 0) -> None:
        self.storage = storage
        self.owner = owner
        self.offset = offset


def storage_root(pickler: Reduction, storage: Any) -> tuple[StorageRoot, int]:
    """The root of a CPU storage and the address where it starts."""
    start, size = int(storage.data_ptr()), int(storage.nbytes())
    if not size:
        return StorageRoot(storage), start
    owners = owners_of(pickler.session)
    owner = owners.find(start, start + size)
    if owner is None:
        root = owners.foreign_root(start, start + size, StorageRoot(storage))
    else:
        first, array = owner
        root = owners.foreign_root(start, start + size, StorageRoot(storage, array, start - first))
    return root, start


def reduce_root(pickler: Reduction, root: StorageRoot) -> Reduced:
    """A root is its bytes, or a place in an array."""
    size = int(root.storage.nbytes())
    if root.owner is not None:
        return load_storage_in_array, (root.owner, root.offset, size)
    if not size:
        return load_storage, (b"",)
    data = (ctypes.c_char * size).from_address(root.storage.data_ptr())
    # A copy that was made for this stream lives as long as somebody reads its bytes.
    vars(data)["storage"] = root.storage
    return load_storage, (pickler.buffer(memoryview(data).cast("B")),)


def reduce_untyped(pickler: Reduction, storage: Any) -> Reduced:
    """A storage object is its root, or for other devices a copy in host memory."""
    home = HOMES.get(storage)
    if home is not None:
        # Parked: it travels as it did from its device, so that parking is no change.
        return load_on_device, (StorageRoot(storage), home)
    if storage.device.type == "cpu":
        return same, (storage_root(pickler, storage)[0],)
    if storage.device.type == "meta":
        return pickler.hold(storage, "a meta tensor's storage has no data")
    return load_on_device, (StorageRoot(storage.cpu()), str(storage.device))


def reduce_typed(_: Reduction, storage: Any) -> Reduced:
    """A typed storage is a thin cover of an untyped one."""
    return load_typed, (storage._untyped_storage, storage.dtype)  # noqa: SLF001


def reduce_tensor(pickler: Reduction, tensor: Any) -> Reduced:
    """Torch's own reduction, with the gradient that it leaves out."""
    if tensor.grad_fn is not None:
        return _reduce_computed(pickler, tensor)
    reduced = pickler.plain(tensor)
    if not isinstance(reduced, tuple) or len(reduced) > 2:
        return reduced
    gradient = tensor.grad
    if gradient is None:
        return reduced
    return (*reduced, gradient, None, None, set_gradient)


def _reduce_computed(pickler: Reduction, tensor: Any) -> Reduced:
    """A tensor with a history: its values travel; the graph behind it does not."""
    kind = type(tensor.grad_fn)
    lost = getattr(kind, _LOST_MARK, None)
    if lost is None:
        lost = graph_is_alive(tensor.grad_fn)
        if lost:
            pickler.lose(tensor, "the graph for backward() lives in this process")
    return load_computed, (tensor.detach(), kind.__name__, lost)


_saved_names: dict[type, tuple[str, ...]] = {}
"""Per type of graph node, the attributes in which it keeps what backward() needs."""


def graph_is_alive(node: Any, limit: int = 200) -> bool:
    """Whether backward() could still run: torch frees the tensors a node saved once it has run.

    The first node that tells decides; one that saved no tensor does not tell.
    """
    tensor = sys.modules["torch"].Tensor
    waiting: list[Any] = [node]
    seen: set[Any] = set()
    while waiting and len(seen) < limit:
        current = waiting.pop()
        if current is None or current in seen:
            continue
        seen.add(current)
        kind = type(current)
        if hasattr(kind, _LOST_MARK):
            return False
        names = _saved_names.get(kind)
        if names is None:
            found = (name for name in dir(kind) if name.startswith("_saved_"))
            names = _saved_names[kind] = (*found, "saved_tensors")
        for name in names:
            try:
                saved = getattr(current, name, None)
            except RuntimeError:
                return False
            if isinstance(saved, tensor) or (name == "saved_tensors" and saved):
                return True
        waiting.extend(following for following, _ in current.next_functions)
    return True


def reduce_dtype(pickler: Reduction, dtype: Any) -> Reduced:
    """dtypes, layouts and memory formats are found by name."""
    pickler.separate(dtype)
    return pickler.plain(dtype)


def reduce_generator(pickler: Reduction, generator: Any) -> Reduced:
    """Torch's own global generator is each replica's own; its state is part of the environment."""
    if generator is not sys.modules["torch"].default_generator:
        return pickler.plain(generator)
    pickler.separate(generator)
    return load_global_generator, ()


def load_global_generator() -> Any:
    """This process's global generator."""
    return __import__("torch").default_generator


def reduce_script(pickler: Reduction, module: Any) -> Reduced:
    """A scripted module is the archive that torch.jit writes."""
    from io import BytesIO  # noqa: PLC0415

    archive = BytesIO()
    sys.modules["torch"].jit.save(module, archive)
    return load_script, (pickler.buffer(archive.getbuffer()),)


def same(value: Any) -> Any:
    """The value itself."""
    return value


def load_storage(data: Data) -> Any:
    """A storage that owns its memory."""
    torch = __import__("torch")
    size = size_of(data)
    storage = torch.UntypedStorage(size)
    if size:
        write(data, memoryview((ctypes.c_char * size).from_address(storage.data_ptr())).cast("B"))
    return storage


def load_storage_in_array(owner: Any, offset: int, size: int) -> Any:
    """A storage on memory that a numpy array owns."""
    torch = __import__("torch")
    flat = (
        owner.reshape(-1).view("u1")
        if owner.flags.c_contiguous
        else owner.ravel(order="K").view("u1")
    )
    return torch.from_numpy(flat[offset : offset + size]).untyped_storage()


def load_typed(storage: Any, dtype: Any) -> Any:
    """A typed storage around an untyped one."""
    torch = __import__("torch")
    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


def load_on_device(storage: Any, device: str) -> Any:
    """In host memory for now: no device is bound here. It goes home when one is (`parking`)."""
    HOMES.put(storage, device)
    return storage


_LOST_MARK = "notebookos_lost"
"""On the type of a node whose graph stayed behind: whether it could still have run there."""
_SPENT = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)
"""What torch says when a graph was used up."""
_LOST = (
    "the graph for backward() was lost with the replica that had it; run the cell that computes "
    "this tensor again"
)


def load_computed(values: Any, node: str, lost: bool) -> Any:
    """The values of a tensor whose graph stayed behind: one that says so when it is to run.

    `node` is what the graph's last node was called, `lost` whether it could still have run.
    """
    torch = __import__("torch")
    reason = _LOST if lost else _SPENT

    class Gone(torch.autograd.Function):  # type: ignore[misc,name-defined]
        @staticmethod
        def forward(ctx: Any, result: Any, _: Any) -> Any:
            ctx.mark_dirty(result)
            return result

        @staticmethod
        def backward(ctx: Any, *_: Any) -> Any:  # noqa: ARG004 - torch's signature
            raise RuntimeError(reason)

    kind = Gone._backward_cls  # noqa: SLF001
    kind.__name__ = node
    setattr(kind, _LOST_MARK, lost)
    with torch.enable_grad():
        return Gone.apply(values, torch.empty(0, requires_grad=True))


def set_gradient(tensor: Any, gradient: Any) -> None:
    """Give a leaf tensor its gradient back."""
    tensor.grad = gradient


def load_array_over(
    storage: Any, offset: int, dtype: Any, shape: Any, strides: Any, writable: bool
) -> Any:
    """A numpy array over a tensor's memory."""
    torch, numpy = __import__("torch"), __import__("numpy")
    flat = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    view = numpy.ndarray(shape, dtype=dtype, buffer=flat, offset=offset, strides=strides)
    if not writable:
        view.flags.writeable = False
    return view


def load_script(data: Data) -> Any:
    """A scripted module from its archive."""
    from io import BytesIO  # noqa: PLC0415

    return __import__("torch").jit.load(BytesIO(whole(data)))
