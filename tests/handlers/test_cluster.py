"""GET notebookos/api/cluster, and what it says when there is no cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from live_rig import until_async
from tornado.httpclient import HTTPClientError

from notebookos_ext.handlers.models import ClusterView


async def get(jp_fetch: Any, *path: str) -> Any:
    return json.loads((await jp_fetch("notebookos", "api", *path)).body)


async def test_the_hosts_are_shown(jp_fetch: Any) -> None:
    async def ready() -> Any:
        view = await get(jp_fetch, "cluster")
        return view if view["hosts"] else None

    view = await until_async(ready, "a host")
    decoded = msgspec.convert(view, ClusterView)
    assert decoded.backend == "local"
    assert decoded.simulated
    assert [h.id for h in decoded.hosts] == ["host-1"]
    assert {d.kind for d in decoded.hosts[0].devices} == {"simulated"}
    assert decoded.kernels == ()


async def test_strangers_are_refused(jp_serverapp: Any, http_server_client: Any) -> None:
    url = f"{jp_serverapp.base_url}notebookos/api/cluster"
    with pytest.raises(HTTPClientError) as refused:
        await http_server_client.fetch(url)
    assert refused.value.code == 403


async def test_the_server_s_metrics_have_those_of_the_cluster(jp_fetch: Any) -> None:
    async def ready() -> str:
        text = (await jp_fetch("metrics")).body.decode()
        return text if 'notebookos_hosts{state="ready"} 1.0' in text else ""

    text = await until_async(ready, "a host in the metrics")
    assert "notebookos_gpus_bound 0.0" in text


class TestASettingWithATypo:
    @pytest.fixture
    def notebookos_settings(self) -> dict[str, Any]:
        return {"replica_cuont": 3}

    async def test_the_server_goes_on_and_says_why_there_is_no_cluster(self, jp_fetch: Any) -> None:
        with pytest.raises(HTTPClientError) as refused:
            await jp_fetch("notebookos", "api", "cluster")
        assert refused.value.code == 503
        said = json.loads(refused.value.response.body)
        assert "did you mean replica_count?" in said["message"]
        assert said["error"] == "Unavailable"
        assert json.loads((await jp_fetch("api", "status")).body)["kernels"] == 0

    async def test_a_kernel_start_says_the_same(self, jp_fetch: Any) -> None:
        with pytest.raises(HTTPClientError) as refused:
            await jp_fetch("api", "kernels", method="POST", body=json.dumps({"name": "notebookos"}))
        assert refused.value.code == 503
        assert "did you mean replica_count?" in refused.value.response.body.decode()
        assert json.loads((await jp_fetch("api", "kernels")).body) == []


class TestAWrongValue:
    @pytest.fixture
    def notebookos_settings(self) -> dict[str, Any]:
        return {"replica_count": 2}

    async def test_it_is_named(self, jp_fetch: Any) -> None:
        with pytest.raises(HTTPClientError) as refused:
            await jp_fetch("notebookos", "api", "cluster")
        said = json.loads(refused.value.response.body)["message"]
        assert said == "replica_count is 2; it must be one of 1, 3, 5"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("hosts", "many", "hosts is 'many'; it must be a whole number from 1 to 64"),
        ("lease_s", "long", "lease_s is 'long'; it must be between 2 and 604800 seconds"),
        ("gpus", 2, "gpus is 2; it must be one of auto, simulated, none"),
        ("preload", 3, "preload is 3; it must be a list of module names"),
        (
            "checkpoint_store",
            3,
            "checkpoint_store is 3; it must be the path of a folder, or s3://bucket/prefix",
        ),
        (
            "checkpoint_store",
            "here",
            'checkpoint_store is "here"; a folder must have an absolute path',
        ),
        ("tcp_nodelay", "perhaps", "tcp_nodelay is 'perhaps'; it must be True or False"),
    ],
)
class TestAValueOfAWrongType:
    @pytest.fixture
    def notebookos_settings(self, name: str, value: object, said: str) -> dict[str, Any]:
        return {name: value}

    async def test_it_is_one_sentence(self, jp_fetch: Any, said: str) -> None:
        with pytest.raises(HTTPClientError) as refused:
            await jp_fetch("notebookos", "api", "cluster")
        assert refused.value.code == 503
        assert json.loads(refused.value.response.body)["message"] == said


class TestAStateFolderThatCannotBeUsed:
    @pytest.fixture
    def notebookos_settings(self, tmp_path: Path) -> dict[str, Any]:
        (tmp_path / "file").write_text("")
        return {"state_folder": str(tmp_path / "file" / "state")}

    async def test_it_is_named(self, jp_fetch: Any) -> None:
        with pytest.raises(HTTPClientError) as refused:
            await jp_fetch("notebookos", "api", "cluster")
        assert refused.value.code == 503
        said = json.loads(refused.value.response.body)["message"]
        assert "file/state cannot be used" in said
        assert "NotebookOSApp.state_folder" in said
