"""How values become bytes: MessagePack, JSON, or whatever has `pack` and `unpack`."""

from __future__ import annotations

import json
from typing import Protocol

import msgspec


class Serializer(Protocol):
    """What `configure(serializer=…)` takes; a class with static methods will do."""

    def pack(self, data: object) -> bytes:
        """A value as bytes."""
        ...

    def unpack(self, data: bytes) -> object:
        """The inverse."""
        ...


class MessagePackSerializer:
    """Plain data and bytes; mapping keys need not be strings."""

    @staticmethod
    def pack(data: object) -> bytes:
        """A value as bytes."""
        return msgspec.msgpack.encode(data)

    @staticmethod
    def unpack(data: bytes) -> object:
        """The inverse, but tuples come back as lists."""
        return msgspec.msgpack.decode(data)


class JSONSerializer:
    """Plain data; no bytes, and mapping keys come back as strings."""

    @staticmethod
    def pack(data: object) -> bytes:
        """A value as bytes."""
        return json.dumps(data).encode()

    @staticmethod
    def unpack(data: bytes) -> object:
        """The inverse, but tuples come back as lists."""
        return json.loads(data)
