"""What the nodes of a cluster agree on: named values, changed by operations in the log's order.

Each change is one operation in the log, so that two nodes that change the same dictionary at once
lose nothing; a value that was read, changed and written back would.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import msgspec

from notebookos_ext.errors import UNREADABLE, ProtocolError
from notebookos_ext.raftos.serializers import Serializer


class Set(msgspec.Struct, frozen=True, array_like=True, tag="set"):
    """The value becomes this one."""

    name: str
    value: bytes


class Update(msgspec.Struct, frozen=True, array_like=True, tag="update"):
    """These items enter a dictionary, which is `start` if there is none yet."""

    name: str
    start: bytes
    items: bytes


class Pop(msgspec.Struct, frozen=True, array_like=True, tag="pop"):
    """A key leaves a dictionary; the answer is what it had, or `default` (none: KeyError)."""

    name: str
    start: bytes
    key: bytes
    default: bytes | None


class Append(msgspec.Struct, frozen=True, array_like=True, tag="append"):
    """An item is put at the end of a list, which is `start` if there is none yet."""

    name: str
    start: bytes
    item: bytes


class Extend(msgspec.Struct, frozen=True, array_like=True, tag="extend"):
    """The items of another list are put at the end of a list."""

    name: str
    start: bytes
    items: bytes


Operation = Set | Update | Pop | Append | Extend

encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Operation).decode
_decode_values = msgspec.msgpack.Decoder(dict[str, bytes]).decode


class Data:
    """The values as of the last operation. They never leave this object, only copies do."""

    def __init__(self, serializer: Serializer) -> None:
        self._serializer = serializer
        self._values: dict[str, Any] = {}

    def apply(self, payload: bytes) -> object:
        """Carry out one operation of the log and return its answer.

        A failed operation changes nothing, here as on every other node.

        Raises:
            ProtocolError: it is no operation.
            Exception: whatever the operation does to a value that it does not fit.
        """
        try:
            operation = _decode(payload)
        except UNREADABLE as error:
            raise ProtocolError(f"the log holds an entry that is no operation: {error}") from error
        unpack = self._serializer.unpack
        if isinstance(operation, Set):
            self._values[operation.name] = unpack(operation.value)
            return None
        name = operation.name
        value: Any = self._values[name] if name in self._values else unpack(operation.start)
        answer: object = None
        match operation:
            case Update():
                value.update(unpack(operation.items))
            case Pop(default=None):
                answer = value.pop(_hashable(unpack(operation.key)))
            case Pop(default=bytes() as default):
                answer = value.pop(_hashable(unpack(operation.key)), unpack(default))
            case Append():
                value.append(unpack(operation.item))
            case Extend():
                value.extend(unpack(operation.items))
        self._values[name] = value
        return answer

    def packed(self) -> bytes:
        """Everything, as of the last operation."""
        return encode({name: self._serializer.pack(value) for name, value in self._values.items()})

    def load(self, packed: bytes) -> None:
        """Become what `packed` was made of.

        Raises:
            ProtocolError: it is nothing that `packed` made.
        """
        try:
            values = _decode_values(packed)
            self._values = {name: self._serializer.unpack(v) for name, v in values.items()}
        except Exception as error:  # whatever the program's serializer raises
            raise ProtocolError(f"a snapshot cannot be read: {error}") from error

    def read(self, name: str, default: object, part: Callable[[Any], Any]) -> Any:
        """A copy of what `part` takes from the value, or from `default` if there is none yet."""
        return copy.deepcopy(part(self._values.get(name, default)))


def _hashable(key: object) -> object:
    """A key that was a tuple has become a list on its way."""
    return tuple(_hashable(item) for item in key) if isinstance(key, list) else key
