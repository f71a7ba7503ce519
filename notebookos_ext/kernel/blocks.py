"""Large buffers as chunks of the checkpoint store: cut, fingerprinted, named by content, put once.

Two hashes: xxh3 (10 GB/s) tells whether a chunk changed since it was last seen; BLAKE3 names it in
the store, and is computed for chunks not seen before only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from xxhash import xxh3_128_digest

from notebookos_ext.cluster.digests import chunk_digest
from notebookos_ext.cluster.entries import CHUNK_BYTES, Block, ChunkRef
from notebookos_ext.errors import CorruptRecord

Fingerprints = tuple[bytes, ...]


def cut(view: memoryview) -> Iterable[memoryview]:
    """The chunks of a flat run of bytes."""
    return (view[start : start + CHUNK_BYTES] for start in range(0, view.nbytes, CHUNK_BYTES))


def fingerprints(view: memoryview) -> Fingerprints:
    """One fast hash per chunk."""
    return tuple(xxh3_128_digest(chunk) for chunk in cut(view))


class ChunkShelf:
    """Puts chunks into the store, each once, and fetches them.

    `put_chunk(digest, data)` and `fetch_chunk(digest)` talk to the host agent. Used from the main
    thread and from the one that ships large components late; each step is a single dictionary
    operation, so that no lock is needed.
    """

    def __init__(
        self, put_chunk: Callable[[str, bytes], None], fetch_chunk: Callable[[str], bytes]
    ) -> None:
        self._put = put_chunk
        self._fetch = fetch_chunk
        self._known: dict[tuple[bytes, int], ChunkRef] = {}

    def forget(self) -> None:
        """Put everything again: the store may lack chunks that it was given."""
        self._known.clear()

    def put(self, view: memoryview, prints: Fingerprints) -> tuple[ChunkRef, ...]:
        """Bring the chunks of `view` into the store, those that are new."""
        refs = []
        for chunk, fingerprint in zip(cut(view), prints, strict=True):
            ref = self._known.get((fingerprint, chunk.nbytes))
            if ref is None:
                ref = ChunkRef(chunk_digest(chunk), chunk.nbytes)
                self._put(ref.digest, bytes(chunk))
                self._known[fingerprint, chunk.nbytes] = ref
            refs.append(ref)
        return tuple(refs)

    def note(self, prints: Fingerprints, refs: Iterable[ChunkRef]) -> None:
        """Remember chunks that the store has, by the fingerprints of the data loaded from them."""
        for fingerprint, ref in zip(prints, refs, strict=False):
            self._known[fingerprint, ref.size_bytes] = ref

    def missing_bytes(self, view: memoryview, prints: Fingerprints) -> int:
        """How much of `view` would have to be put."""
        sizes = (chunk.nbytes for chunk in cut(view))
        pairs = zip(prints, sizes, strict=True)
        return sum(size for fingerprint, size in pairs if (fingerprint, size) not in self._known)

    def fetch(self, refs: Iterable[ChunkRef]) -> bytes | bytearray:
        """The bytes of the chunks in order, checked against their digests. Raises CorruptRecord."""
        data = bytearray()
        for ref in refs:
            chunk = self._fetch(ref.digest)
            if len(chunk) != ref.size_bytes or chunk_digest(chunk) != ref.digest:
                raise CorruptRecord(
                    f"chunk {ref.digest} came back from the checkpoint store with other contents; "
                    "it was not used"
                )
            data += chunk
        return data

    def read(self, block: Block) -> bytes | bytearray:
        """The bytes of a block, inline or from the store."""
        return self.fetch(block.chunks) if block.chunks else block.inline
