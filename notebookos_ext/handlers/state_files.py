"""POST notebookos/api/kernels/<id>/export, …/state-files/inspection and …/import."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any, TypeVar

from jupyter_server.auth.decorator import authorized
from jupyter_server.utils import ensure_async
from tornado import web

from notebookos_ext.cluster.model import KernelId
from notebookos_ext.errors import InvalidRequest, Refused
from notebookos_ext.handlers.kernels import OneKernel
from notebookos_ext.handlers.models import (
    ExportRequest,
    ImportRequest,
    InspectionRequest,
    StateFileView,
)
from notebookos_ext.live.cluster_runtime import server_runtime
from notebookos_ext.live.kernelspecs import PROVISIONER
from notebookos_ext.live.state_exchange import StateExchange
from notebookos_ext.storage.state_files import StateFile

Value = TypeVar("Value")


class StateFileHandler(OneKernel):
    """What concerns such files; they are on the server's machine."""

    @property
    def exchange(self) -> StateExchange:
        """The cluster's. Raises Unavailable."""
        return server_runtime().exchange

    async def apart(self, work: Callable[[], Value]) -> Value:
        """Off the server's loop: large files take minutes."""
        return await asyncio.to_thread(work)


class ExportHandler(StateFileHandler):
    """Out of the cluster."""

    @web.authenticated
    @authorized
    async def post(self, kernel_id: str) -> None:
        """Write the kernel's namespace into a file; 201 with its StateFileView.

        400, 404, 409 while a cell runs or for a file that is there, 507.
        """
        body = self.read_body(ExportRequest)
        made = await self.apart(
            lambda: self.exchange.export(KernelId(kernel_id), body.path, overwrite=body.overwrite)
        )
        self.audit("export-state", kernel_id, body)
        self.set_status(201)
        self.answer(_view(made))


class InspectionHandler(StateFileHandler):
    """What a file has."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Answer with the StateFileView; nothing is loaded. 400, 500 for a damaged file."""
        body = self.read_body(InspectionRequest)
        self.answer(_view(await self.apart(lambda: self.exchange.inspect(body.path))))


class ImportHandler(StateFileHandler):
    """Into the cluster."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Start a new kernel with what the file has; 201 with the KernelView.

        Its `digest`, from an inspection, says that the user trusts this very file: loading it runs
        code. 400, 409 for a file that has changed or a notebook that has a kernel.
        """
        body = self.read_body(ImportRequest)
        self._require_replicated(body.kernel_name)
        if body.notebook_path:
            await self._require_free(body.notebook_path)
        kernel = await self.apart(
            lambda: self.exchange.bring(body.path, digest=body.digest, kernel_name=body.kernel_name)
        )
        try:
            await self._start(kernel, body)
        except BaseException:
            await self.apart(lambda: self.exchange.give_up(kernel))
            raise
        self.audit("import-state", kernel, body)
        self.set_status(201)
        self.answer(await self.view(kernel))

    def _require_replicated(self, name: str) -> None:
        try:
            spec = self.kernel_spec_manager.get_kernel_spec(name)
        except KeyError:
            raise InvalidRequest(f"there is no kernelspec {name!r}") from None
        if PROVISIONER not in json.dumps(spec.metadata.get("kernel_provisioner", {})):
            raise InvalidRequest(f"the kernelspec {name!r} is not replicated")

    async def _require_free(self, path: str) -> None:
        contents: Any = self.contents_manager
        sessions: Any = self.session_manager
        if not await ensure_async(contents.file_exists(path)):
            raise InvalidRequest(f"there is no notebook {path}")
        if await ensure_async(sessions.session_exists(path=path)):
            raise Refused(f"{path} has a kernel; shut it down first")

    async def _start(self, kernel: KernelId, body: ImportRequest) -> None:
        where: dict[str, Any] = {"path": body.notebook_path} if body.notebook_path else {}
        kernels: Any = self.kernel_manager
        sessions: Any = self.session_manager
        await ensure_async(
            kernels.start_kernel(kernel_id=str(kernel), kernel_name=body.kernel_name, **where)
        )
        if body.notebook_path:
            await ensure_async(
                sessions.save_session(
                    str(uuid.uuid4()),
                    path=body.notebook_path,
                    name=PurePosixPath(body.notebook_path).name,
                    type="notebook",
                    kernel_id=str(kernel),
                )
            )


def _view(found: StateFile) -> StateFileView:
    header = found.header
    return StateFileView(
        digest=found.digest,
        is_own=found.is_own,
        size_bytes=found.size_bytes,
        made_at=header.made_at,
        version=header.version,
        kernel_id=header.kernel,
        kernel_name=header.kernel_name,
        notebook_path=header.notebook_path,
        python=header.python,
        names=header.names,
        left_out=header.left_out,
    )
