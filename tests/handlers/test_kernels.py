"""One kernel by REST: its view, its settings, and its way through a real server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from live_rig import until_async
from tornado.httpclient import HTTPClientError

from notebookos_ext.handlers.models import KernelSettingsResult, KernelView

UNKNOWN = "00000000-0000-0000-0000-000000000000"


@asynccontextmanager
async def started(jp_fetch: Any) -> AsyncIterator[str]:
    """A kernel of the server, for as long as the block runs."""
    answer = await jp_fetch(
        "api", "kernels", method="POST", body=json.dumps({"name": "notebookos"})
    )
    kernel_id = str(json.loads(answer.body)["id"])
    try:
        yield kernel_id
    finally:
        await jp_fetch("api", "kernels", kernel_id, method="DELETE")


async def patch(jp_fetch: Any, kernel_id: str, **body: Any) -> Any:
    return await jp_fetch(
        "notebookos", "api", "kernels", kernel_id, method="PATCH", body=json.dumps(body)
    )


async def refusal(jp_fetch: Any, kernel_id: str, **body: Any) -> tuple[int, dict[str, str]]:
    with pytest.raises(HTTPClientError) as refused:
        await patch(jp_fetch, kernel_id, **body)
    return refused.value.code, json.loads(refused.value.response.body)


async def test_a_kernel_is_shown_until_it_is_deleted(jp_fetch: Any) -> None:
    async with started(jp_fetch) as kernel:

        async def idle() -> KernelView | None:
            answer = await jp_fetch("notebookos", "api", "kernels", kernel)
            view = msgspec.json.decode(answer.body, type=KernelView)
            return view if view.state == "idle" else None

        view = await until_async(idle, "an idle kernel")
        assert view.name == "notebookos"
        assert [r.state for r in view.replicas] == ["idle"]
    with pytest.raises(HTTPClientError) as refused:
        await jp_fetch("notebookos", "api", "kernels", kernel)
    assert refused.value.code == 404


async def test_settings_say_when_they_take_effect(jp_fetch: Any) -> None:
    async with started(jp_fetch) as kernel:
        answer = await patch(jp_fetch, kernel, replica_count=3, gpus_per_cell=1)
        result = msgspec.json.decode(answer.body, type=KernelSettingsResult)
        assert result.effective == {
            "replica_count": "soon",
            "gpus_per_cell": "next-cell",
        }
        assert result.kernel.replica_count == 1
        assert result.kernel.next_replica_count == 3
        assert result.kernel.gpus_per_cell == 1


async def test_needs_and_patience_of_a_notebook_are_settings_too(jp_fetch: Any) -> None:
    async with started(jp_fetch) as kernel:
        asked: dict[str, Any] = {
            "gpu_type": "Simulated GPU",
            "gpu_memory_gib": 8.0,
            "memory_gib": 0.25,
            "sync": "after-reply",
            "gpu_wait_s": 30.0,
        }
        answer = await patch(jp_fetch, kernel, **asked)
        result = msgspec.json.decode(answer.body, type=KernelSettingsResult)
        assert result.effective == {
            "gpu_type": "next-placement",
            "gpu_memory_gib": "next-placement",
            "memory_gib": "next-placement",
            "sync": "next-restart",
            "gpu_wait_s": "next-cell",
        }
        view = result.kernel
        assert {
            "gpu_type": view.gpu_type,
            "gpu_memory_gib": view.gpu_memory_gib,
            "memory_gib": view.memory_gib,
            "sync": view.next_sync,
            "gpu_wait_s": view.gpu_wait_s,
        } == asked
        assert view.sync == ""
        await jp_fetch("api", "kernels", kernel, "restart", method="POST", body="")
        answer = await jp_fetch("notebookos", "api", "kernels", kernel)
        assert msgspec.json.decode(answer.body, type=KernelView).sync == "after-reply"


async def test_a_changed_replica_count_takes_effect_while_the_kernel_runs(jp_fetch: Any) -> None:
    async with started(jp_fetch) as kernel:
        await patch(jp_fetch, kernel, replica_count=3)

        async def three() -> bool:
            answer = await jp_fetch("notebookos", "api", "kernels", kernel)
            view = msgspec.json.decode(answer.body, type=KernelView)
            return [r.state for r in view.replicas] == ["idle"] * 3

        assert await until_async(three, "three idle replicas")


IMPOSSIBLE: list[tuple[dict[str, Any], int, str]] = [
    ({"replica_count": 2}, 400, "asks for 2 replicas"),
    ({"replica_count": 5}, 409, "5 replicas need 5 hosts"),
    ({"gpus_per_cell": -1}, 400, "asks for -1 GPUs"),
    ({"gpus_per_cell": 99}, 409, "no host has more than 2"),
    ({"gpus_per_cell": "many"}, 400, "gpus_per_cell"),
    ({"gpu_type": "Abacus"}, 409, "host-1 has Simulated GPU, not Abacus"),
    ({"gpu_memory_gib": 1000}, 409, "host-1 has GPUs with less than 1000 GiB"),
    ({"memory_gib": 1_000_000, "gpus_per_cell": 1}, 409, "host-1 has less than 1e+06 GiB"),
    ({"sync": "never"}, 400, "sync 'never'"),
    ({"gpu_wait_s": -1}, 400, "-1.0 seconds of waiting for GPUs"),
    ({"gpus": 1}, 400, "gpus"),
]


async def test_what_cannot_be_changes_nothing(jp_fetch: Any) -> None:
    async with started(jp_fetch) as kernel:

        async def settings() -> list[int]:
            answer = await jp_fetch("notebookos", "api", "kernels", kernel)
            view = msgspec.json.decode(answer.body, type=KernelView)
            return [view.replica_count, view.next_replica_count, view.gpus_per_cell]

        before = await settings()
        for body, status, sentence in IMPOSSIBLE:
            code, said = await refusal(jp_fetch, kernel, **body)
            assert (code, sentence in said["message"]) == (status, True), (body, said)
        assert await settings() == before


async def test_an_unknown_kernel_is_not_found(jp_fetch: Any) -> None:
    code, said = await refusal(jp_fetch, UNKNOWN, gpus_per_cell=1)
    assert code == 404
    assert said["error"] == "NotFound"
    assert UNKNOWN in said["message"]


async def test_a_body_that_is_no_json_is_refused(jp_fetch: Any) -> None:
    with pytest.raises(HTTPClientError) as refused:
        await jp_fetch("notebookos", "api", "kernels", UNKNOWN, method="PATCH", body="{")
    assert refused.value.code == 400


async def test_changes_are_told_as_jupyter_events(jp_serverapp: Any, jp_fetch: Any) -> None:
    async with started(jp_fetch) as kernel:
        told: list[dict[str, Any]] = []

        async def listener(logger: Any, schema_id: str, data: dict[str, Any]) -> None:
            told.append(data)

        jp_serverapp.event_logger.add_listener(
            schema_id="https://events.notebookos.org/cluster_changed/v1", listener=listener
        )
        await patch(jp_fetch, kernel, gpus_per_cell=1)

        async def heard() -> bool:
            return {"kind": "settings", "kernel_id": kernel} in told

        assert await until_async(heard, "the event")


async def test_a_kernelspec_that_does_not_exist_is_named(jp_fetch: Any) -> None:
    with pytest.raises(HTTPClientError) as refused:
        await jp_fetch("api", "kernels", method="POST", body=json.dumps({"name": "nope"}))
    assert refused.value.code == 404
    sentence = json.loads(refused.value.response.body)["message"]
    assert sentence.startswith("there is no kernelspec 'nope'; installed are ")
    assert "notebookos" in sentence
    assert json.loads((await jp_fetch("api", "kernels")).body) == []
