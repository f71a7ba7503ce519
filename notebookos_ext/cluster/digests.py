"""The one digest of stored bytes; kernel, agent and store must agree on it."""

from __future__ import annotations

from blake3 import blake3


def chunk_digest(data: bytes | bytearray | memoryview) -> str:
    """BLAKE3-256 of `data` in hex: a chunk's name in the log and in the checkpoint store."""
    return blake3(data).hexdigest()


class Digester:
    """BLAKE3-256 of what comes piece by piece."""

    def __init__(self) -> None:
        self._hasher = blake3()

    def update(self, data: bytes) -> None:
        """More of it."""
        self._hasher.update(data)

    def digest(self) -> bytes:
        """Of all so far; 32 bytes."""
        return self._hasher.digest()
