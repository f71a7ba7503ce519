"""Asks the user's running Jupyter servers, by the REST API that the browser uses too."""

from __future__ import annotations

import argparse
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from jupyter_server.serverapp import list_running_servers

from notebookos_ext.errors import NotebookOSError, NotFound, Refused, Unavailable

ANSWER_S = 10.0
Json = dict[str, Any]


def add_server_options(command: argparse.ArgumentParser) -> None:
    """Which server a command asks."""
    command.add_argument("--server", metavar="URL", help="ask this server only")
    command.add_argument("--token", help="token for --server, when it is not one of the user's own")


def ask_servers(
    arguments: argparse.Namespace, path: str, query: Mapping[str, str] | None = None
) -> tuple[list[tuple[str, Json]], list[str]]:
    """What each server answers, by its address, and sentences about those that do not.

    Raises NotFound when no server runs, Unavailable when none answers.
    """
    found: list[tuple[str, Json]] = []
    problems: list[str] = []
    for url, token in _servers(arguments.server, arguments.token):
        try:
            found.append((url, _ask(url, token, path, query or {})))
        except NotebookOSError as error:
            problems.append(error.message)
    if not found:
        raise Unavailable("; ".join(problems))
    return found, problems


def tell_server(
    arguments: argparse.Namespace,
    method: str,
    path: str,
    body: Json | None,
    *,
    answer_s: float = ANSWER_S,
) -> Json:
    """Have the one server that knows what `path` names do something; its answer.

    Raises NotFound when none does, Refused with what the server says, Unavailable.
    """
    missing = ""
    for url, token in _servers(arguments.server, arguments.token):
        try:
            return _ask(url, token, path, {}, method=method, body=body, answer_s=answer_s)
        except NotFound as error:
            missing = error.message
    raise NotFound(missing)


def _servers(wanted: str | None, token: str | None) -> list[tuple[str, str]]:
    running = [(str(s["url"]), str(s.get("token", ""))) for s in list_running_servers()]
    if wanted is None:
        if not running:
            raise NotFound("no Jupyter server of yours is running; start one with: jupyter lab")
        return running
    url = wanted.rstrip("/") + "/"
    known = dict(running)
    return [(url, token if token is not None else known.get(url, ""))]


def _ask(
    url: str,
    token: str,
    path: str,
    query: Mapping[str, str],
    *,
    method: str = "GET",
    body: Json | None = None,
    answer_s: float = ANSWER_S,
) -> Json:
    """One server's answer. Raises NotFound, Refused and Unavailable with what the server says."""
    if not url.startswith(("http://", "https://")):
        raise Unavailable(
            f"{url} is not the address of a server; it begins with http:// or https://"
        )
    address = f"{url}notebookos/api/{path}"
    if query:
        address += "?" + urllib.parse.urlencode(query)
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, method=method)  # noqa: S310 - checked above
    if token:
        request.add_header("Authorization", f"token {token}")
    try:
        with urllib.request.urlopen(request, timeout=answer_s) as answer:  # noqa: S310 - as above
            said: Json = json.load(answer)
    except urllib.error.HTTPError as error:
        kind = {404: NotFound, 400: Refused, 409: Refused}.get(error.code, Unavailable)
        raise kind(f"{url}: {_said(error)}") from error
    except (OSError, ValueError) as error:
        raise Unavailable(f"{url} does not answer: {error}") from error
    return said


def _said(error: urllib.error.HTTPError) -> str:
    if error.code == 403:
        return "it wants a token; give one with --token"
    try:
        return str(json.load(error)["message"])
    except (ValueError, KeyError, TypeError):
        return f"it does not know NotebookOS (HTTP {error.code}); enable the extension there"
