"""Jupyter's own lists of kernels and sessions, where this extension needs more of them.

They wait until the kernels of an earlier server are back. What JupyterLab opens notebooks with
answers with the status of what went wrong: Jupyter's own handler calls every failure of a kernel
start an internal error of the server (500). And the controller hears which session a kernel has.
"""

from __future__ import annotations

import asyncio
from typing import Any

from jupyter_client.kernelspec import NoSuchKernel
from jupyter_server.auth.decorator import authorized
from jupyter_server.services.kernels.handlers import MainKernelHandler
from jupyter_server.services.sessions.handlers import SessionHandler, SessionRootHandler
from jupyter_server.utils import ensure_async
from tornado import web

from notebookos_ext.cluster.model import KernelId
from notebookos_ext.errors import Unavailable
from notebookos_ext.live.cluster_runtime import server_runtime
from notebookos_ext.live.identity import asked_by
from notebookos_ext.live.revival import Revival
from notebookos_ext.storage.kept_kernels import KeptSession

REVIVAL = "notebookos_revival"
"""Key of the server's `Revival` among the web application's settings."""


async def _revived(settings: dict[str, Any]) -> None:
    revival: Revival | None = settings.get(REVIVAL)
    if revival is not None:
        await revival.done()


async def _note(session_manager: Any, **column: str) -> None:
    """Tell the controller of a session, if its kernel is one of ours."""
    try:
        controller = server_runtime().controller
        model = await ensure_async(session_manager.get_session(**column))
        session = KeptSession(model["id"], model["path"], model["name"] or "", model["type"])
        noted = controller.note_session(KernelId(model["kernel"]["id"]), session)
        await asyncio.wrap_future(noted)
    except (Unavailable, web.HTTPError, KeyError):
        return


def _name(user: Any) -> str:
    """The name by which the identity provider knows who asks."""
    return str(getattr(user, "username", "") or "")


class _AnswersLast:
    """Holds the parent's answer back until the session is noted: what is answered is kept."""

    _held: tuple[Any, ...] | None = None
    _holds = False

    def finish(self, *chunk: Any) -> Any:
        """Answer, now or after `answer_now`."""
        if self._holds:
            self._held = chunk
            return asyncio.get_running_loop().create_future()
        return super().finish(*chunk)  # type: ignore[misc]  # tornado's handler comes next

    def hold_answer(self) -> None:
        """From now on."""
        self._holds = True

    def answer_now(self) -> None:
        """What was held back, if anything."""
        self._holds = False
        if self._held is not None:
            self.finish(*self._held)


# The decorators below repeat those of the parents: a method that is put in their place has none.


class KernelsHandler(MainKernelHandler):
    """/api/kernels."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """List the kernels, those of an earlier server included."""
        await _revived(self.settings)
        await ensure_async(super().get())

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Start a kernel without a notebook; 404 names what there is, where Jupyter says 500."""
        try:
            with asked_by(_name(self.current_user)):
                await ensure_async(super().post())
        except NoSuchKernel as error:
            installed = ", ".join(sorted(self.kernel_spec_manager.find_kernel_specs()))
            raise web.HTTPError(
                404, f"there is no kernelspec {error.name!r}; installed are {installed}"
            ) from error


class SessionsHandler(_AnswersLast, SessionRootHandler):
    """/api/sessions, for every kernel of the server."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """List the sessions, those of an earlier server included."""
        await _revived(self.settings)
        await ensure_async(super().get())

    @web.authenticated
    @authorized
    async def post(self) -> None:
        """Start a kernel for a notebook, or find the one that it has."""
        await _revived(self.settings)
        body = self.get_json_body() or {}
        self.hold_answer()
        try:
            with asked_by(_name(self.current_user)):
                await ensure_async(super().post())
            if path := body.get("path"):
                await _note(self.session_manager, path=str(path))
        except web.HTTPError as error:
            if isinstance(error.__cause__, web.HTTPError):
                raise error.__cause__ from None
            raise
        finally:
            self.answer_now()


class OneSessionHandler(_AnswersLast, SessionHandler):
    """/api/sessions/<id>."""

    @web.authenticated
    @authorized
    async def get(self, session_id: str) -> None:
        """Show a session."""
        await _revived(self.settings)
        await ensure_async(super().get(session_id))

    @web.authenticated
    @authorized
    async def patch(self, session_id: str) -> None:
        """Rename a notebook, or give it another kernel."""
        self.hold_answer()
        try:
            with asked_by(_name(self.current_user)):
                await ensure_async(super().patch(session_id))
            await _note(self.session_manager, session_id=session_id)
        finally:
            self.answer_now()
