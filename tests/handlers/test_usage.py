"""Questions to GET notebookos/api/usage, right and wrong."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tornado.httpclient import HTTPClientError

from notebookos_ext.handlers.models import TimelineView, UsageView


async def test_a_new_cluster_has_used_nothing(jp_fetch: Any) -> None:
    answer = await jp_fetch("notebookos", "api", "usage", params={"by": "user"})
    usage = msgspec.json.decode(answer.body, type=UsageView)
    assert (usage.by, usage.since, usage.groups) == ("user", 0.0, ())
    assert usage.total.cells == 0
    assert usage.total.wait_ms_p99 is None


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"by": "host"}, "by is 'host'; it must be one of user, notebook, kernel"),
        ({"since": "now"}, "since is 'now'; it must be seconds since the Unix epoch"),
        ({"until": "nan"}, "until is 'nan'; it must be seconds since the Unix epoch"),
        ({"since": "5", "until": "4"}, "since is later than until; the window holds nothing"),
    ],
)
async def test_a_wrong_question_is_told_what_is_wrong(
    jp_fetch: Any, params: dict[str, str], said: str
) -> None:
    with pytest.raises(HTTPClientError) as refused:
        await jp_fetch("notebookos", "api", "usage", params=params)
    assert refused.value.code == 400
    assert json.loads(refused.value.response.body)["message"] == said


async def test_gpus_over_time_are_told_in_as_many_points(jp_fetch: Any) -> None:
    answer = await jp_fetch("notebookos", "api", "usage", "timeline", params={"points": "4"})
    found = msgspec.json.decode(answer.body, type=TimelineView)
    # What was on record when the first host joined, or nothing yet.
    assert len(found.points) in (0, 4)
    assert found.since <= found.until


@pytest.mark.parametrize("points", ["0", "1001", "-1", "many", "9" * 5000])
async def test_a_wrong_number_of_points_is_told(jp_fetch: Any, points: str) -> None:
    with pytest.raises(HTTPClientError) as refused:
        await jp_fetch("notebookos", "api", "usage", "timeline", params={"points": points})
    assert refused.value.code == 400
    said = json.loads(refused.value.response.body)["message"]
    assert said == f"points is '{points}'; it must be a whole number from 1 to 1000"


async def test_strangers_are_refused(jp_serverapp: Any, http_server_client: Any) -> None:
    with pytest.raises(HTTPClientError) as refused:
        await http_server_client.fetch(f"{jp_serverapp.base_url}notebookos/api/usage")
    assert refused.value.code == 403
