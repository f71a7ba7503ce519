"""Kernels' namespaces out of this cluster into files, and back as new kernels.

Everything here reads and writes files and the checkpoint store, so it belongs to a thread that may
wait. Nothing is unpickled: that is for the replicas of a kernel whose user has trusted the file.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec

from notebookos_ext._version import __version__
from notebookos_ext.cluster.digests import chunk_digest
from notebookos_ext.cluster.entries import CHUNK_BYTES, ChunkRef
from notebookos_ext.cluster.ledger import LedgerState
from notebookos_ext.cluster.model import KernelId, KernelSpec
from notebookos_ext.cluster.snapshots import (
    KernelSnapshot,
    StoredState,
    decode_snapshot,
    encode_snapshot,
    pack_snapshot,
    snapshot_chunks,
    unpack_snapshot,
)
from notebookos_ext.errors import InvalidRequest
from notebookos_ext.live.controller import Controller
from notebookos_ext.storage.base import CheckpointStore
from notebookos_ext.storage.kept_kernels import FORMAT_WITH_STORED, KeptKernel
from notebookos_ext.storage.state_files import (
    StateFile,
    StateFileHeader,
    inspect_state_file,
    read_state_file,
    write_state_file,
)

_PURPOSE = b"notebookos state file"
_NOTHING = LedgerState(0, 0, None, None, 0)


class StateExchange:
    """Of one cluster; `secret` is known to this installation alone."""

    def __init__(
        self,
        controller: Controller,
        open_store: Callable[[], CheckpointStore],
        *,
        secret: bytes,
        replica_count: int,
        now: Callable[[], float],
    ) -> None:
        self._controller = controller
        self._open_store = open_store
        self._key = hmac.digest(secret, _PURPOSE, hashlib.sha256)
        self._replica_count = replica_count
        self._now = now

    def export(self, kernel: KernelId, path: str, *, overwrite: bool) -> StateFile:
        """Write the kernel's namespace, which goes on as it is, into a file.

        Raises NotFound, Refused while a cell runs or for a file that is there, InvalidRequest,
        Unavailable, StorageError.
        """
        target = _absolute(path)
        state, kept = self._controller.capture(kernel).result()
        store = self._open_store()
        snapshot = _snapshot(state, store)
        chunks = tuple(snapshot_chunks(snapshot).items())
        packed = pack_snapshot(snapshot)
        names, left_out = _names(snapshot)
        header = StateFileHeader(
            made_at=self._now(),
            version=__version__,
            kernel=kernel,
            kernel_name=kept.kernel_name,
            notebook_path=kept.session.path if kept.session else kept.spec.notebook_path,
            python=_python(kept),
            gpus_per_cell=kept.spec.gpus_per_cell,
            names=names,
            left_out=left_out,
            snapshot_bytes=len(packed),
            chunks=chunks,
        )
        return write_state_file(
            target, header, packed, store.get, key=self._key, overwrite=overwrite
        )

    def inspect(self, path: str) -> StateFile:
        """What a file has that is not damaged. Raises InvalidRequest, CorruptRecord."""
        return inspect_state_file(_absolute(path), key=self._key)

    def bring(self, path: str, *, digest: str, kernel_name: str) -> KernelId:
        """Put the file's contents into the store, as a kernel that waits to be started.

        Whoever gives its `digest` has looked at it. Raises Refused for another file,
        InvalidRequest, CorruptRecord, StorageError.
        """
        store = self._open_store()
        header, packed = read_state_file(
            _absolute(path), key=self._key, digest=digest, put=store.put
        )
        kernel = KernelId(str(uuid.uuid4()))
        # Attempts and epochs are those of the kernel that it was.
        snapshot = msgspec.structs.replace(
            unpack_snapshot(kernel, packed), ledger=_NOTHING, verdicts=(), outcomes=()
        )
        key = secrets.token_bytes(32)
        content = encode_snapshot(kernel, snapshot, key)
        document = []
        for start in range(0, len(content), CHUNK_BYTES):
            piece = content[start : start + CHUNK_BYTES]
            ref = ChunkRef(chunk_digest(piece), len(piece))
            store.put(ref.digest, piece)
            document.append(ref)
        last = snapshot.deltas[-1].delta if snapshot.deltas else None
        state = StoredState(
            kernel=kernel,
            key=key,
            epoch=0,
            at=self._now(),
            replica_count=self._replica_count,
            document=tuple(document),
            chunks=(*snapshot_chunks(snapshot), *(ref.digest for ref in document)),
            size_bytes=len(content) + sum(size for _, size in header.chunks),
            gpu_names=last.gpu_names if last is not None else (),
        )
        self._controller.adopt(
            KeptKernel(
                spec=KernelSpec(
                    kernel,
                    replica_count=self._replica_count,
                    gpus_per_cell=header.gpus_per_cell,
                    notebook_path=header.notebook_path,
                ),
                kernel_name=kernel_name,
                cwd="",
                log_key=b"",
                members=(),
                epoch=0,
                lives=0,
                stored=state,
                format=FORMAT_WITH_STORED,
            )
        ).result()
        return kernel

    def give_up(self, kernel: KernelId) -> None:
        """It could not be started."""
        self._controller.disown(kernel).result()


def _absolute(path: str) -> Path:
    found = Path(path)
    if not found.is_absolute():
        raise InvalidRequest(
            f"{path!r} is not an absolute path; say where the file is on the server"
        )
    return found


def _snapshot(state: StoredState, store: CheckpointStore) -> KernelSnapshot:
    if state.is_empty:
        return KernelSnapshot(0, _NOTHING, (), (), ())
    content = b"".join(store.get(ref.digest) for ref in state.document)
    return decode_snapshot(state.kernel, content, state.key)


def _names(snapshot: KernelSnapshot) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The user's variables, and which of them cannot travel."""
    names = {
        name
        for folded in snapshot.deltas
        for component in folded.delta.components
        for name in component.names
        if name.isidentifier() and not name.startswith("_")
    }
    held = snapshot.deltas[-1].delta.held if snapshot.deltas else ()
    left_out = {each.name for each in held}
    return tuple(sorted(names - left_out)), tuple(sorted(left_out))


def _python(kept: KeptKernel) -> str:
    said = (kept.description or {}).get("language_info", {})
    return str(said.get("version", "")) if isinstance(said, dict) else ""
