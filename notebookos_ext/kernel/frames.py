"""pandas, matplotlib and widgets: objects whose own pickling loses what they share or show.

Used only when the user's kernel has loaded the library; reducers are found by class name.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

from notebookos_ext.kernel.filling import fill
from notebookos_ext.kernel.reduction import Reduced, Reducer, Reduction


def reduce_block(pickler: Reduction, block: Any) -> Reduced:
    """A block of a frame, with the list of blocks it shares memory with.

    pandas copies on write only if it knows who shares; pickling forgets that, while we keep the
    memory shared.
    """
    reduced = pickler.plain(block)
    if not isinstance(reduced, tuple) or len(reduced) != 2:
        return reduced
    return (*reduced, block.refs, None, None, share_block)


def share_block(block: Any, references: Any) -> None:
    """Put the block among those that share its memory."""
    block.refs = references
    references.add_reference(block)


def reduce_single_manager(_: Reduction, manager: Any) -> Reduced:
    """What is in a Series: its own pickling has no blocks that could share."""
    return type(manager), (manager.blocks[0], manager.axes[0])


def reduce_index(pickler: Reduction, index: Any) -> Reduced:
    """An index, with the list of blocks it shares memory with."""
    reduced = pickler.plain(index)
    references = getattr(index, "_references", None)
    if references is None or not isinstance(reduced, tuple) or any(reduced[2:]):
        return reduced
    return (*reduced[:2], references, None, None, share_index)


def share_index(index: Any, references: Any) -> None:
    """Put the index among those that share its memory."""
    index._references = references  # noqa: SLF001
    references.add_index_reference(index)


def reduce_callbacks(pickler: Reduction, registry: Any) -> Reduced:
    """A figure's callbacks: its own pickling counts the next id up, as if something had changed."""
    following = next(registry._cid_gen)  # noqa: SLF001
    reduced = pickler.plain(registry)
    registry._cid_gen = itertools.count(following)  # noqa: SLF001
    reduced[2]["_cid_gen"] = following
    return reduced


def reduce_constant(pickler: Reduction, value: Any) -> Reduced:
    """Values that do not change, shared by everything a library makes."""
    pickler.separate(value)
    return pickler.plain(value)


def reduce_references(_: Reduction, references: Any) -> Reduced:
    """The list itself: whoever shares it enters by itself."""
    return type(references), ()


def reduce_widget(pickler: Reduction, widget: Any) -> Reduced:
    """A widget on the page speaks through a comm of this process."""
    if getattr(widget, "comm", None) is None:
        return reduce_traits(pickler, widget)
    return pickler.hold(widget, OPEN_WIDGET)


def reduce_comm(pickler: Reduction, comm: Any) -> Reduced:
    """An open comm belongs to this process."""
    return pickler.hold(comm, OPEN_WIDGET)


def reduce_traits(_: Reduction, owner: Any) -> Reduced:
    """An object with traits: its own pickling leaves the observers out."""
    return new, (type(owner),), dict(vars(owner)), None, None, fill


def reduce_handler(pickler: Reduction, handler: Any) -> Reduced:
    """What `@observe` made is an attribute of its class."""
    pickler.separate(handler)
    return getattr, (handler.this_class, handler.name)


def new(kind: Any) -> Any:
    """An object without its `__init__`."""
    return object.__new__(kind)


OPEN_WIDGET = "open widget: its comm lives in this process"


def open_comms(shell: Any) -> int:
    """How many comms the shell's kernel has open."""
    manager = getattr(getattr(shell, "kernel", None), "comm_manager", None)
    if manager is None and "comm" in sys.modules and getattr(shell, "kernel", None) is not None:
        manager = sys.modules["comm"].get_comm_manager()
    return len(getattr(manager, "comms", ()))


BY_NAME: dict[tuple[str, str], Reducer] = {
    ("traitlets.traitlets", "HasTraits"): reduce_traits,
    ("traitlets.traitlets", "EventHandler"): reduce_handler,
    ("cycler", "Cycler"): reduce_constant,
    ("matplotlib.cbook", "CallbackRegistry"): reduce_callbacks,
    ("pandas.core.indexes.base", "Index"): reduce_index,
    ("pandas.core.dtypes.base", "ExtensionDtype"): reduce_constant,
    ("pandas.core.internals.managers", "SingleBlockManager"): reduce_single_manager,
    ("pandas._libs.internals", "Block"): reduce_block,
    ("pandas._libs.internals", "BlockValuesRefs"): reduce_references,
    ("ipywidgets.widgets.widget", "Widget"): reduce_widget,
    ("comm.base_comm", "BaseComm"): reduce_comm,
}
