"""Keeps records of kernels on disk, so that the next server finds what this one had.

A kernel is kept from the moment it has its hosts until it is shut down. The end of a server,
orderly or not, is no shutdown: its kernels' records and logs stay for as long as the settings say.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from notebookos_ext.cluster.model import HostId, KernelId
from notebookos_ext.errors import StorageError
from notebookos_ext.live.kernel_records import KernelRecord
from notebookos_ext.storage.kept_kernels import KeptKernel, KeptKernels

DAY_S = 86_400.0

log = logging.getLogger(__name__)


class KernelLogs(Protocol):
    """The part of `StateFolder` that is used here."""

    def logs(self) -> dict[KernelId, float]: ...  # noqa: D102
    def delete_logs(self, kernel: KernelId) -> None: ...  # noqa: D102
    def require_space(self) -> None: ...  # noqa: D102


class Keeper:
    """The kept kernels of one state folder. `take_stock` comes first, once."""

    def __init__(self, records: KeptKernels, logs: KernelLogs, *, keep_days: float) -> None:
        """With `keep_days` 0 nothing is kept, and what an earlier server kept is removed."""
        self._records = records
        self._logs = logs
        self._keep_s = keep_days * DAY_S
        self._former: dict[KernelId, KeptKernel] = {}
        self._problems: list[str] = []

    @property
    def keeps(self) -> bool:
        """Whether kernels outlive this server."""
        return self._keep_s > 0

    def take_stock(self, now: float) -> list[str]:
        """Find what earlier servers kept, remove what is too old or has lost its other half.

        Before any host is started. Returns sentences about records that cannot be read.
        """
        found, problems = self._records.all()
        self._problems = problems
        logs = self._logs.logs()
        for kept in found:
            kernel = kept.spec.kernel
            used_at = logs.get(kernel) if kept.stored is None else kept.stored.at
            if used_at is None or now - used_at >= self._keep_s:
                log.info("kernel %s is not kept any longer", kernel)
                self._records.forget(kernel)
                continue
            self._former[kernel] = kept
            if kept.stored is not None and kernel in logs:
                # Of a kernel that was just being stored or brought back when its server ended.
                self._logs.delete_logs(kernel)
        if not problems:
            # Logs without a record lack their key. A record that cannot be read may have it.
            for kernel in logs.keys() - self._former.keys():
                self._logs.delete_logs(kernel)
        return problems

    @property
    def former(self) -> tuple[KeptKernel, ...]:
        """Kernels of earlier servers that are not back yet."""
        return tuple(self._former.values())

    def unknown(self) -> str:
        """Why it cannot be known which chunks of the store are needed; empty when it can be."""
        if self._problems:
            return self._problems[0]
        for kept in self._former.values():
            if kept.stored is None:
                return f"kernel {kept.spec.kernel} of an earlier server is not back"
        return ""

    @property
    def hosts(self) -> frozenset[HostId]:
        """The hosts that have their logs."""
        return frozenset(
            host for kept in self._former.values() if kept.stored is None for host in kept.members
        )

    def require_space(self) -> None:
        """Raises StorageFull when a new kernel's log would not fit on the disk."""
        self._logs.require_space()

    def find(self, kernel: KernelId) -> KeptKernel | None:
        """What is kept of a kernel that an earlier server had; each is given out once."""
        return self._former.pop(kernel, None)

    def adopt(self, kept: KeptKernel) -> None:
        """One that was in no earlier server, to be found like those. Raises StorageError."""
        if self.keeps:
            self._records.put(kept)
        self._former[kept.spec.kernel] = kept

    def keep(self, record: KernelRecord, warn: Callable[[str, KernelId], None]) -> None:
        """Write down what is now known of a kernel; a failure is told, and the kernel goes on."""
        try:
            self.write(record)
        except StorageError as error:
            warn(error.message, record.kernel)

    def write(self, record: KernelRecord) -> None:
        """The same for what must not go on otherwise. Raises StorageError."""
        placed = record.members or record.stored is not None
        if self.keeps and placed and not record.closed:
            self._records.put(record.kept())

    def forget(self, kernel: KernelId) -> None:
        """It is shut down for good."""
        self._records.forget(kernel)
