"""Large buffers as chunks of the checkpoint store: cut, fingerprinted, named by content, put once.

Two hashes: xxh3 (10 GB/s) tells whether a chunk changed since it was last seen; BLAKE3 names it in
the store, and is computed for chunks not seen before only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from xxhash import xxh3_128_digest

from notebookos_ext.cluster.digests import chunk_digest
from notebookos_ext.cluster.entries import CHUNK_BYTES, ChunkRef
from notebookos_ext.errors import CorruptRecord

Fingerprints = tuple[bytes, ...]
Chunk = memoryview | bytes | ChunkRef
"""A piece of a block to be put, or the chunk of the store that is the same."""


def cut(view: memoryview) -> Iterable[memoryview]:
    """The chunks of a flat run of bytes."""
    return (view[start : start + CHUNK_BYTES] for start in range(0, view.nbytes, CHUNK_BYTES))


def fingerprint(data: bytes | memoryview) -> bytes:
    """The fast hash."""
    return xxh3_128_digest(data)


def fingerprints(view: memoryview) -> Fingerprints:
    """One fast hash per chunk."""
    return tuple(map(fingerprint, cut(view)))


class ChunkShelf:
    """Puts chunks into the store, each once, and fetches them.

    `put_chunk(digest, data)` and `fetch_chunks(digests)` talk to the host agent. Used from the main
    thread and from the one that ships large components late; each step is a single dictionary
    operation, so that no lock is needed.
    """

    def __init__(
        self,
        put_chunk: Callable[[str, bytes], None],
        fetch_chunks: Callable[[list[str]], Iterable[bytes]],
    ) -> None:
        self._put = put_chunk
        self._fetch = fetch_chunks
        self._known: dict[tuple[bytes, int], ChunkRef] = {}
        self._prints: dict[str, bytes] = {}
        """Fingerprints by digest."""

    def forget(self) -> None:
        """Put everything again: the store may lack chunks that it was given."""
        self._known.clear()

    def find(self, found: bytes, size_bytes: int) -> ChunkRef | None:
        """The chunk of the store with this fingerprint, if it was seen here."""
        return self._known.get((found, size_bytes))

    def seen(self, refs: Iterable[ChunkRef]) -> set[bytes]:
        """The fingerprints of those chunks that were seen here."""
        return {self._prints[ref.digest] for ref in refs if ref.digest in self._prints}

    def missing_bytes(self, view: memoryview, prints: Fingerprints) -> int:
        """How much of `view` would have to be put."""
        sizes = (chunk.nbytes for chunk in cut(view))
        pairs = zip(prints, sizes, strict=True)
        return sum(size for found, size in pairs if (found, size) not in self._known)

    def stage(self, view: memoryview, prints: Fingerprints) -> list[Chunk]:
        """What `put` will need of a block: copies of the chunks that the store lacks."""
        return [
            self._known.get((found, chunk.nbytes)) or bytes(chunk)
            for chunk, found in zip(cut(view), prints, strict=True)
        ]

    def put(self, chunks: Iterable[Chunk], prints: Fingerprints) -> tuple[ChunkRef, ...]:
        """Bring the chunks of a block into the store, those that are new."""
        refs = []
        for chunk, found in zip(chunks, prints, strict=True):
            ref = chunk if isinstance(chunk, ChunkRef) else self._known.get((found, len(chunk)))
            if ref is None:
                assert not isinstance(chunk, ChunkRef)  # noqa: S101 - for the type checker
                ref = ChunkRef(chunk_digest(chunk), len(chunk))
                self._put(ref.digest, bytes(chunk))
                self._note(found, ref)
            refs.append(ref)
        return tuple(refs)

    def fetch(self, refs: Iterable[ChunkRef]) -> dict[str, bytes]:
        """Chunks by digest, each fetched once and checked. Raises CorruptRecord."""
        wanted = {ref.digest: ref for ref in refs}
        fetched: dict[str, bytes] = {}
        for ref, chunk in zip(wanted.values(), self._fetch(list(wanted)), strict=True):
            if len(chunk) != ref.size_bytes or chunk_digest(chunk) != ref.digest:
                raise CorruptRecord(
                    f"chunk {ref.digest} came back from the checkpoint store with other contents; "
                    "it was not used"
                )
            self._note(fingerprint(chunk), ref)
            fetched[ref.digest] = chunk
        return fetched

    def _note(self, found: bytes, ref: ChunkRef) -> None:
        self._known[found, ref.size_bytes] = ref
        self._prints[ref.digest] = found
