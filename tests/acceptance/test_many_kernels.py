"""Many kernels open at once in one Jupyter server, three replicas and a browser tab each.

What each costs is printed as one line (`pytest -s`, or the captured output): descriptors of the
server, memory as proportional set size of every process, and time. Only the counts are asserted.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
import pytest
from live_rig import gone, started_by, until
from server_rig import Server, Tab, running_server

FEW, MANY = 8, 50
HOSTS = 4
AT_ONCE = 3
"""Kernels that start at the same time; more would only wait for each other's processor."""
DESCRIPTORS_PER_KERNEL = 80
"""Most that a kernel with a tab may take in the server: about 48 were counted."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running_server(tmp_path, f"--NotebookOSApp.hosts={HOSTS}", mark="many") as it:
        yield it
    until(lambda: not started_by("many"), "no process of the server is left")


def descriptors(server: Server) -> int:
    return int(psutil.Process(server.process.pid).num_fds())


def memory_bytes() -> int:
    """Of the server and all that it started; pages that they share count once."""
    total = 0
    for pid in started_by("many"):
        try:
            total += int(psutil.Process(pid).memory_full_info().pss)
        except psutil.Error:  # it has just ended
            continue
    return total


def open_and_use(server: Server, count: int) -> None:
    # What the first kernel makes for all: connections to every host, contexts, thread pools.
    until(lambda: len(server.ask("GET", "notebookos/api/cluster")["hosts"]) == HOSTS, "all hosts")
    first = server.start_kernel()
    server.wait_for_replicas(first)
    with closing(Tab(server, first)) as tab:
        tab.run("pass")
    server.ask("DELETE", f"api/kernels/{first}")
    until(lambda: server.status_of(f"notebookos/api/kernels/{first}") == 404, "it is gone")

    before, memory_before = descriptors(server), memory_bytes()
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as starters:
        kernels = list(starters.map(lambda _: server.start_kernel(), range(count)))
        pids = [pid for found in starters.map(server.wait_for_replicas, kernels) for pid in found]
    opened_s = time.monotonic() - began
    assert len(set(kernels)) == count
    assert len(set(pids)) == 3 * count

    with ExitStack() as stack:
        tabs = [stack.enter_context(closing(Tab(server, kernel))) for kernel in kernels]
        for number, tab in enumerate(tabs):
            tab.run(f"mine = {number}")
        # All at once, as when every notebook is run from a menu.
        cells = [tab.execute("print(mine)") for tab in tabs]
        for number, (tab, cell) in enumerate(zip(tabs, cells, strict=True)):
            assert tab.output(cell, str(number))["content"]["text"] == f"{number}\n"
            assert tab.reply(cell)["status"] == "ok"
        used, memory = descriptors(server) - before, memory_bytes() - memory_before
        report = (
            f"{count} kernels, {3 * count} replicas, a tab each, started in {opened_s:.1f} s; "
            f"each {used / count:.1f} descriptors of the server, {memory / count / 1e6:.0f} MB PSS"
        )
        print(f"\n{report}")  # noqa: T201 - what it is for
        assert used <= count * DESCRIPTORS_PER_KERNEL
        assert descriptors(server) < resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)[0]

    with ThreadPoolExecutor(AT_ONCE) as enders:
        list(enders.map(lambda kernel: server.ask("DELETE", f"api/kernels/{kernel}"), kernels))
    assert server.ask("GET", "api/kernels") == []
    until(lambda: all(gone(pid) for pid in pids), "no replica is left")
    until(lambda: descriptors(server) <= before + AT_ONCE, "the descriptors are given back")


def test_eight_kernels_at_once(server: Server) -> None:
    open_and_use(server, FEW)


@pytest.mark.full
@pytest.mark.apart
@pytest.mark.timeout(1200)
def test_fifty_kernels_at_once(server: Server) -> None:
    open_and_use(server, MANY)
