"""Moves and drains by REST: what is begun, and what is refused with which status."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from live_rig import until_async
from tornado.httpclient import HTTPClientError

from notebookos_ext.handlers.base import REQUEST_SCHEMA_ID
from notebookos_ext.handlers.models import ClusterView, HostView, KernelView, SweepView

UNKNOWN = "00000000-0000-0000-0000-000000000000"


@pytest.fixture
def notebookos_settings() -> dict[str, Any]:
    return {"hosts": 2, "max_hosts": 2, "replica_count": 1}


async def say(jp_fetch: Any, method: str, *path: str, body: Any = None) -> Any:
    text = None if body is None and method == "DELETE" else json.dumps(body or {})
    return await jp_fetch("notebookos", "api", *path, method=method, body=text)


async def refusal(jp_fetch: Any, method: str, *path: str, body: Any = None) -> tuple[int, str]:
    with pytest.raises(HTTPClientError) as refused:
        await say(jp_fetch, method, *path, body=body)
    return refused.value.code, json.loads(refused.value.response.body)["message"]


async def test_the_store_is_swept_when_asked(jp_fetch: Any, jp_serverapp: Any) -> None:
    trail: list[tuple[str, dict[str, Any]]] = []

    async def note(logger: Any, schema_id: str, data: dict[str, Any]) -> None:
        trail.append((data["action"], data["details"]))

    jp_serverapp.event_logger.add_listener(schema_id=REQUEST_SCHEMA_ID, listener=note)
    await until_async(lambda: two_hosts(jp_fetch), "two hosts")
    for dry_run in (True, False):
        body = {"dry_run": True} if dry_run else {}
        answer = await say(jp_fetch, "POST", "store", "sweep", body=body)
        assert msgspec.json.decode(answer.body, type=SweepView) == SweepView(dry_run, 0, 0)
    refused = await refusal(jp_fetch, "POST", "store", "sweep", body={"dry": True})
    assert refused[0] == 400
    assert trail == [("sweep-store", {"dry_run": True}), ("sweep-store", {"dry_run": False})]


async def two_hosts(jp_fetch: Any) -> ClusterView | None:
    answer = await jp_fetch("notebookos", "api", "cluster")
    view = msgspec.json.decode(answer.body, type=ClusterView)
    return view if len(view.hosts) == 2 else None


async def test_a_replica_is_moved_and_its_host_drained(jp_fetch: Any, jp_serverapp: Any) -> None:
    trail: list[tuple[str, str, dict[str, Any]]] = []

    async def note(logger: Any, schema_id: str, data: dict[str, Any]) -> None:
        assert data["user"]
        trail.append((data["action"], data["subject"], data["details"]))

    jp_serverapp.event_logger.add_listener(schema_id=REQUEST_SCHEMA_ID, listener=note)
    await until_async(lambda: two_hosts(jp_fetch), "two hosts")
    body = json.dumps({"name": "notebookos"})
    started = await jp_fetch("api", "kernels", method="POST", body=body)
    kernel = json.loads(started.body)["id"]

    async def there(host: str | None) -> str | None:
        answer = await jp_fetch("notebookos", "api", "kernels", kernel)
        view = msgspec.json.decode(answer.body, type=KernelView)
        (replica,) = view.replicas
        idle = view.migration is None and replica.state == "idle"
        return replica.host_id if idle and host in (None, replica.host_id) else None

    first = await until_async(lambda: there(None), "its replica")
    (second,) = {"host-1", "host-2"} - {first}
    asked = {"replica": 1, "target": second}
    answer = await say(jp_fetch, "POST", "kernels", kernel, "migration", body=asked)
    assert answer.code == 202
    moving = msgspec.json.decode(answer.body, type=KernelView).migration
    assert moving is not None
    assert (moving.replica_id, moving.target) == (f"{kernel}:1", second)
    await until_async(lambda: there(second), "the replica on the other host")

    code, said = await refusal(jp_fetch, "POST", "kernels", kernel, "continue-unprotected")
    assert code == 409
    assert "enough of its members are there" in said

    answer = await say(jp_fetch, "PUT", "hosts", second, "drain")
    assert answer.code == 202
    assert msgspec.json.decode(answer.body, type=HostView).draining
    await until_async(lambda: there(first), "the replica back again")
    answer = await say(jp_fetch, "DELETE", "hosts", second, "drain")
    assert not msgspec.json.decode(answer.body, type=HostView).draining
    await say(jp_fetch, "PATCH", "kernels", kernel, body={"gpus_per_cell": 1})
    answer = await jp_fetch("notebookos", "api", "kernels", kernel)
    (replica,) = msgspec.json.decode(answer.body, type=KernelView).replicas
    wanted = {"replica": replica.number}
    answer = await say(jp_fetch, "PUT", "kernels", kernel, "executor", body=wanted)
    view = msgspec.json.decode(answer.body, type=KernelView)
    assert view.preferred_replica == replica.number
    answer = await say(jp_fetch, "DELETE", "kernels", kernel, "executor")
    assert msgspec.json.decode(answer.body, type=KernelView).preferred_replica is None
    path = ("kernels", kernel, "executor")
    code, said = await refusal(jp_fetch, "PUT", *path, body={"replica": 70})
    assert (code, said) == (409, "the kernel has no replica 70 that could run its next cell")

    async def told() -> bool:
        return len(trail) == 6

    await until_async(told, "the audit trail")
    assert trail == [
        ("migrate", kernel, {"replica": 1, "target": second}),
        ("drain-host", second, {"release": False}),
        ("use-host", second, {}),
        ("change-settings", kernel, {"gpus_per_cell": 1}),
        ("prefer-executor", kernel, wanted),
        ("prefer-executor", kernel, {}),
    ]
    await jp_fetch("api", "kernels", kernel, method="DELETE")


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (("kernels", UNKNOWN, "migration"), None, f"there is no NotebookOS kernel {UNKNOWN}"),
        (
            ("kernels", UNKNOWN, "continue-unprotected"),
            None,
            f"there is no NotebookOS kernel {UNKNOWN}",
        ),
        (("hosts", "host-9", "drain"), None, "there is no host host-9"),
        (
            ("kernels", UNKNOWN, "executor"),
            {"replica": 1},
            f"there is no NotebookOS kernel {UNKNOWN}",
        ),
    ],
)
async def test_what_is_not_there_is_not_found(
    jp_fetch: Any, path: tuple[str, ...], body: Any, said: str
) -> None:
    method = "PUT" if path[-1] in ("drain", "executor") else "POST"
    assert await refusal(jp_fetch, method, *path, body=body) == (404, said)


async def test_a_body_with_a_typo_is_named(jp_fetch: Any) -> None:
    code, said = await refusal(
        jp_fetch, "POST", "kernels", UNKNOWN, "migration", body={"traget": "host-1"}
    )
    assert code == 400
    assert "traget" in said


async def test_a_host_is_added_and_removed_up_to_the_most(jp_fetch: Any) -> None:
    async def hosts(*names: str) -> bool:
        answer = await jp_fetch("notebookos", "api", "cluster")
        view = msgspec.json.decode(answer.body, type=ClusterView)
        return sorted(host.id for host in view.hosts) == list(names)

    await until_async(lambda: two_hosts(jp_fetch), "two hosts")
    code, said = await refusal(jp_fetch, "POST", "hosts")
    assert (code, said) == (409, "the cluster may have 2 hosts at most")
    answer = await say(jp_fetch, "PUT", "hosts", "host-1", "drain", body={"release": True})
    assert msgspec.json.decode(answer.body, type=HostView).leaving
    await until_async(lambda: hosts("host-2"), "host-1 to be gone")

    async def added() -> bool:
        # Refused while its folder is still being deleted.
        answer = await jp_fetch(
            "notebookos", "api", "hosts", method="POST", body="{}", raise_error=False
        )
        return bool(answer.code == 202)

    await until_async(added, "room for a host")
    await until_async(lambda: hosts("host-1", "host-2"), "host-1 again")
