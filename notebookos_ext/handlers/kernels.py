"""One kernel, and what it may do: GET and PATCH notebookos/api/kernels/<id>, POST …/migration, PUT
and DELETE …/executor.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from jupyter_server.auth.decorator import authorized
from tornado import web

from notebookos_ext.cluster.model import HostId, KernelId, replica_id
from notebookos_ext.handlers import present
from notebookos_ext.handlers.base import NotebookOSHandler
from notebookos_ext.handlers.models import (
    ExecutorRequest,
    KernelSettingsPatch,
    KernelSettingsResult,
    KernelView,
    MigrationRequest,
)
from notebookos_ext.notebook_settings import checked

Effective = Literal["next-cell", "soon", "next-placement", "next-restart"]

EFFECTIVE: dict[str, Effective] = {
    "replica_count": "soon",
    "gpus_per_cell": "next-cell",
    "gpu_type": "next-placement",
    "gpu_memory_gib": "next-placement",
    "memory_gib": "next-placement",
    "sync": "next-restart",
    "gpu_wait_s": "next-cell",
}
"""When each setting of a kernel takes effect."""


class OneKernel(NotebookOSHandler):
    """What concerns one kernel."""

    async def view(self, kernel_id: str) -> KernelView:
        """The kernel as it is now. Raises NotFound."""
        return await self.asked(
            self.controller.read(lambda insight: present.kernel(insight, kernel_id))
        )


class KernelMigrationHandler(OneKernel):
    """Moving a replica."""

    @web.authenticated
    @authorized
    async def post(self, kernel_id: str) -> None:
        """Begin to move a replica; 202 with the KernelView. 404, and 409 with why it cannot."""
        body = self.read_body(MigrationRequest) if self.request.body else MigrationRequest()
        kernel = KernelId(kernel_id)
        await self.asked(
            self.controller.migrate(
                kernel,
                replica=None if body.replica is None else replica_id(kernel, body.replica),
                target=None if body.target is None else HostId(body.target),
            )
        )
        self.audit("migrate", kernel_id, body)
        self.set_status(202)
        self.answer(await self.view(kernel_id))


class KernelUnprotectedHandler(OneKernel):
    """Going on without a majority."""

    @web.authenticated
    @authorized
    async def post(self, kernel_id: str) -> None:
        """Begin to go on with what is left; 202 with the KernelView. 404, and 409 with why not."""
        await self.asked(self.controller.continue_unprotected(KernelId(kernel_id)))
        self.audit("continue-unprotected", kernel_id)
        self.set_status(202)
        self.answer(await self.view(kernel_id))


class KernelExecutorHandler(OneKernel):
    """Who is to run the next cell."""

    @web.authenticated
    @authorized
    async def put(self, kernel_id: str) -> None:
        """Prefer a replica; answer with the KernelView. 404, and 409 with why it cannot."""
        body = self.read_body(ExecutorRequest)
        await self.asked(self.controller.prefer_executor(KernelId(kernel_id), body.replica))
        self.audit("prefer-executor", kernel_id, body)
        self.answer(await self.view(kernel_id))

    @web.authenticated
    @authorized
    async def delete(self, kernel_id: str) -> None:
        """Leave the choice to the scheduler again; answer with the KernelView. 404."""
        await self.asked(self.controller.prefer_executor(KernelId(kernel_id), None))
        self.audit("prefer-executor", kernel_id)
        self.answer(await self.view(kernel_id))


class KernelHandler(OneKernel):
    """One kernel."""

    @web.authenticated
    @authorized
    async def get(self, kernel_id: str) -> None:
        """Answer with a KernelView; 404 for a kernel that is not one of ours."""
        self.answer(await self.view(kernel_id))

    @web.authenticated
    @authorized
    async def patch(self, kernel_id: str) -> None:
        """Change settings; answer with the kernel and when each of them takes effect.

        400 for values that no kernel can have, 404 for an unknown kernel, 409 for what no host has.
        """
        patch = self.read_body(KernelSettingsPatch)
        said = msgspec.structs.asdict(patch)
        changes = checked(said, where="the request")
        effective = {name: when for name, when in EFFECTIVE.items() if said[name] is not None}
        await self.asked(self.controller.change_settings(KernelId(kernel_id), changes))
        self.audit("change-settings", kernel_id, patch)
        self.answer(KernelSettingsResult(kernel=await self.view(kernel_id), effective=effective))
