"""Programs in the manner of raftos's documentation, each node a process of its own."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from raftos_nodes import HANG_S, free_addresses

PROGRAMS = Path(__file__).resolve().parent / "programs"
ROOT = PROGRAMS.parent.parent.parent


class Programs:
    """Running programs, one a node, and what they have printed that nobody has asked for yet."""

    def __init__(self, name: str, folder: Path, addresses: list[str]) -> None:
        self.name = name
        self.folder = folder
        self.addresses = addresses
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self._readers: dict[str, threading.Thread] = {}
        self._lines: queue.Queue[tuple[str, str]] = queue.Queue()
        self._unheard: list[tuple[str, str]] = []

    def start(self, node: str) -> None:
        others = [address for address in self.addresses if address != node]
        self.processes[node] = subprocess.Popen(
            [sys.executable, "-W", "error", PROGRAMS / self.name, self.folder, node, *others],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(self.folder)},
        )
        self._readers[node] = threading.Thread(target=self._read, args=(node,))
        self._readers[node].start()

    def _read(self, node: str) -> None:
        stdout = self.processes[node].stdout
        assert stdout is not None
        for line in stdout:
            self._lines.put((node, line.rstrip()))

    def hear(self, *nodes: str, line: str | None = None) -> tuple[str, str]:
        """The next line, of these nodes if some are named; and exactly this one if it is given."""
        while True:
            for said in self._unheard:
                if (not nodes or said[0] in nodes) and (line is None or said[1] == line):
                    self._unheard.remove(said)
                    return said
            self._unheard.append(self._lines.get(timeout=HANG_S))

    def ask(self, node: str) -> str:
        stdin = self.processes[node].stdin
        assert stdin is not None
        stdin.write("\n")
        stdin.flush()
        return self.hear(node)[1]

    def end(self, node: str) -> int:
        """Let it end by itself."""
        stdin = self.processes[node].stdin
        assert stdin is not None
        stdin.close()
        return self.processes[node].wait(timeout=HANG_S)

    def kill(self, *nodes: str) -> None:
        for node in nodes:
            process = self.processes.pop(node)
            process.kill()
            process.wait()
            self._readers.pop(node).join()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()


@contextmanager
def running(name: str, folder: Path, addresses: list[str]) -> Iterator[Programs]:
    programs = Programs(name, folder, addresses)
    try:
        for node in addresses:
            programs.start(node)
        yield programs
    finally:
        programs.kill(*programs.processes)


def test_whoever_leads_goes_on_counting(tmp_path: Path) -> None:
    addresses = free_addresses(3)
    with running("counter.py", tmp_path, addresses) as programs:
        first, _ = programs.hear(line="leads")
        assert programs.hear(first) == (first, "counted 1 [1]")
        programs.kill(first)
        second, _ = programs.hear(line="leads")
        assert programs.hear(second) == (second, "counted 2 [1, 2]")
    # All were killed at once.
    with running("counter.py", tmp_path, addresses) as programs:
        third, _ = programs.hear(line="leads")
        assert programs.hear(third) == (third, "counted 3 [1, 2, 3]")
    assert (tmp_path / third.replace(":", "_") / "raftos" / "member.wal").exists()


def test_work_is_started_and_stopped_with_leading(tmp_path: Path) -> None:
    addresses = free_addresses(3)
    with running("hooks.py", tmp_path, addresses) as programs:
        leader, _ = programs.hear(line="start True")
        others = [node for node in addresses if node != leader]
        assert [programs.hear(node)[1] for node in others] == ["stop False", "stop False"]
        assert {programs.ask(node) for node in addresses} == {f"leader {leader}"}
        # The leader's machine stops for a while: when it goes on, another has taken over.
        programs.processes[leader].send_signal(signal.SIGSTOP)
        successor, _ = programs.hear(*others, line="start True")
        programs.processes[leader].send_signal(signal.SIGCONT)
        assert programs.hear(leader) == (leader, "stop False")
        while (said := programs.ask(leader)) != f"leader {successor}":
            assert said == "leader None"
        assert [programs.end(node) for node in addresses] == [0, 0, 0]


@pytest.mark.parametrize("when", ["running", "ended"])
def test_stop_needs_no_loop_that_runs(tmp_path: Path, when: str) -> None:
    (address,) = free_addresses(1)
    code = f"""
import asyncio
import notebookos_ext.raftos as raftos
raftos.stop()
raftos.configure({{"log_path": {str(tmp_path)!r}, "secret_key": b"x", "heartbeat_interval": 0.05}})
async def main():
    await raftos.stop()
    await raftos.register({address!r})
    await raftos.wait_until_leader({address!r})
    await raftos.Replicated("x").set(1)
    if {when!r} == "running":
        await raftos.stop()
loop = asyncio.new_event_loop()
loop.run_until_complete(main())
raftos.stop() if {when!r} == "ended" else None
loop.run_until_complete(raftos.register({address!r}))
print(loop.run_until_complete(raftos.Replicated("x").get()))
raftos.stop()
loop.close()
"""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (result.stdout, result.stderr) == ("1\n", "")
