"""Bodies and queries that mean nothing are refused with a sentence, and change nothing."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from live_rig import until_async
from tornado.httpclient import HTTPClientError

DEEP = b'{"replica_count":' + b"[" * 5000 + b"]" * 5000 + b"}"
SEED = 7
BODIES = 40


def nonsense() -> list[bytes]:
    """Bytes, JSON of all kinds, and a right body with a piece of it changed."""
    rng = random.Random(SEED)
    right = b'{"replica_count": 1, "gpus_per_cell": 2}'
    found = [
        b"",
        b"null",
        b"[]",
        b"1e999",
        b'"x"',
        b"{",
        DEEP,
        b"\xff\xfe",
        b'{"replica_count": 1e400}',
    ]
    while len(found) < BODIES:
        at = rng.randrange(len(right))
        found.append(
            right[:at] + rng.randbytes(rng.randint(1, 4)) + right[at + rng.randint(0, 3) :]
        )
    return found


async def refusal(fetch: Any, *where: str, **options: Any) -> tuple[int, str]:
    """Status and sentence of an error; 0 when it was no error."""
    try:
        await fetch(*where, allow_nonstandard_methods=True, **options)
    except HTTPClientError as error:
        body = error.response.body if error.response is not None else b"{}"
        return int(error.code), str(json.loads(body).get("message", ""))
    return 0, ""


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PATCH", "notebookos/api/kernels/{kernel}"),
        ("POST", "notebookos/api/kernels/{kernel}/migration"),
        ("PUT", "notebookos/api/hosts/{host}/drain"),
    ],
)
async def test_a_body_of_nonsense(jp_fetch: Any, method: str, path: str) -> None:
    async def there() -> Any:
        view = json.loads((await jp_fetch("notebookos", "api", "cluster")).body)
        return [host["id"] for host in view["hosts"] if host["state"] == "ready"]

    await until_async(there, "a host is there")
    answer = await jp_fetch("api", "kernels", method="POST", body='{"name": "notebookos"}')
    kernel = json.loads(answer.body)["id"]
    where = path.format(kernel=kernel, host="host-1").split("/")
    for body in nonsense():
        code, message = await refusal(jp_fetch, *where, method=method, body=body)
        # One or the other happens to be right.
        assert code in (0, 400, 409), (body, code)
        assert message or not code, body
    await jp_fetch("notebookos", "api", "hosts", "host-1", "drain", method="DELETE")
    await jp_fetch("api", "kernels", kernel, method="DELETE")


async def test_a_query_of_nonsense(jp_fetch: Any) -> None:
    for name in ("since", "until", "by"):
        for value in ("", "\0", "nan", "1e400", "-1", "[" * 2000, "ünlesbar"):
            code, message = await refusal(
                jp_fetch, "notebookos", "api", "usage", params={name: value}
            )
            assert code in (0, 400), (name, value, code)
            assert message or not code, (name, value)
