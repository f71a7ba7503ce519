"""The OpenAPI document against the handlers: neither has a path or method that the other lacks."""

from __future__ import annotations

import json
import re
from typing import Any

from notebookos_ext.app import NotebookOSApp
from notebookos_ext.handlers import models
from notebookos_ext.handlers.base import NotebookOSHandler
from notebookos_ext.handlers.specification import ROOT, document

METHODS = ("get", "head", "post", "put", "patch", "delete")


def routes() -> dict[str, set[str]]:
    """Each path of ours as the document writes it, and the methods that its handler has."""
    app = NotebookOSApp()
    app.initialize_handlers()
    found = {}
    for pattern, handler, *_ in app.handlers:
        if not pattern.startswith(ROOT):
            continue
        assert issubclass(handler, NotebookOSHandler)
        path = re.sub(r"\(\?P<(\w+)>.*?\)", r"{\1}", pattern).replace("\\", "")
        base = NotebookOSHandler
        own = {m for m in METHODS if getattr(handler, m) is not getattr(base, m)}
        found[path.removeprefix(ROOT)] = own
    return found


def test_every_path_and_method_is_described_and_no_other() -> None:
    described = {
        path: {method for method in said if method != "parameters"}
        for path, said in document()["paths"].items()
    }
    assert described == routes()


def test_every_reference_leads_somewhere() -> None:
    written = document()
    names = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(written)))
    assert names == set(written["components"]["schemas"])


def test_all_models_of_the_interface_are_in_it() -> None:
    views = {name for name in vars(models) if re.search(r"(View|Request|Patch|Result)$", name)}
    assert views == set(document()["components"]["schemas"])


def test_every_error_has_a_message_and_a_hint() -> None:
    for said in document()["paths"].values():
        for method, operation in said.items():
            if method == "parameters":
                continue
            for status, answer in operation["responses"].items():
                reference = answer["content"]["application/json"]["schema"].get("$ref", "")
                assert reference.endswith("/ErrorView") == (int(status) >= 400)
    error = document()["components"]["schemas"]["ErrorView"]
    assert {"message", "hint"} <= set(error["required"])


async def test_it_is_served(jp_fetch: Any) -> None:
    answer = await jp_fetch("notebookos", "api", "spec.json")
    assert json.loads(answer.body) == json.loads(json.dumps(document()))
    assert answer.headers["Content-Type"].startswith("application/json")
