"""`jupyter notebookos`: what runs where, and making kernelspecs replicated.

It asks running servers by their REST API, so it shows what the sidebar shows.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Sequence
from typing import Any

from jupyter_server.serverapp import list_running_servers

from notebookos_ext.errors import NotebookOSError, NotFound, Unavailable
from notebookos_ext.live.kernelspecs import install_replicated

ANSWER_S = 10.0
Json = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 when it worked, 1 after a sentence on stderr."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except NotebookOSError as error:
        print(f"jupyter notebookos: {error.message}", file=sys.stderr)
        if error.hint:
            print(error.hint, file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jupyter notebookos", description="Replicated notebook kernels."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    status = commands.add_parser(
        "status", help="show hosts, GPUs, kernels and waiting cells of the running servers"
    )
    status.add_argument("--json", action="store_true", help="print the servers' answers as JSON")
    status.add_argument("--server", metavar="URL", help="ask this server only")
    status.add_argument("--token", help="token for --server, when it is not one of the user's own")
    status.set_defaults(run=_status)

    install = commands.add_parser(
        "install", help="make a replicated kernelspec out of an installed one"
    )
    install.add_argument("--kernel", required=True, metavar="NAME", help="the installed kernelspec")
    install.add_argument("--name", metavar="NEW", help="name of the new one (NAME-notebookos)")
    where = install.add_mutually_exclusive_group()
    where.add_argument("--user", action="store_true", help="for this user (the default)")
    where.add_argument("--sys-prefix", action="store_true", help="into this Python environment")
    where.add_argument("--prefix", help="into another environment")
    install.set_defaults(run=_install)
    return parser


# ---- status -------------------------------------------------------------------------------------


def _status(arguments: argparse.Namespace) -> int:
    servers = _servers(arguments.server, arguments.token)
    found: list[tuple[str, Json]] = []
    problems: list[str] = []
    for url, token in servers:
        try:
            found.append((url, _ask(url, token)))
        except NotebookOSError as error:
            problems.append(error.message)
    if not found:
        raise Unavailable("; ".join(problems))
    if arguments.json:
        print(json.dumps([{"server": url, **cluster} for url, cluster in found], indent=1))
    else:
        print("\n\n".join("\n".join(_report(url, cluster)) for url, cluster in found))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 0


def _servers(wanted: str | None, token: str | None) -> list[tuple[str, str]]:
    running = [(str(s["url"]), str(s.get("token", ""))) for s in list_running_servers()]
    if wanted is None:
        if not running:
            raise NotFound("no Jupyter server of yours is running; start one with: jupyter lab")
        return running
    url = wanted.rstrip("/") + "/"
    known = dict(running)
    return [(url, token if token is not None else known.get(url, ""))]


def _ask(url: str, token: str) -> Json:
    """One server's cluster. Raises Unavailable with what the server says."""
    if not url.startswith(("http://", "https://")):
        raise Unavailable(
            f"{url} is not the address of a server; it begins with http:// or https://"
        )
    request = urllib.request.Request(f"{url}notebookos/api/cluster")  # noqa: S310 - checked above
    if token:
        request.add_header("Authorization", f"token {token}")
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:  # noqa: S310 - as above
            cluster: Json = json.load(answer)
    except urllib.error.HTTPError as error:
        raise Unavailable(f"{url}: {_said(error)}") from error
    except (OSError, ValueError) as error:
        raise Unavailable(f"{url} does not answer: {error}") from error
    return cluster


def _said(error: urllib.error.HTTPError) -> str:
    if error.code == 403:
        return "it wants a token; give one with --token"
    try:
        return str(json.load(error)["message"])
    except (ValueError, KeyError, TypeError):
        return f"it does not know NotebookOS (HTTP {error.code}); enable the extension there"


def _report(url: str, cluster: Json) -> Iterable[str]:
    simulated = ", simulated GPUs" if cluster["simulated"] else ""
    yield f"{url}  backend {cluster['backend']}, policy {cluster['policy']}{simulated}"
    yield ""
    yield from _table(
        ("HOST", "STATE", "REPLICAS", "GPUS", "BOUND"),
        [
            (
                host["id"],
                host["state"],
                str(host["replica_count"]),
                _gpus(host["devices"]),
                _bound(host["devices"]),
            )
            for host in cluster["hosts"]
        ],
        empty="no host is there yet",
    )
    yield ""
    yield from _table(
        ("KERNEL", "STATE", "NOTEBOOK", "EXECUTOR", "REPLICAS"),
        [
            (
                kernel["id"][:8],
                kernel["state"],
                kernel["notebook_path"] or "-",
                next((r["host_id"] for r in kernel["replicas"] if r["executor"]), "-"),
                ", ".join(f"{r['host_id']} {r['state']}" for r in kernel["replicas"]) or "-",
            )
            for kernel in cluster["kernels"]
        ],
        empty="no kernel",
    )
    if cluster["waiting"]:
        yield ""
        yield from _table(
            ("WAITING", "KERNEL", "GPUS", "REASON"),
            [
                (str(w["position"]), w["kernel_id"][:8], str(w["gpus"]), w["reason"])
                for w in cluster["waiting"]
            ],
            empty="",
        )
    for warning in cluster["warnings"]:
        yield f"warning: {warning['message']}"


def _gpus(devices: list[Json]) -> str:
    kinds = {"simulated" if d["kind"] == "simulated" else d["name"] for d in devices}
    return f"{len(devices)} ({', '.join(sorted(kinds))})" if devices else "0"


def _bound(devices: list[Json]) -> str:
    held = [
        f"{d['index']}: {d['binding']['kernel_id'][:8]}"
        + (" (releasing)" if d["binding"]["releasing"] else "")
        for d in devices
        if d["binding"]
    ]
    return ", ".join(held) or "-"


def _table(heading: tuple[str, ...], rows: list[tuple[str, ...]], *, empty: str) -> Iterable[str]:
    if not rows:
        yield empty
        return
    widths = [max(len(row[i]) for row in (heading, *rows)) for i in range(len(heading))]
    for row in (heading, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


# ---- install ------------------------------------------------------------------------------------


def _install(arguments: argparse.Namespace) -> int:
    prefix = sys.prefix if arguments.sys_prefix else arguments.prefix
    name, where = install_replicated(
        arguments.kernel, name=arguments.name, user=prefix is None, prefix=prefix
    )
    print(f"installed the kernelspec {name} in {where}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
