"""Kernel WebSockets send small frames at once."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from jupyter_client.session import Session
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from live_rig import until_async

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


async def test_a_session_that_comes_back_loses_nothing_to_a_question_for_signs_of_life(
    jp_fetch: Any, jp_ws_fetch: Any, jp_serverapp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    nudge = ZMQChannelsWebsocketConnection.nudge

    def noted(connection: Any) -> Any:
        asked.append(connection.session_key)
        return nudge(connection)

    monkeypatch.setattr(ZMQChannelsWebsocketConnection, "nudge", noted)
    answer = await jp_fetch("api", "kernels", method="POST", allow_nonstandard_methods=True)
    kernel = json.loads(answer.body)["id"]

    async def connected(session: str) -> Any:
        where = ("api", "kernels", kernel, "channels")
        return await jp_ws_fetch(*where, params={"session_id": session})

    async def buffers() -> bool:
        return bool(jp_serverapp.kernel_manager._kernel_buffers[kernel]["session_key"])

    try:
        websocket = await connected("first")
        await until_async(lambda: opened(asked, 1), "a new connection asks the kernel")
        websocket.close()
        await until_async(buffers, "messages are kept for the session")
        websocket = await connected("first")
        # What it asks for is answered on the channels that were kept.
        request = Session(session="first").msg("kernel_info_request", {})
        await websocket.write_message(json.dumps({**request, "channel": "shell"}, default=str))
        while json.loads(await websocket.read_message())["msg_type"] != "kernel_info_reply":
            pass
        assert asked == [f"{kernel}:first"]
        websocket.close()
        await until_async(buffers, "messages are kept for the session")
        websocket = await connected("second")
        await until_async(lambda: opened(asked, 2), "another session asks the kernel")
    finally:
        websocket.close()
        await jp_fetch("api", "kernels", kernel, method="DELETE")


async def opened(asked: list[str], count: int) -> bool:
    return len(asked) == count
