"""The one digest of content-addressed chunks; kernel, agent and store must agree on it."""

from __future__ import annotations

from blake3 import blake3


def chunk_digest(data: bytes | bytearray | memoryview) -> str:
    """BLAKE3-256 of `data` in hex: a chunk's name in the log and in the checkpoint store."""
    return blake3(data).hexdigest()
