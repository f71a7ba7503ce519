"""What every handler shares: authorization by one resource name, JSON, error class to status."""

from __future__ import annotations

import asyncio
import concurrent.futures
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from jupyter_server.base.handlers import APIHandler
from jupyter_server.extension.handler import ExtensionHandlerMixin
from tornado import web

from notebookos_ext.errors import UNREADABLE, InvalidRequest, NotebookOSError, Unavailable
from notebookos_ext.handlers.models import ErrorView
from notebookos_ext.live.cluster_runtime import server_runtime
from notebookos_ext.live.controller import Controller

REQUEST_SCHEMA_ID = "https://events.notebookos.org/request/v1"
REQUEST_SCHEMA_FILE = (
    Path(__file__).resolve().parent.parent / "event_schemas" / "request" / "v1.yaml"
)

Body = TypeVar("Body")
Value = TypeVar("Value")


class NotebookOSHandler(ExtensionHandlerMixin, APIHandler):
    """A REST handler: read, ask the controller, write."""

    auth_resource = "notebookos"

    @property
    def controller(self) -> Controller:
        """The server's controller. Raises Unavailable with the reason when there is none."""
        return server_runtime().controller

    async def asked(self, future: concurrent.futures.Future[Value]) -> Value:
        """What the controller answers."""
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError as error:
            raise Unavailable("the cluster was stopped meanwhile; restart the server") from error

    def read_body(self, kind: type[Body]) -> Body:
        """The request's JSON as one shape. Raises InvalidRequest that names the wrong field."""
        try:
            return msgspec.json.decode(self.request.body, type=kind)
        except UNREADABLE as error:
            raise InvalidRequest(f"the request's body is not what is expected: {error}") from error

    def audit(self, action: str, subject: str, details: msgspec.Struct | None = None) -> None:
        """Tell the audit trail what this user asked for and was given."""
        said = {} if details is None else msgspec.structs.asdict(details)
        self.event_logger.emit(
            schema_id=REQUEST_SCHEMA_ID,
            data={
                "action": action,
                "user": self.current_user.username if self.current_user else "",
                "subject": subject,
                "details": {name: value for name, value in said.items() if value is not None},
            },
        )

    def answer(self, value: msgspec.Struct) -> None:
        """Write one of the shapes of `models.py`."""
        self.finish(msgspec.json.encode(value))

    def write_error(self, status_code: int, **kwargs: Any) -> None:  # noqa: ARG002 - its own is set
        """Answer with an ErrorView; an error that is not ours keeps its status."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        self.set_header("Content-Type", "application/json")
        if isinstance(error, NotebookOSError):
            self.set_status(error.status)
            view = ErrorView(error.message, error.hint, type(error).__name__)
        else:
            said = error.log_message if isinstance(error, web.HTTPError) else None
            view = ErrorView(str(said or self._reason), "", type(error).__name__)
        self.finish(msgspec.json.encode(view))

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        """An error of ours was said to whom it concerns; it is no defect of the server."""
        if isinstance(value, NotebookOSError):
            self.log.info("%s %s: %s", self.request.method, self.request.path, value)
            return
        super().log_exception(typ, value, tb)
