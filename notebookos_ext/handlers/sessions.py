"""POST /api/sessions as Jupyter has it, but with the status of what went wrong.

JupyterLab opens notebooks through it. Jupyter's own handler calls every failure of a kernel start
an internal error of the server (500), whatever status the failure itself has.
"""

from __future__ import annotations

from jupyter_server.auth.decorator import authorized
from jupyter_server.services.sessions.handlers import SessionRootHandler
from jupyter_server.utils import ensure_async
from tornado import web


class SessionsHandler(SessionRootHandler):
    """For every kernel of the server; only the status of failures differs."""

    # The decorators repeat those of the parent: a method that is put in its place has none.
    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Start a kernel for a notebook."""
        try:
            await ensure_async(super().post())
        except web.HTTPError as error:
            if isinstance(error.__cause__, web.HTTPError):
                raise error.__cause__ from None
            raise
