"""A real server, its host agents and kernels, as the harness breaks and reads them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from chaos.links import Links
from live_rig import gone, started_by, until
from server_rig import Message, Server, running_server

TESTS = Path(__file__).resolve().parent.parent
DUMPS = "NOTEBOOKOS_CHAOS_DUMPS"
SCHEDULING = "--NotebookOSApp.scheduling"
LEASE_S = 6.0
STOPPED_S = 12.0
"""Longer than what is stopped only for a while."""
REPAIR_S = 120.0
"""Ends a run in which the cluster never gets whole again; nothing is measured by it."""
DUMP_S = 5.0


class World:
    """One cluster from its first server to its last process."""

    def __init__(self, folder: Path, *, hosts: int = 4, scheduling: Sequence[str] = ()) -> None:
        """`scheduling` is what the scheduler may do besides, as `name=value`."""
        self.folder = folder
        self.scheduling = [word for text in scheduling for word in (SCHEDULING, text)]
        self.hosts = [f"host-{number}" for number in range(1, hosts + 1)]
        self.mark = f"chaos-{uuid.uuid4().hex[:8]}"
        # Socket paths are short.
        self.sockets_base = Path(tempfile.mkdtemp(prefix="nbc"))
        self.dumps = folder / "dumps"
        self.dumps.mkdir()
        self.state = folder / "data" / "notebookos"
        self.store = self.state / "store"
        self.kernels: list[str] = []
        self.server: Server
        self._life = contextlib.ExitStack()
        digest = hashlib.blake2b(str(self.state.resolve()).encode(), digest_size=4).hexdigest()
        self.sockets = self.sockets_base / f"nbos-{os.getuid()}" / digest
        self.sockets.mkdir(mode=0o700, parents=True)
        self.sockets.parent.chmod(0o700)
        self.links = Links(self.sockets, self.hosts)

    def start(self) -> None:
        """Start the first server."""
        self.links.start()
        self.start_server()
        until(lambda: self.ready_hosts() == self.hosts, "all hosts are there")

    def start_server(self) -> None:
        """A server on the same state folder; it has the kernels of the one before."""
        count = len(self.hosts)
        path = [str(TESTS / "chaos" / "dump"), os.environ.get("PYTHONPATH", str(TESTS.parent))]
        self.server = self._life.enter_context(
            running_server(
                self.folder,
                f"--NotebookOSApp.hosts={count}",
                f"--NotebookOSApp.max_hosts={count}",
                f"--NotebookOSApp.lease_s={LEASE_S}",
                f"--NotebookOSApp.stopped_replica_s={STOPPED_S}",
                "--NotebookOSApp.poll_s=1",
                "--NotebookOSApp.gpus=simulated",
                "--NotebookOSApp.preload=['numpy']",
                *self.scheduling,
                mark=self.mark,
                environment={
                    "PYTHONPATH": os.pathsep.join(path),
                    "TMPDIR": str(self.sockets_base),
                    DUMPS: str(self.dumps),
                },
            )
        )
        if self.kernels:
            # The list waits until the kernels of the earlier server are back.
            listed = {kernel["id"] for kernel in self.server.ask("GET", "api/kernels")}
            assert set(self.kernels) <= listed, "kernels of the killed server are not back"

    def kill_server(self) -> None:
        """Kill -9."""
        self.server.process.kill()
        self.server.process.wait()
        self._life.close()
        shutil.copy(self.folder / "log", self.folder / f"log.{self.server.process.pid}")

    def kill_machine(self) -> None:
        """Everything at once."""
        everything = started_by(self.mark)
        for pid in everything:
            kill(pid)
        self.server.process.wait()
        self._life.close()
        for pid in everything:
            until(lambda pid=pid: gone(pid), f"process {pid} is gone")

    # ---- reading --------------------------------------------------------------------------------

    def view(self) -> Message:
        """What the sidebar shows."""
        found: Message = self.server.ask("GET", "notebookos/api/cluster")
        return found

    def ready_hosts(self) -> list[str]:
        """Names of the hosts that are there."""
        return sorted(h["id"] for h in self.view()["hosts"] if h["state"] == "ready")

    def agents(self) -> dict[str, int]:
        """Process ids of the agents that are there."""
        return {h["id"]: h["pid"] for h in self.view()["hosts"] if h["state"] == "ready"}

    def replicas(self, kernel: str) -> list[Message]:
        """Replicas that have a process; the executor first."""
        kernels = [k for k in self.view()["kernels"] if k["id"] == kernel]
        found = [r for k in kernels for r in k["replicas"] if r["pid"] and r["state"] != "lost"]
        return sorted(found, key=lambda r: (not r["executor"], r["number"]))

    def damage(self) -> str:
        """What is not as it should be between cells; empty when all is whole."""
        view = self.view()
        ready = [h["id"] for h in view["hosts"] if h["state"] == "ready"]
        if missing := sorted(set(self.hosts) - set(ready)):
            return f"{', '.join(missing)} not there"
        shown = [h["pid"] for h in view["hosts"]]
        shown += [r["pid"] for k in view["kernels"] for r in k["replicas"] if r["pid"]]
        if any(gone(pid) for pid in shown):
            return "an end is not noticed yet"
        held = [d["id"] for h in view["hosts"] for d in h["devices"] if d["binding"]]
        if held:
            return f"{', '.join(held)} bound"
        for kernel in view["kernels"]:
            idle = [r for r in kernel["replicas"] if r["state"] == "idle" and r["pid"]]
            if len(idle) != 3 or kernel["state"] != "idle":
                return f"kernel {kernel['id']} is {kernel['state']} with {len(idle)} idle replicas"
            if any(r["lag"] for r in idle):
                return f"a replica of {kernel['id']} lags"
            if kernel["not_durable"]:
                return f"{kernel['not_durable']} of {kernel['id']} not durable"
        if len(view["kernels"]) != len(self.kernels):
            return f"{len(view['kernels'])} kernels instead of {len(self.kernels)}"
        return ""

    def until_whole(self) -> float:
        """Wait until all is as it should be; how long that took, in seconds."""
        began = time.monotonic()
        while damage := self.damage():
            assert time.monotonic() - began < REPAIR_S, f"not repaired: {damage}"
            time.sleep(0.05)
        return time.monotonic() - began

    def dump(self) -> Path:
        """Have every process of ours write down what it does; the folder with all of it."""
        with contextlib.suppress(OSError, AssertionError):
            (self.dumps / "cluster.json").write_text(json.dumps(self.view(), indent=1))
        pids = [pid for pid in started_by(self.mark) if _takes_usr1(pid)]
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGUSR1)
        deadline = time.monotonic() + DUMP_S
        while time.monotonic() < deadline:
            if all((self.dumps / f"{pid}.txt").exists() for pid in pids):
                break
            time.sleep(0.1)
        kept = Path(tempfile.mkdtemp(prefix="chaos-dump-"))
        shutil.copytree(self.dumps, kept, dirs_exist_ok=True)
        for log in [*self.folder.glob("log*"), *self.state.glob("hosts/*/agent.*")]:
            name = str(log.relative_to(self.folder)).replace("/", "-")
            shutil.copy(log, kept / name)
        return kept

    # ---- the end --------------------------------------------------------------------------------

    def end(self) -> list[str]:
        """Delete the kernels, end the server; sentences about what is left."""
        for kernel in self.kernels:
            self.server.ask("DELETE", f"api/kernels/{kernel}")
        until(lambda: not self.view()["kernels"], "no kernel is left")
        self._life.close()
        return [*self._left_processes(), *self._left_files(), *self._left_sockets()]

    def close(self) -> None:
        """Whatever happened: nothing of ours goes on."""
        with contextlib.suppress(Exception):
            self.links.heal()
        for pid in started_by(self.mark):
            kill(pid)
        self._life.close()
        self.links.stop()
        shutil.rmtree(self.sockets_base, ignore_errors=True)

    def _left_processes(self) -> Iterator[str]:
        processes = [psutil.Process(pid) for pid in started_by(self.mark)]
        # Those that were told to end may still be on their way.
        _, alive = psutil.wait_procs(processes, timeout=30)
        yield from (f"process {p.pid} is left: {_words(p)}" for p in alive)

    def _left_files(self) -> Iterator[str]:
        for pattern in ("hosts/*/kernels/*", "hosts/*/replicas/*", "kernels/*", "store/**/*"):
            yield from (f"{p} is left" for p in self.state.glob(pattern) if p.is_file())

    def _left_sockets(self) -> Iterator[str]:
        listed = Path("/proc/net/unix").read_text()
        for line in listed.splitlines():
            path = line.rpartition(" ")[2]
            if path.startswith(str(self.sockets)) and not path.endswith(".peer"):
                yield f"the socket {path} is left"


def _takes_usr1(pid: int) -> bool:
    """Whether it has a handler; another one would end."""
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) & 1 << (signal.SIGUSR1 - 1))
    return False


def _words(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return "?"


def kill(pid: int | None, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process that may be gone."""
    if pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


Heal = Callable[[], None]
Json = dict[str, Any]
