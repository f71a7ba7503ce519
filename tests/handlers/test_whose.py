"""Whose kernel it is: the name by which Jupyter's identity provider knows who asked for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jupyter_server.auth import IdentityProvider, User

from notebookos_ext.live.cluster_runtime import server_runtime
from notebookos_ext.live.identity import asked_by, asking_user

HANG_S = 60.0


class ByHeader(IdentityProvider):
    """Takes everybody for who they say they are."""

    def get_user(self, handler: Any) -> User:  # type: ignore[override]
        return User(username=handler.request.headers.get("X-Name", "0" * 32))


@pytest.fixture
def notebookos_settings() -> dict[str, Any]:
    return {"hosts": 1, "max_hosts": 1, "replica_count": 1, "user": "whoever runs it"}


@pytest.fixture
def jp_server_config(jp_server_config: dict[str, Any]) -> dict[str, Any]:
    jp_server_config["ServerApp"] |= {
        "identity_provider_class": ByHeader,
        "disable_check_xsrf": True,
    }
    return jp_server_config


def owners() -> dict[str, str]:
    look = server_runtime().controller.read(
        lambda insight: {str(k.id): k.user for k in insight.view.kernels.values()}
    )
    return look.result(HANG_S)


async def test_kernels_are_of_those_who_asked(jp_fetch: Any, jp_root_dir: Path) -> None:
    async def ask(path: str, body: dict[str, Any], **headers: str) -> dict[str, Any]:
        answer = await jp_fetch("api", path, method="POST", body=json.dumps(body), headers=headers)
        return dict(json.loads(answer.body))

    ours = {"name": "notebookos"}
    ada = await ask("kernels", ours, **{"X-Name": "ada"})
    session = {"path": "b.ipynb", "name": "b.ipynb", "type": "notebook", "kernel": ours}
    bob = await ask("sessions", session, **{"X-Name": "bob"})
    unknown = await ask("kernels", ours)
    assert owners() == {
        ada["id"]: "ada",
        bob["kernel"]["id"]: "bob",
        unknown["id"]: "whoever runs it",
    }
    # Whoever restarts it, it stays hers.
    await jp_fetch(
        "api", "kernels", ada["id"], "restart", method="POST", body="", headers={"X-Name": "bob"}
    )
    assert owners()[ada["id"]] == "ada"


def test_a_name_that_was_made_up_is_none() -> None:
    with asked_by("ada"):
        assert asking_user() == "ada"
        with asked_by("3f" * 16):
            assert asking_user() == ""
    assert asking_user() == ""
