"""The replicated values of raftos: what programs create, read and change, on any node."""

from __future__ import annotations

import copy
from collections.abc import ItemsView, Iterable, KeysView, Mapping, ValuesView
from typing import Any, ClassVar

from notebookos_ext.raftos.data import Append, Extend, Pop, Set, Update
from notebookos_ext.raftos.server import registered

_NONE_GIVEN = object()


class Replicated:
    """A value under a name, the same on all nodes; may be created before `register`.

    Every method waits until the node is registered and a majority can be reached.

    Args:
        name: objects of one name are one value, whichever node or process they are on.
        default: what `get` returns as long as nothing was set.
    """

    DEFAULT_VALUE: ClassVar[Any] = None

    def __init__(self, name: str, default: Any = _NONE_GIVEN) -> None:
        self.name = name
        self._default = copy.deepcopy(self.DEFAULT_VALUE if default is _NONE_GIVEN else default)

    async def get(self) -> Any:
        """A copy of the value, with every change that was acknowledged before the call."""
        node = await registered()
        return await node.read(self.name, self._default, lambda value: value)

    async def set(self, value: Any) -> None:
        """Return when the value is on the disks of a majority.

        Raises:
            TypeError: it cannot be serialized.
            InvalidRequest: it is larger than an entry of the log may be.
        """
        node = await registered()
        await node.change(Set(self.name, node.pack(value)))


class ReplicatedContainer(Replicated):
    """What has a length and items."""

    async def __getitem__(self, key: Any) -> Any:
        """A copy of one item: `await data[key]`. Raises KeyError or IndexError."""
        node = await registered()
        return await node.read(self.name, self._default, lambda value: value[key])

    async def length(self) -> int:
        """How many items there are."""
        node = await registered()
        return int(await node.read(self.name, self._default, len))


class ReplicatedDict(ReplicatedContainer):
    """A dictionary. Each change is one entry of the log, so changes of several nodes all count."""

    DEFAULT_VALUE: ClassVar[Any] = {}

    async def update(self, kwargs: Mapping[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        """Set all these items."""
        node = await registered()
        items = node.pack(dict(kwargs))
        await node.change(Update(self.name, node.pack(self._default), items))

    async def keys(self) -> KeysView[Any]:
        """The keys as of now."""
        node = await registered()
        keys: dict[Any, None] = await node.read(self.name, self._default, dict.fromkeys)
        return keys.keys()

    async def values(self) -> ValuesView[Any]:
        """Copies of the values as of now."""
        value: dict[Any, Any] = await self.get()
        return value.values()

    async def items(self) -> ItemsView[Any, Any]:
        """Copies of the items as of now."""
        value: dict[Any, Any] = await self.get()
        return value.items()

    async def pop(self, key: Any, default: Any = _NONE_GIVEN) -> Any:
        """Take a key out and return what it had, or `default`. Raises KeyError if none is given."""
        node = await registered()
        instead = None if default is _NONE_GIVEN else node.pack(default)
        return await node.change(Pop(self.name, node.pack(self._default), node.pack(key), instead))

    async def delete(self, key: Any) -> None:
        """Take a key out. Raises KeyError."""
        await self.pop(key)


class ReplicatedList(ReplicatedContainer):
    """A list. Each change is one entry of the log, so changes of several nodes all count."""

    DEFAULT_VALUE: ClassVar[Any] = []

    async def append(self, kwargs: Any) -> None:
        """Put an item at the end."""
        node = await registered()
        await node.change(Append(self.name, node.pack(self._default), node.pack(kwargs)))

    async def extend(self, lst: Iterable[Any]) -> None:
        """Put several items at the end."""
        node = await registered()
        await node.change(Extend(self.name, node.pack(self._default), node.pack(list(lst))))
