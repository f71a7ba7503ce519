"""Length-prefixed msgpack frames as pure functions: bytes in, messages out (no sockets here)."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from notebookos_ext.errors import UNREADABLE, ProtocolError

T = TypeVar("T")
HEADER_BYTES = 4
MAX_FRAME_BYTES = 64 * 1024 * 1024

_encoder = msgspec.msgpack.Encoder()


def encode_frame(message: object) -> bytes:
    """One frame: 4 bytes of length, big endian, then msgpack. ProtocolError when too long."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME_BYTES:
        raise ProtocolError(
            f"a message of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES} bytes"
        )
    return len(body).to_bytes(HEADER_BYTES, "big") + body


class FrameDecoder(Generic[T]):
    """Collects bytes as they arrive and yields whole messages of one type."""

    def __init__(self, message_type: type[T]) -> None:
        self._decoder = msgspec.msgpack.Decoder(message_type)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[T]:
        """Add bytes; return the messages that are now complete. ProtocolError on nonsense."""
        self._buffer += data
        messages: list[T] = []
        start = 0
        while len(self._buffer) - start >= HEADER_BYTES:
            length = int.from_bytes(self._buffer[start : start + HEADER_BYTES], "big")
            if length > MAX_FRAME_BYTES:
                raise ProtocolError(f"the peer announced a frame of {length} bytes")
            end = start + HEADER_BYTES + length
            if len(self._buffer) < end:
                break
            try:
                with memoryview(self._buffer) as view:
                    messages.append(self._decoder.decode(view[start + HEADER_BYTES : end]))
            except UNREADABLE as error:
                raise ProtocolError(
                    f"the peer sent a message that cannot be read: {error}"
                ) from error
            start = end
        del self._buffer[:start]
        return messages
