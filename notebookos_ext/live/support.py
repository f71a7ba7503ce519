"""What goes into a support bundle: how things are, without what users wrote, named or computed.

Everything is chosen by name: a field or a file that is not listed here does not go in. Texts pass
only as far as `log_sentences` knows them for ours.
"""

from __future__ import annotations

import io
import json
import platform
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from notebookos_ext.live.log_sentences import GAP, Sentences

LINES_PER_LOG = 5000
LOG_FILES = ("agent.log.3", "agent.log.2", "agent.log.1", "agent.log", "agent.err")
PLAIN = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}(\.json)?|host-\d{1,4}"
    r"|[0-9a-f]{2}|[0-9a-f]{64}|kernels|hosts|store|chunks|incoming|corrupt|replicas|servers|\d{1,3}"
    r"|token|hash_seed|lock|member\.wal|damaged\.wal|snapshots?|sessions|usage\.\w{1,12}"
    r"|agent\.(log(\.\d)?|err|out|pid|json)"
)
"""Names of files and folders that are ours; all others are left out of the list of files."""

SETTINGS = (
    "host", "gpus", "simulated_gpus", "lease_s", "compact_entries", "compact_bytes",
    "consensus_engine",
)  # fmt: skip
CLUSTER = ("version", "at", "backend", "policy", "durable", "simulated")
HOST = ("id", "state", "draining", "replica_count")
DEVICE = ("index", "kind", "memory_bytes", "memory_used_bytes", "utilization_percent")
KERNEL = ("id", "state", "epoch", "replica_count", "next_replica_count", "gpus_per_cell")
REPLICA = ("id", "number", "host_id", "state", "pid", "lag", "executor")
MEMBER = (
    "role", "votes", "term", "last_index", "commit_index", "applied_index", "snapshot_index",
    "log_bytes", "leader_changes",
)  # fmt: skip
CELL = ("gpus", "replica_id", "host_id", "state", "submitted", "waited_ms", "ran_ms")
WAITING = ("kernel_id", "position", "gpus", "since")

ABOUT = """\
A support bundle of NotebookOS for Jupyter.

In it: what `jupyter notebookos doctor` found, versions, settings of the host agents, the names and
sizes of files in the state folder, what running servers say of hosts, kernels, replicas and cells,
and the logs of host agents.

Not in it: code, outputs, names of variables and notebooks, users' names, tokens, keys, the contents
of any log of a kernel, and the replicas' own output. In logs only sentences of NotebookOS itself
are shown, with "…" for whatever was put into them. Look through it before you send it.
"""

Json = dict[str, Any]


def bundle(
    state: Path, *, found: Sequence[Json], servers: Sequence[Json], sentences: Sentences
) -> dict[str, bytes]:
    """The files of a bundle by name. `found` is what the doctor says, `servers` what servers do."""
    files = {
        "README.txt": ABOUT,
        "doctor.json": _json([_finding(each, sentences) for each in found]),
        "system.json": _json(
            {"python": platform.python_version(), "system": platform.system(),
             "release": platform.release(), "machine": platform.machine()}
        ),
        "servers.json": _json([cluster(each, sentences) for each in servers]),
        "files.txt": "\n".join(_listed(state)) + "\n",
    }  # fmt: skip
    for folder in sorted(state.glob("**/hosts/*")):
        name = "/".join(_plain(part) for part in folder.relative_to(state).parts)
        files[f"{name}/settings.json"] = _json(_settings(folder / "agent.json"))
        for log in LOG_FILES:
            if (folder / log).is_file():
                lines = (folder / log).read_text("utf-8", "replace").splitlines()
                shown = sentences.lines(lines[-LINES_PER_LOG:])
                files[f"{name}/{log}"] = "\n".join(shown) + "\n"
    return {name: text.encode() for name, text in files.items()}


def packed(files: Mapping[str, bytes], *, now: float) -> bytes:
    """A gzipped tar of them."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"notebookos-support/{name}")
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(now)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def cluster(view: Json, sentences: Sentences) -> Json:
    """What a server says of its cluster, without what is the users'."""
    return {
        **_chosen(view, CLUSTER),
        "hosts": [
            {
                **_chosen(host, HOST),
                "devices": [
                    {**_chosen(d, DEVICE), "bound": d.get("binding") is not None}
                    for d in host.get("devices", ())
                ],
            }
            for host in view.get("hosts", ())
        ],
        "kernels": [_kernel(kernel, sentences) for kernel in view.get("kernels", ())],
        "waiting": [
            {**_chosen(w, WAITING), "reason": _said(w.get("reason"), sentences)}
            for w in view.get("waiting", ())
        ],
        "warnings": [
            {
                **_chosen(w, ("kernel_id", "at")),
                "message": _said(w.get("message"), sentences),
            }
            for w in view.get("warnings", ())
        ],
    }


def _kernel(kernel: Json, sentences: Sentences) -> Json:
    replicas = []
    for replica in kernel.get("replicas", ()):
        member = replica.get("member")
        told = None
        if member is not None:
            told = {**_chosen(member, MEMBER), "failure": _said(member.get("failure"), sentences)}
        replicas.append({**_chosen(replica, REPLICA), "member": told})
    return {
        **_chosen(kernel, KERNEL),
        "replicas": replicas,
        "held": len(kernel.get("held", ())),
        "not_durable": len(kernel.get("not_durable", ())),
        "cells": [_chosen(cell, CELL) for cell in kernel.get("cells", ())],
    }


def _finding(finding: Json, sentences: Sentences) -> Json:
    return {
        "subject": finding["subject"],
        "level": finding["level"],
        "said": _said(finding["said"], sentences),
    }


def _said(text: object, sentences: Sentences) -> str:
    return "" if not text else sentences.shown(str(text)) or GAP


def _chosen(value: Json, names: Sequence[str]) -> Json:
    return {name: value[name] for name in names if name in value}


def _settings(path: Path) -> Json:
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    address = str(found.get("checkpoint_store", ""))
    return {
        **_chosen(found, SETTINGS),
        "preload": len(found.get("preload", ())),
        "checkpoint_store": "s3" if address.startswith("s3:") else "folder",
    }


def _listed(state: Path) -> Iterator[str]:
    for path in sorted(state.rglob("*")):
        try:
            status = path.lstat()
        except OSError:
            continue
        name = "/".join(_plain(part) for part in path.relative_to(state).parts)
        yield f"{status.st_mode & 0o7777:04o} {status.st_size:>12} {int(status.st_mtime)} {name}"


def _plain(name: str) -> str:
    return name if PLAIN.fullmatch(name) else GAP


def _json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"
