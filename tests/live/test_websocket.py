"""Kernel WebSockets send small frames at once."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from jupyter_client.session import Session

from notebookos_ext.live.websocket import NoDelayWebsocketConnection


@pytest.fixture
def jp_server_config() -> dict[str, Any]:
    connection = "notebookos_ext.live.websocket.NoDelayWebsocketConnection"
    return {"ServerApp": {"kernel_websocket_connection_class": connection}}


async def test_a_kernel_websocket_does_not_wait_for_acknowledgements(
    jp_fetch: Any, jp_ws_fetch: Any
) -> None:
    answer = await jp_fetch("api", "kernels", method="POST", allow_nonstandard_methods=True)
    kernel = json.loads(answer.body)["id"]
    websocket = await jp_ws_fetch("api", "kernels", kernel, "channels")
    try:
        # It still is jupyter_server's own connection: a request is answered.
        request = Session().msg("kernel_info_request", {})
        await websocket.write_message(json.dumps({**request, "channel": "shell"}, default=str))
        while json.loads(await websocket.read_message())["msg_type"] != "kernel_info_reply":
            pass
        (connection,) = NoDelayWebsocketConnection._open_sockets
        stream = connection.websocket_handler.ws_connection.stream
        assert stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    finally:
        websocket.close()
        await jp_fetch("api", "kernels", kernel, method="DELETE")
