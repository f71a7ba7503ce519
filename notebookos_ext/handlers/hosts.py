"""Hosts: POST notebookos/api/hosts for one more, PUT and DELETE …/hosts/<id>/drain to empty one or
take that back.
"""

from __future__ import annotations

from jupyter_server.auth.decorator import authorized
from tornado import web

from notebookos_ext._version import __version__
from notebookos_ext.cluster.model import HostId
from notebookos_ext.handlers import present
from notebookos_ext.handlers.base import NotebookOSHandler
from notebookos_ext.handlers.models import DrainRequest


class HostsHandler(NotebookOSHandler):
    """All hosts."""

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Ask for one more host; 202 with the ClusterView, which has it once it is up. 409."""
        await self.asked(self.controller.add_host())
        self.audit("add-host", "")
        self.set_status(202)
        self.answer(
            await self.asked(
                self.controller.read(lambda i: present.cluster(i, version=__version__))
            )
        )


class HostDrainHandler(NotebookOSHandler):
    """Whether a host is being drained."""

    @web.authenticated
    @authorized
    async def put(self, host_id: str) -> None:
        """Drain it; 202 with the HostView, since what is there takes its time to move. 404."""
        body = self.read_body(DrainRequest) if self.request.body else DrainRequest()
        await self.asked(self.controller.drain_host(HostId(host_id), release=body.release))
        self.audit("drain-host", host_id, body)
        self.set_status(202)
        await self._show(host_id)

    @web.authenticated
    @authorized
    async def delete(self, host_id: str) -> None:
        """Use it again like any other; answer with the HostView. 404."""
        await self.asked(self.controller.cancel_drain(HostId(host_id)))
        self.audit("use-host", host_id)
        await self._show(host_id)

    async def _show(self, host_id: str) -> None:
        view = await self.asked(
            self.controller.read(lambda insight: present.host(insight, HostId(host_id)))
        )
        self.answer(view)
