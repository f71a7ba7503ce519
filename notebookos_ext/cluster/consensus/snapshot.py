"""Snapshots: what stands in a log for the entries it has forgotten, and how a follower gets one.

What the application makes of the entries is opaque bytes here, supplied by the driver.
"""

from __future__ import annotations

import msgspec

from notebookos_ext.cluster.consensus.membership import Membership
from notebookos_ext.cluster.consensus.messages import SnapshotChunk
from notebookos_ext.cluster.digests import chunk_digest

CHUNK_BYTES_MAX = 64_000
"""One message; a larger one would delay the heartbeats behind it."""


class SnapshotMeta(msgspec.Struct, frozen=True, array_like=True):
    """All that consensus must know of the entries up to `index`, the last of which is of `term`.

    `membership` was put in force by the entry `membership_index`. `identities` are the proposals
    among them that are remembered, with their indices, in order: all of those above `horizon`.
    """

    index: int
    term: int
    membership: Membership
    membership_index: int = 0
    horizon: int = 0
    identities: tuple[tuple[str, int], ...] = ()


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot with the application's state after the entry `meta.index`."""

    meta: SnapshotMeta
    state: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Snapshot).decode


class OutgoingSnapshot:
    """A snapshot that a leader sends, to one follower or several."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.meta = snapshot.meta
        self._content = _encode(snapshot)
        self.snapshot_id = chunk_digest(self._content)

    def chunk(self, *, sender: str, to: str, term: int, offset: int) -> SnapshotChunk:
        """The piece that begins at `offset`."""
        return SnapshotChunk(
            sender=sender,
            to=to,
            term=term,
            index=self.meta.index,
            last_term=self.meta.term,
            snapshot_id=self.snapshot_id,
            total_bytes=len(self._content),
            offset=offset,
            data=self._content[offset : offset + CHUNK_BYTES_MAX],
        )


class IncomingSnapshot:
    """What a follower has of the newest snapshot that it was sent pieces of."""

    def __init__(self) -> None:
        self._snapshot_id = ""
        self._place = (0, 0)
        self._content = bytearray()

    def take(self, chunk: SnapshotChunk) -> Snapshot | None:
        """Keep a piece if it is the next one; the snapshot, once it is whole and undamaged."""
        if chunk.snapshot_id != self._snapshot_id:
            if (chunk.term, chunk.index) < self._place:
                return None
            self._snapshot_id = chunk.snapshot_id
            self._content.clear()
        self._place = (chunk.term, chunk.index)
        if chunk.offset == len(self._content):
            self._content += chunk.data
        if len(self._content) < chunk.total_bytes:
            return None
        content = bytes(self._content)
        self.forget()
        return _decode(content) if chunk_digest(content) == chunk.snapshot_id else None

    def held_bytes(self, snapshot_id: str) -> int:
        """How much of that snapshot is here, from its beginning."""
        return len(self._content) if snapshot_id == self._snapshot_id else 0

    def forget(self) -> None:
        """Let go of what has come so far."""
        self._snapshot_id = ""
        self._content.clear()
