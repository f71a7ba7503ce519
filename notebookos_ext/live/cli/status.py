"""`jupyter notebookos status`: hosts, GPUs, kernels and waiting cells of the running servers."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable

from notebookos_ext.live.cli.asking import Json, add_server_options, ask_servers
from notebookos_ext.live.cli.tables import table


def add(command: argparse.ArgumentParser) -> None:
    """The options."""
    command.add_argument("--json", action="store_true", help="print the servers' answers as JSON")
    add_server_options(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the report. Raises what `ask_servers` does."""
    found, problems = ask_servers(arguments, "cluster")
    if arguments.json:
        print(json.dumps([{"server": url, **cluster} for url, cluster in found], indent=1))
    else:
        print("\n\n".join("\n".join(_report(url, cluster)) for url, cluster in found))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 0


def _report(url: str, cluster: Json) -> Iterable[str]:
    simulated = ", simulated GPUs" if cluster["simulated"] else ""
    yield f"{url}  backend {cluster['backend']}, policy {cluster['policy']}{simulated}"
    store = cluster["store"]
    if not store["works"]:
        yield f"The checkpoint store does not work: {store['error']}"
    yield ""
    yield from table(
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
    yield from table(
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
        yield from table(
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
