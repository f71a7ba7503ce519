"""GET notebookos/api/spec.json: the REST interface as an OpenAPI document, made from its models."""

from __future__ import annotations

from typing import Any

import msgspec
from jupyter_server.auth.decorator import authorized
from tornado import web

from notebookos_ext._version import __version__
from notebookos_ext.handlers import models
from notebookos_ext.handlers.base import NotebookOSHandler

OPENAPI = "3.1.0"
ROOT = "/notebookos/api"


class Operation(msgspec.Struct, frozen=True):
    """What one method of one path takes and answers."""

    summary: str
    answer: type[msgspec.Struct] | None
    """None: a JSON object without a model of its own."""
    body: type[msgspec.Struct] | None = None
    body_required: bool = False
    status: int = 200
    query: dict[str, str] = {}
    """Name of each parameter and what it means."""
    errors: tuple[int, ...] = (403, 503)


OPERATIONS: dict[str, dict[str, Operation]] = {
    "/cluster": {
        "get": Operation("The whole cluster as one snapshot.", models.ClusterView),
    },
    "/kernels/{kernel_id}": {
        "get": Operation("One kernel.", models.KernelView, errors=(403, 404, 503)),
        "patch": Operation(
            "Change the settings of a kernel; says when each of them takes effect.",
            models.KernelSettingsResult,
            body=models.KernelSettingsPatch,
            body_required=True,
            errors=(400, 403, 404, 409, 503),
        ),
    },
    "/kernels/{kernel_id}/migration": {
        "post": Operation(
            "Begin to move a replica to another host.",
            models.KernelView,
            body=models.MigrationRequest,
            status=202,
            errors=(400, 403, 404, 409, 503),
        ),
    },
    "/kernels/{kernel_id}/continue-unprotected": {
        "post": Operation(
            "Let a kernel without a majority go on with what is left of it.",
            models.KernelView,
            status=202,
            errors=(403, 404, 409, 503),
        ),
    },
    "/kernels/{kernel_id}/executor": {
        "put": Operation(
            "Prefer a replica for the next cell that it can run.",
            models.KernelView,
            body=models.ExecutorRequest,
            body_required=True,
            errors=(400, 403, 404, 409, 503),
        ),
        "delete": Operation(
            "Leave the choice of the executor to the scheduler again.",
            models.KernelView,
            errors=(403, 404, 503),
        ),
    },
    "/hosts": {
        "post": Operation(
            "Ask for one more host; it is in the cluster once it is up.",
            models.ClusterView,
            status=202,
            errors=(403, 409, 503),
        ),
    },
    "/kernels/{kernel_id}/export": {
        "post": Operation(
            "Write the kernel's namespace into a file on the server.",
            models.StateFileView,
            body=models.ExportRequest,
            body_required=True,
            status=201,
            errors=(400, 403, 404, 409, 503, 507),
        ),
    },
    "/state-files/inspection": {
        "post": Operation(
            "What such a file has; nothing of it is loaded.",
            models.StateFileView,
            body=models.InspectionRequest,
            body_required=True,
            errors=(400, 403, 500, 503),
        ),
    },
    "/state-files/import": {
        "post": Operation(
            "Start a new kernel with what a trusted file has: loading it runs code.",
            models.KernelView,
            body=models.ImportRequest,
            body_required=True,
            status=201,
            errors=(400, 403, 409, 500, 503, 507),
        ),
    },
    "/hosts/{host_id}/drain": {
        "put": Operation(
            "Begin to empty a host.",
            models.HostView,
            body=models.DrainRequest,
            status=202,
            errors=(400, 403, 404, 503),
        ),
        "delete": Operation(
            "Use a host again like any other.", models.HostView, errors=(403, 404, 503)
        ),
    },
    "/store/sweep": {
        "post": Operation(
            "Delete chunks that nothing names from the checkpoint store.",
            models.SweepView,
            body=models.SweepRequest,
            errors=(400, 403, 503, 507),
        ),
    },
    "/usage": {
        "get": Operation(
            "What cells took, how long they waited, and what was saved against reservation.",
            models.UsageView,
            query={
                "since": "Seconds since the Unix epoch; all that is on record without it.",
                "until": "Seconds since the Unix epoch; now without it.",
                "by": "user, notebook or kernel; notebook without it.",
            },
            errors=(400, 403, 404, 503),
        ),
    },
    "/usage/timeline": {
        "get": Operation(
            "How many GPUs there were and how many were bound, over time.",
            models.TimelineView,
            query={
                "since": "Seconds since the Unix epoch; the beginning of the record without it.",
                "until": "Seconds since the Unix epoch; now without it.",
                "points": "Into how many equal parts the window is cut; 120 without it.",
            },
            errors=(400, 403, 404, 503),
        ),
    },
    "/spec.json": {
        "get": Operation("This document.", None, errors=(403,)),
    },
}


class SpecificationHandler(NotebookOSHandler):
    """The document; it is there without a cluster too."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Answer with the OpenAPI document."""
        self.finish(msgspec.json.encode(document()))


def document() -> dict[str, Any]:
    """The OpenAPI document as plain values."""
    found = {
        shape
        for methods in OPERATIONS.values()
        for operation in methods.values()
        for shape in (operation.answer, operation.body)
        if shape is not None
    } | {models.ErrorView}
    shapes = sorted(found, key=lambda shape: shape.__name__)
    _, schemas = msgspec.json.schema_components(shapes, ref_template="#/components/schemas/{name}")
    return {
        "openapi": OPENAPI,
        "info": {
            "title": "NotebookOS",
            "version": __version__,
            "description": "Times are seconds since the Unix epoch, durations are `_ms`. Requests "
            "are authenticated as all of Jupyter Server's are; an error answers with an ErrorView.",
        },
        "servers": [{"url": ROOT}],
        "paths": {
            path: {
                "parameters": [_path_parameter(name) for name in _names(path)],
                **{method: _operation(said) for method, said in methods.items()},
            }
            for path, methods in OPERATIONS.items()
        },
        "components": {"schemas": schemas},
    }


def _operation(said: Operation) -> dict[str, Any]:
    answer = {"type": "object"} if said.answer is None else _reference(said.answer)
    error = {"description": "Why not.", **_content(_reference(models.ErrorView))}
    written: dict[str, Any] = {
        "summary": said.summary,
        "responses": {
            str(said.status): {"description": said.summary, **_content(answer)},
            **{str(status): error for status in said.errors},
        },
    }
    if said.query:
        written["parameters"] = [
            {"name": name, "in": "query", "description": meaning, "schema": {"type": "string"}}
            for name, meaning in said.query.items()
        ]
    if said.body is not None:
        written["requestBody"] = {
            "required": said.body_required,
            **_content(_reference(said.body)),
        }
    return written


def _names(path: str) -> list[str]:
    return [part[1:-1] for part in path.split("/") if part.startswith("{")]


def _path_parameter(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _reference(shape: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{shape.__name__}"}


def _content(schema: dict[str, str]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}
