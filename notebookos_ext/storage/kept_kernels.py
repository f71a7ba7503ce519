"""What a later controller must know to bring a kernel back from its log: one file per kernel.

The log itself is on the kernel's hosts, or a snapshot of it in the checkpoint store alone. Here are
the names of those hosts, the key that its entries are signed with, and what Jupyter called the
kernel and its session. Nothing of the user's environment is kept: that of the later server counts.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import msgspec

from notebookos_ext.cluster.model import HostId, KernelId, KernelSpec
from notebookos_ext.cluster.snapshots import StoredState
from notebookos_ext.errors import UNREADABLE, StorageError
from notebookos_ext.storage.durable import flush_folder
from notebookos_ext.storage.private_files import write_private

FORMAT = 1
FORMAT_WITH_STORED = 2
"""Of records of kernels in the store: a version that knows nothing of those must leave them be."""
ATTEMPTS_PER_LIFE = 1_000_000
"""A kernel that is brought back numbers its attempts from its next million on."""

log = logging.getLogger(__name__)


class KeptSession(msgspec.Struct, frozen=True):
    """Jupyter's session of the kernel: what ties it to a notebook in the browser."""

    id: str
    path: str
    name: str
    type: str


class KeptKernel(msgspec.Struct, frozen=True):
    """One kernel. `epoch` was begun or about to be; `lives` counts controllers that had it."""

    spec: KernelSpec
    kernel_name: str
    """Name of its kernelspec."""
    cwd: str
    log_key: bytes
    members: tuple[HostId, ...]
    epoch: int
    lives: int
    founded: tuple[HostId, ...] = ()
    """Hosts whose member has a log: one that has lost it must not vote as if it had none yet."""
    relearning: tuple[HostId, ...] = ()
    """Hosts that have lost it, and learn it from the others again."""
    former: tuple[HostId, ...] = ()
    """Hosts that may still have the log of a group that was left behind."""
    wanted_replicas: int = 0
    """What it is on the way to, one replica after the other; 0: to as many as it has."""
    unprotected: bool = False
    """It went on after the loss of a majority, and does not have them yet."""
    session: KeptSession | None = None
    stored: StoredState | None = None
    """Where the checkpoint store has its namespace, while that counts and no log does."""
    description: dict[str, Any] | None = None
    """What its replicas say of themselves, to be told while none runs."""
    format: int = FORMAT

    @property
    def last_attempt(self) -> int:
        """No attempt of an earlier life has a greater number."""
        return self.lives * ATTEMPTS_PER_LIFE


class KeptKernels:
    """A folder of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def all(self) -> tuple[list[KeptKernel], list[str]]:
        """Those that can be read, and a sentence for each file that cannot; it stays."""
        found: list[KeptKernel] = []
        problems: list[str] = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                kept = msgspec.json.decode(path.read_bytes(), type=KeptKernel)
            except (OSError, *UNREADABLE) as error:
                problems.append(f"the kernel record {path} cannot be read: {error}")
                continue
            if kept.format not in (FORMAT, FORMAT_WITH_STORED):
                problems.append(
                    f"the kernel record {path} has the format {kept.format} of another version of "
                    "NotebookOS; start that version to have the kernel back"
                )
                continue
            found.append(kept)
        return found, problems

    def put(self, kept: KeptKernel) -> None:
        """Keep it, over what was kept of this kernel before. Raises StorageError."""
        if not re.fullmatch(r"\w[\w.-]*", kept.spec.kernel):
            raise StorageError(f"{kept.spec.kernel!r} cannot be the name of a kernel's record")
        try:
            if not self._folder.exists():
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                flush_folder(self._folder.parent)
            write_private(self._path(kept.spec.kernel), msgspec.json.encode(kept).decode())
        except OSError as error:
            raise StorageError(
                f"kernel {kept.spec.kernel} could not be written down and would be lost with this "
                f"server: {error.strerror}"
            ) from error

    def forget(self, kernel: KernelId) -> None:
        """It was shut down. A file that cannot be removed is logged."""
        try:
            self._path(kernel).unlink(missing_ok=True)
        except OSError as error:
            log.warning("the record of kernel %s could not be removed: %s", kernel, error)

    def _path(self, kernel: KernelId) -> Path:
        return self._folder / f"{kernel}.json"
