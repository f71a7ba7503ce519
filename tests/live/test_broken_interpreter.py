"""A kernelspec whose interpreter cannot run replicas: a sentence, and no waiting for ever."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager
from live_rig import private_cluster, snapshot, until

from notebookos_ext.errors import InvalidRequest
from notebookos_ext.live.cluster_runtime import ClusterRuntime


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterRuntime]:
    with private_cluster(hosts=1, max_hosts=1, replica_count=1) as runtime:
        yield runtime


def manager(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> KernelManager:
    """A kernelspec that starts a shell script in the interpreter's place."""
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\n{script}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    spec = folder / "path" / "kernels" / "broken"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(
        json.dumps(
            {
                "argv": [str(python), "-m", "notebookos_ext.kernel", "-f", "{connection_file}"],
                "display_name": "Broken",
                "language": "python",
                "metadata": {"kernel_provisioner": {"provisioner_name": "notebookos"}},
            }
        )
    )
    monkeypatch.setenv("JUPYTER_PATH", str(folder / "path"))
    return KernelManager(kernel_name="broken")


def test_an_interpreter_that_lacks_something_is_refused_at_once(
    cluster: ClusterRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = manager(tmp_path, monkeypatch, f'exec {sys.executable} -I -S "$@"')
    with pytest.raises(InvalidRequest, match="lacks ipykernel"):
        broken.start_kernel(env=dict(os.environ))
    assert snapshot(cluster).kernels == ()


def test_a_kernel_that_never_answers_is_given_up_with_the_reason(
    cluster: ClusterRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = manager(
        tmp_path, monkeypatch, 'case "$*" in *template*) echo "no such library"; exit 3;; esac'
    )
    broken.start_kernel(env=dict(os.environ))
    assert until(lambda: not broken.is_alive(), "the kernel is given up")
    warned = [w.message for w in snapshot(cluster).warnings if w.kernel_id == broken.kernel_id]
    assert any("given up, for it cannot start" in message for message in warned)
    broken.shutdown_kernel(now=True)
    assert snapshot(cluster).kernels == ()
