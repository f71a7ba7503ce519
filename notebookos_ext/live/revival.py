"""Brings the kernels of an earlier server back, under their ids, with their sessions.

Jupyter starts each of them as if a client had asked for a kernel of that id; the controller then
finds its record and takes its namespace from its log. Lists of kernels and sessions wait for this:
a browser that polls right after the restart would take its kernels for dead.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from jupyter_server.utils import ensure_async
from tornado import web

from notebookos_ext.errors import NotebookOSError
from notebookos_ext.live.cluster_runtime import ClusterRuntime
from notebookos_ext.storage.kept_kernels import KeptKernel

AT_A_TIME = 8
WAIT_S = 20.0
"""Lists are held back no longer: a host that does not come must not hide all else."""

log = logging.getLogger(__name__)


class Server(Protocol):
    """The part of Jupyter's server that is used here."""

    kernel_manager: Any
    session_manager: Any
    contents_manager: Any


class Revival:
    """Runs once, on the server's loop."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._done = asyncio.Event()

    async def done(self) -> None:
        """Return when every kernel is back, could not be brought back, or took too long."""
        try:
            await asyncio.wait_for(self._done.wait(), WAIT_S)
        except TimeoutError:
            log.warning("kernels of an earlier server are still on their way")

    async def run(self, runtime: ClusterRuntime | None) -> None:
        """Bring all of them back; one that cannot be is told, and stays on disk."""
        try:
            if runtime is not None:
                gate = asyncio.Semaphore(AT_A_TIME)
                await asyncio.gather(
                    *(self._one(runtime, kept, gate) for kept in runtime.keeper.former)
                )
        finally:
            self._done.set()

    async def _one(
        self, runtime: ClusterRuntime, kept: KeptKernel, gate: asyncio.Semaphore
    ) -> None:
        async with gate:
            try:
                await self._start(kept)
            except (NotebookOSError, web.HTTPError, LookupError, OSError, RuntimeError) as error:
                what = kept.spec.notebook_path or str(kept.spec.kernel)
                runtime.controller.warn_soon(f"the kernel of {what} could not be restored: {error}")
                log.warning("kernel %s could not be restored", kept.spec.kernel, exc_info=True)

    async def _start(self, kept: KeptKernel) -> None:
        kernels, sessions = self._server.kernel_manager, self._server.session_manager
        where: dict[str, Any] = {"cwd": kept.cwd}
        session = kept.session
        if session is not None:
            contents = self._server.contents_manager
            folder = await ensure_async(contents.get_kernel_path(path=session.path))
            where = {"path": folder, "env": sessions.get_kernel_env(session.path, session.name)}
        await ensure_async(
            kernels.start_kernel(
                kernel_id=str(kept.spec.kernel), kernel_name=kept.kernel_name, **where
            )
        )
        if session is not None:
            await ensure_async(
                sessions.save_session(
                    session.id,
                    path=session.path,
                    name=session.name,
                    type=session.type,
                    kernel_id=str(kept.spec.kernel),
                )
            )
