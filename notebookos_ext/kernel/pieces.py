"""A block on its way into this process: chunks just fetched, and chunks that lie here already.

Who loads a large array or storage writes the pieces into its memory once, instead of joining them
first. Where the array that is replaced belongs to nobody else, its own memory is patched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Piece = bytes | bytearray | memoryview


class Pieces:
    """The bytes of one block.

    `donor` is the array that the block replaces, if nobody else can reach it, and `memory` its
    bytes. Then a part is None where the donor has it already, at the same place.
    """

    def __init__(
        self,
        parts: Sequence[Piece | None],
        sizes: Sequence[int],
        donor: Any = None,
        memory: memoryview | None = None,
    ) -> None:
        self._parts = parts
        self._sizes = sizes
        self._memory = memory
        self.donor = donor

    @property
    def nbytes(self) -> int:
        """The length of the block."""
        return sum(self._sizes)

    def write_into(self, memory: memoryview) -> None:
        """Write all of the block into memory that is not the donor's."""
        start = 0
        for part, size in zip(self._parts, self._sizes, strict=True):
            end = start + size
            if part is not None:
                memory[start:end] = part
            elif self._memory is not None:
                memory[start:end] = self._memory[start:end]
            start = end

    def patch(self, memory: memoryview) -> None:
        """Write what the donor lacks into its memory."""
        start = 0
        for part, size in zip(self._parts, self._sizes, strict=True):
            if part is not None:
                memory[start : start + size] = part
            start += size


Data = Pieces | Piece


def size_of(data: Data) -> int:
    """The length of a block, however it came, in bytes."""
    return data.nbytes if isinstance(data, (Pieces, memoryview)) else len(data)


def write(data: Data, memory: memoryview) -> None:
    """Fill `memory` with a block, however it came."""
    if isinstance(data, Pieces):
        data.write_into(memory)
    else:
        memory[:] = memoryview(data).cast("B")


def whole(data: Data) -> Piece:
    """The block as one buffer."""
    if not isinstance(data, Pieces):
        return data
    joined = bytearray(data.nbytes)
    data.write_into(memoryview(joined))
    return joined
