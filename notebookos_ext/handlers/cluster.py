"""GET notebookos/api/cluster: everything that the sidebar and the command line show."""

from __future__ import annotations

from jupyter_server.auth.decorator import authorized
from tornado import web

from notebookos_ext._version import __version__
from notebookos_ext.handlers import present
from notebookos_ext.handlers.base import NotebookOSHandler
from notebookos_ext.handlers.models import ClusterView


class ClusterHandler(NotebookOSHandler):
    """The cluster as one snapshot."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with a ClusterView; 503 and the reason when there is no cluster."""
        view: ClusterView = await self.asked(
            self.controller.read(lambda insight: present.cluster(insight, version=__version__))
        )
        self.answer(view)
