"""POST notebookos/api/store/sweep: deleting chunks that nothing names from the checkpoint store."""

from __future__ import annotations

from jupyter_server.auth.decorator import authorized
from tornado import web

from notebookos_ext.handlers.base import NotebookOSHandler
from notebookos_ext.handlers.models import SweepRequest, SweepView


class StoreSweepHandler(NotebookOSHandler):
    """One sweep."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Sweep, and answer with what went; 503 while it is not known what is named."""
        body = self.read_body(SweepRequest) if self.request.body else SweepRequest()
        swept = await self.asked(self.controller.sweep_store(dry_run=body.dry_run))
        self.audit("sweep-store", "", body)
        self.answer(
            SweepView(dry_run=body.dry_run, chunks=swept.chunks, size_bytes=swept.size_bytes)
        )
