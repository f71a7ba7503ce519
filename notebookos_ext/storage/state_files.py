"""A kernel's namespace as one file, to be kept or to be taken elsewhere.

    file = magic | format u32 | header length u32 | header | snapshot | chunk … | digest | MAC

The header is JSON and says what the file has; `head -c 2000` shows it. The snapshot is a packed
`KernelSnapshot`; the chunks that it names follow in the order of the header. The digest (BLAKE3) is
of everything before it and shows damage. The MAC (HMAC-SHA-256 of the digest) shows whether this
installation made the file. Neither says that it is harmless: what it holds are pickles.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import secrets
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from notebookos_ext.cluster.digests import Digester
from notebookos_ext.errors import (
    UNREADABLE,
    CorruptRecord,
    InvalidRequest,
    Refused,
    StorageError,
    StorageFull,
)

FORMAT = 1
HEADER_BYTES_MAX = 64 * 1024 * 1024
PIECE_BYTES = 4 * 1024 * 1024
_START = struct.Struct(">8sII")
_MAGIC = b"nbstate\n"
_DIGEST_BYTES = _MAC_BYTES = 32
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class StateFileHeader(msgspec.Struct, frozen=True):
    """What a file says of itself."""

    made_at: float
    """In seconds since the Unix epoch."""
    version: str
    """Of NotebookOS."""
    kernel: str
    kernel_name: str
    """Name of its kernelspec."""
    notebook_path: str
    python: str
    """Version of the kernel's Python; code travels only to the same minor version."""
    gpus_per_cell: int
    names: tuple[str, ...]
    """The variables that it has."""
    left_out: tuple[str, ...]
    """Variables that cannot travel: markers stand for them, which say why when they are used."""
    snapshot_bytes: int
    chunks: tuple[tuple[str, int], ...]
    """Digest and length of each."""


class StateFile(msgspec.Struct, frozen=True):
    """A file that was read and is not damaged."""

    header: StateFileHeader
    digest: str
    """In hex; whoever trusts the file names it."""
    is_own: bool
    """This installation made it, and nobody has changed it since."""
    size_bytes: int


def write_state_file(
    path: Path,
    header: StateFileHeader,
    snapshot: bytes,
    fetch: Callable[[str], bytes],
    *,
    key: bytes,
    overwrite: bool,
) -> StateFile:
    """Write it wholly or not at all, for its owner only; `fetch` gives a chunk by its digest.

    Raises InvalidRequest for a path that is none, Refused for a file that is there, StorageFull,
    StorageError, and what `fetch` raises.
    """
    if path.exists() and not overwrite:
        raise Refused(f"{path} is there already; choose another name, or overwrite it")
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    digester = Digester()
    with _explained(path):
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with _explained(path), os.fdopen(descriptor, "wb") as file:

            def put(data: bytes) -> None:
                digester.update(data)
                file.write(data)

            text = msgspec.json.format(msgspec.json.encode(header), indent=1)
            put(_START.pack(_MAGIC, FORMAT, len(text)) + text + snapshot)
            for name, _ in header.chunks:
                put(fetch(name))
            digest = digester.digest()
            file.write(digest + hmac.digest(key, digest, hashlib.sha256))
            size_bytes = file.tell()
            file.flush()
            os.fsync(file.fileno())
        with _explained(path):
            if overwrite:
                draft.replace(path)
            else:
                # Fails for a file that has come meanwhile.
                os.link(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return StateFile(header, digest.hex(), is_own=True, size_bytes=size_bytes)


def inspect_state_file(path: Path, *, key: bytes) -> StateFile:
    """Read all of it, and nothing of what it holds. Raises InvalidRequest, CorruptRecord."""
    with _opened(path) as file:
        return _inspected(file, path, key)


def read_state_file(
    path: Path, *, key: bytes, digest: str, put: Callable[[str, bytes], None]
) -> tuple[StateFileHeader, bytes]:
    """Header and snapshot of the file with this digest, its chunks given to `put`.

    Raises Refused when the file is another one, InvalidRequest, CorruptRecord, and what `put`
    raises.
    """
    with _opened(path) as file:
        found = _inspected(file, path, key)
        if not hmac.compare_digest(found.digest, digest):
            raise Refused(f"{path} is not the file that was looked at: it has changed since")
        header = found.header
        file.seek(_START.size)
        file.seek(_START.size + _header_bytes(file, path))
        snapshot = file.read(header.snapshot_bytes)
        for name, size_bytes in header.chunks:
            put(name, file.read(size_bytes))
    return header, snapshot


def _inspected(file: BinaryIO, path: Path, key: bytes) -> StateFile:
    size_bytes = os.fstat(file.fileno()).st_size
    header_bytes = _header_bytes(file, path)
    try:
        header = msgspec.json.decode(file.read(header_bytes), type=StateFileHeader)
    except UNREADABLE as error:
        raise CorruptRecord(f"{path} is damaged: its header cannot be read ({error})") from error
    body_bytes = header.snapshot_bytes + sum(size for _, size in header.chunks)
    whole = _START.size + header_bytes + body_bytes + _DIGEST_BYTES + _MAC_BYTES
    if size_bytes != whole or header.snapshot_bytes < 0 or any(n < 0 for _, n in header.chunks):
        raise CorruptRecord(f"{path} is damaged: it has {size_bytes} bytes and not {whole}")
    file.seek(0)
    digester, left = Digester(), whole - _DIGEST_BYTES - _MAC_BYTES
    while left:
        piece = file.read(min(left, PIECE_BYTES))
        if not piece:
            raise CorruptRecord(f"{path} is damaged: it ends too early")
        digester.update(piece)
        left -= len(piece)
    digest = digester.digest()
    if not hmac.compare_digest(file.read(_DIGEST_BYTES), digest):
        raise CorruptRecord(f"{path} is damaged: its contents do not match its digest")
    is_own = hmac.compare_digest(file.read(_MAC_BYTES), hmac.digest(key, digest, hashlib.sha256))
    return StateFile(header, digest.hex(), is_own=is_own, size_bytes=size_bytes)


def _header_bytes(file: BinaryIO, path: Path) -> int:
    file.seek(0)
    start = file.read(_START.size)
    magic, version, length = _START.unpack(start) if len(start) == _START.size else (b"", 0, 0)
    if magic != _MAGIC:
        raise InvalidRequest(f"{path} is no file that export-state has written")
    if version != FORMAT:
        raise InvalidRequest(
            f"{path} has format {version}, but this version reads {FORMAT}; use the version that "
            "wrote it"
        )
    if length > HEADER_BYTES_MAX:
        raise CorruptRecord(f"{path} is damaged: its header would have {length} bytes")
    return int(length)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    with _explained(path), path.open("rb") as file:
        yield file


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise Refused(f"{path} is there already; choose another name, or overwrite it") from error
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise InvalidRequest(f"{path} is not there: {error.strerror}") from error
    except OSError as error:
        kind = StorageFull if error.errno in _NO_SPACE else StorageError
        raise kind(f"{path} cannot be used: {error.strerror or error}") from error
