"""Every path asks who it is and whether they may; one user's kernel is not another's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from jupyter_server.auth import Authorizer, IdentityProvider, User
from live_rig import until_async
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

from notebookos_ext.app import NotebookOSApp

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
KERNEL_ID = "8f0fdb47-7525-4332-a01d-fdd45eafd82e"


class ByHeader(IdentityProvider):  # type: ignore[misc]
    """Two people, whom their header names."""

    def get_user(self, handler: Any) -> User | None:
        name = handler.request.headers.get("X-Person", "")
        # The server's own token is the fixtures'.
        if handler.request.headers.get("Authorization", "").startswith("token "):
            handler._token_authenticated = True
        return User(username=name) if name in ("ada", "eve", "nobody") else None


class OwnKernels(Authorizer):  # type: ignore[misc]
    """`nobody` may do nothing; `eve` nothing that names ada's kernel, nor with the cluster."""

    adas: str = ""

    def is_authorized(self, handler: Any, user: User, action: str, resource: str) -> bool:
        if user.username == "ada":
            return True
        if user.username == "nobody":
            return False
        return resource != "notebookos" and type(self).adas not in handler.request.path


@pytest.fixture
def jp_server_config(jp_server_config: dict[str, Any]) -> dict[str, Any]:
    jp_server_config["ServerApp"] |= {
        "identity_provider_class": ByHeader,
        "authorizer_class": OwnKernels,
    }
    return jp_server_config


def paths() -> Iterator[tuple[str, str]]:
    """Each path of the extension, with ids in it, and each method that its handler has."""
    app = NotebookOSApp()
    app.initialize_handlers()
    for pattern, handler in app.handlers:
        path = re.sub(r"\(\?P<host_id>[^)]*\)", "host-1", pattern)
        path = re.sub(r"\(\?P<(kernel|session)_id>[^)]*\)", KERNEL_ID, path)
        path = path.replace("\\", "")
        for method in METHODS:
            if getattr(handler, method.lower()) is not handler._unimplemented_method:
                yield method, path


async def status(fetch: Any, method: str, path: str, person: str | None) -> int:
    """The HTTP status of a request by this person; None has no identity."""
    headers = {"Authorization": "none"} if person is None else {"X-Person": person}
    body = "{}" if method in ("POST", "PUT", "PATCH") else None
    try:
        answer = await fetch(
            *path.strip("/").split("/"),
            method=method,
            body=body,
            headers=headers,
            allow_nonstandard_methods=True,
        )
    except HTTPClientError as error:
        return int(error.code)
    return int(answer.code)


async def test_every_path_wants_an_identity_and_a_permission(jp_fetch: Any) -> None:
    walked = list(paths())
    assert len(walked) > 12
    assert {path for _, path in walked} >= {
        "/notebookos/api/cluster",
        f"/notebookos/api/kernels/{KERNEL_ID}",
        "/notebookos/api/hosts/host-1/drain",
    }
    for method, path in walked:
        assert await status(jp_fetch, method, path, None) == 403, (method, path)
        assert await status(jp_fetch, method, path, "nobody") == 403, (method, path)
    # Who may, is answered; what exactly is for other tests.
    assert await status(jp_fetch, "GET", "/notebookos/api/cluster", "ada") == 200


async def test_no_part_of_another_persons_kernel_is_reached(
    jp_fetch: Any, jp_base_url: str, http_server_port: Any
) -> None:
    async def ask(method: str, path: str, person: str, body: Any = None) -> Any:
        answer = await jp_fetch(
            *path.strip("/").split("/"),
            method=method,
            body=None if body is None else json.dumps(body),
            headers={"X-Person": person},
            allow_nonstandard_methods=True,
        )
        return json.loads(answer.body) if answer.body else None

    async def ready() -> bool:
        view = await ask("GET", "notebookos/api/cluster", "ada")
        return any(host["state"] == "ready" for host in view["hosts"])

    await until_async(ready, "a host is there")
    kernel = (await ask("POST", "api/kernels", "ada", {"name": "notebookos"}))["id"]
    OwnKernels.adas = kernel
    try:
        for method, path in (
            ("GET", f"notebookos/api/kernels/{kernel}"),
            ("PATCH", f"notebookos/api/kernels/{kernel}"),
            ("POST", f"notebookos/api/kernels/{kernel}/migration"),
            ("GET", "notebookos/api/cluster"),
            ("GET", "notebookos/api/usage"),
            ("PUT", "notebookos/api/hosts/host-1/drain"),
            ("GET", f"api/kernels/{kernel}"),
            ("POST", f"api/kernels/{kernel}/interrupt"),
            ("POST", f"api/kernels/{kernel}/restart"),
            ("DELETE", f"api/kernels/{kernel}"),
        ):
            assert await status(jp_fetch, method, path, "eve") == 403, (method, path)
        address = f"ws://127.0.0.1:{http_server_port[-1]}{jp_base_url}api/kernels/{kernel}/channels"
        for headers in ({}, {"X-Person": "eve"}, {"X-Person": "nobody"}):
            with pytest.raises(HTTPClientError) as refused:
                await websocket_connect(HTTPRequest(address, headers=headers))
            assert refused.value.code == 403, headers
        assert await status(jp_fetch, "GET", f"notebookos/api/kernels/{kernel}", "ada") == 200
    finally:
        OwnKernels.adas = ""
        await ask("DELETE", f"api/kernels/{kernel}", "ada")
