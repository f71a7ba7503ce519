"""A server that was killed: the next one of the same state folder takes its agents over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from live_rig import HANG_S, gone, snapshot, until

from notebookos_ext.cluster.model import KernelId, KernelSpec
from notebookos_ext.live.cluster_runtime import ClusterRuntime
from notebookos_ext.live.kernel_records import LaunchPlan
from notebookos_ext.notebook_settings import NotebookSettings
from notebookos_ext.settings import Settings

SERVER = """
import json, os, sys, time
sys.path.insert(0, {tests!r})
from live_rig import snapshot, until
from notebookos_ext.cluster.model import KernelId, KernelSpec
from notebookos_ext.live.cluster_runtime import ClusterRuntime
from notebookos_ext.live.kernel_records import LaunchPlan
from notebookos_ext.notebook_settings import NotebookSettings
from notebookos_ext.settings import Settings

runtime = ClusterRuntime(Settings(hosts=2, state_folder={state!r}, lease_s=60.0))
runtime.start()
kernel = KernelId("before")
runtime.router.open_kernel(kernel, session_key=b"key")
runtime.controller.start_kernel(
    KernelSpec(kernel=kernel, replica_count=1),
    LaunchPlan(name="n", python=sys.executable, env=dict(os.environ), cwd="/", session_key=b"key"),
    NotebookSettings(),
).result()
until(lambda: len(snapshot(runtime).hosts) == 2, "two hosts")
pids = lambda: [r.pid for k in snapshot(runtime).kernels for r in k.replicas if r.pid]
agents = {{h.id: h.pid for h in snapshot(runtime).hosts}}
print(json.dumps([until(pids, "a replica")[0], agents]), flush=True)
time.sleep(600)
"""


def test_agents_outlive_a_killed_server_and_serve_the_next(tmp_path: Path) -> None:

    tests = str(Path(__file__).resolve().parent.parent)
    script = SERVER.format(tests=tests, state=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as old:
        assert old.stdout is not None
        replica, agents = json.loads(old.stdout.readline())
        old.send_signal(signal.SIGKILL)
        old.wait()
    assert not gone(replica)

    runtime = ClusterRuntime(Settings(hosts=3, state_folder=str(tmp_path), lease_s=60.0))
    runtime.start()
    try:
        until(lambda: len(snapshot(runtime).hosts) == 3, "three hosts")
        found = {host.id: host.pid for host in snapshot(runtime).hosts}
        assert {host: found[host] for host in agents} == agents
        until(lambda: gone(replica), "the replica that nobody knows has ended")
        plan = LaunchPlan(
            name="n", python=sys.executable, env=dict(os.environ), cwd="/", session_key=b"key"
        )
        kernel = KernelId("after")
        runtime.router.open_kernel(kernel, session_key=b"key")
        runtime.controller.start_kernel(KernelSpec(kernel=kernel), plan, NotebookSettings()).result(
            HANG_S
        )
        until(lambda: [k.state for k in snapshot(runtime).kernels] == ["idle"], "an idle kernel")
    finally:
        runtime.stop()
    assert all(gone(pid) for pid in found.values())


def test_an_agent_that_cannot_run_is_told_with_its_own_words(tmp_path: Path) -> None:
    (tmp_path / "hosts").mkdir()
    (tmp_path / "hosts" / "host-1").write_text("in the way")
    runtime = ClusterRuntime(Settings(hosts=1, max_hosts=1, state_folder=str(tmp_path)))
    runtime.start()
    try:
        warned = until(lambda: snapshot(runtime).warnings, "a warning")
        assert "host-1 could not be started" in warned[0].message
        (tmp_path / "hosts" / "host-1").unlink()
        until(lambda: snapshot(runtime).hosts, "the host, once nothing is in its way")
    finally:
        runtime.stop()


def test_two_servers_of_one_user_do_not_meet(tmp_path: Path) -> None:
    settings = Settings(hosts=1, max_hosts=1, state_folder=str(tmp_path))
    first, second = ClusterRuntime(settings), ClusterRuntime(settings)
    for runtime in (first, second):
        runtime.start()
    try:
        pids = [
            until(lambda runtime=runtime: snapshot(runtime).hosts, "a host")[0].pid
            for runtime in (first, second)
        ]
        assert len(set(pids)) == 2
        assert first.folder.hash_seed == second.folder.hash_seed
    finally:
        for runtime in (first, second):
            runtime.stop()
