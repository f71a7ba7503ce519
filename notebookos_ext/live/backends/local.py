"""Virtual hosts on this machine: one host agent process each.

Agents are processes in their own right: own session, a lease, adoptable by the next server of the
same state folder. This backend starts them, watches them by their process (pidfd), starts them
again with growing pauses, and never talks to them: their control connections are the controller's.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import msgspec

from notebookos_ext.cluster.messages.startup import AgentConfig
from notebookos_ext.cluster.model import HostId
from notebookos_ext.live.backends.base import BackendListener
from notebookos_ext.live.state_folder import StateFolder
from notebookos_ext.settings import Settings
from notebookos_ext.storage.private_files import write_private

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
LOOK_S = 0.02
_NOT_FOR_AGENTS = ("JPY_PARENT_PID", "JPY_SESSION_NAME", "PYTHONHASHSEED")

log = logging.getLogger(__name__)


class _Host:
    """What is known of one agent's process."""

    def __init__(self, host: HostId, control_path: Path) -> None:
        self.host = host
        self.control_path = control_path
        self.process: subprocess.Popen[bytes] | None = None
        self.pid = 0
        self.pidfd = -1
        self.pause_s = 0.0
        self.task: asyncio.Task[None] | None = None
        self.released = False
        self.ended = asyncio.Event()
        """Set while no process of it is watched."""
        self.ended.set()


class LocalBackend:
    """`Backend` for this machine."""

    name = "local"
    boot_s = 5.0

    def __init__(
        self,
        *,
        folder: StateFolder,
        settings: Settings,
        store: str,
        store_namespace: str,
        private: bool,
        needed: Collection[HostId] = (),
    ) -> None:
        """`store` is the address of the checkpoint store. `needed` are hosts that have logs of
        kernels; they come besides those that are set.
        """
        self.max_hosts = settings.max_hosts
        self._folder = folder
        self._settings = settings
        self._store = store
        self._store_namespace = store_namespace
        self._private = private
        self._needed = frozenset(needed)
        self._hosts: dict[HostId, _Host] = {}
        self._leaving: dict[HostId, _Host] = {}
        """Given back, but their agent has not ended or their folder is still being deleted."""
        self._listener: BackendListener | None = None
        self._stopping = False

    async def start(self, listener: BackendListener) -> None:
        """Adopt every agent that listens in the socket folder, start those that are missing."""
        self._listener = listener
        wanted = {HostId(f"host-{n}") for n in range(1, self._settings.hosts + 1)}
        found = {HostId(p.stem) for p in self._folder.sockets.glob("host-*.control")}
        for host in sorted(wanted | found | self._needed):
            self._add(host, pid=_listener_pid(self._control_path(host)) if host in found else 0)

    @property
    def host_count(self) -> int:
        """Those that leave take up room until they are gone, and their folder with them."""
        return len(self._hosts) + len(self._leaving)

    async def request_hosts(self, count: int) -> None:
        """Start hosts until there are `count`, at most `max_hosts`."""
        for number in itertools.count(1):
            if self.host_count >= min(count, self.max_hosts) or self._stopping:
                return
            # One that was given back may come again.
            host = HostId(f"host-{number}")
            if host not in self._hosts and host not in self._leaving:
                self._add(host, pid=0)

    async def release_host(self, host: HostId, *, grace_s: float) -> None:
        """Wait for its agent to end, kill it if it does not, and delete its folder."""
        entry = self._hosts.pop(host, None)
        if entry is None:
            return
        entry.released = True
        self._leaving[host] = entry
        if entry.task is not None and not entry.task.done():
            entry.task.cancel()
        try:
            await asyncio.wait_for(entry.ended.wait(), grace_s)
        except TimeoutError:
            log.warning("host agent %s did not end in %g s; killed", host, grace_s)
            _kill(entry.pid)
            await entry.ended.wait()
        await asyncio.to_thread(shutil.rmtree, self._folder.host(host), ignore_errors=True)
        del self._leaving[host]

    def attached(self, host: HostId) -> None:
        """The agent answered: it works, so the next pause is short."""
        if host in self._hosts:
            self._hosts[host].pause_s = 0.0

    def failed(self, host: HostId) -> None:
        """Kill what is left of the agent; its end starts the next one."""
        entry = self._hosts.get(host)
        if entry is not None and entry.pidfd >= 0 and not self._stopping:
            _kill(entry.pid)

    async def stop(self, *, grace_s: float) -> None:
        """Wait for every agent to end, kill those that do not."""
        self._stopping = True
        for entry in self._hosts.values():
            if entry.task is not None and not entry.task.done():
                entry.task.cancel()
                if entry.process is not None and entry.pidfd < 0:
                    # It was started but does not listen yet, so nobody told it to end.
                    entry.process.terminate()
                    self._watch(entry, entry.process.pid)
        try:
            await asyncio.wait_for(self._all_ended(), grace_s)
        except TimeoutError:
            for entry in (*self._hosts.values(), *self._leaving.values()):
                if entry.pidfd >= 0:
                    log.warning("host agent %s did not end in %g s; killed", entry.host, grace_s)
                    _kill(entry.pid)
            await self._all_ended()

    async def _all_ended(self) -> None:
        for entry in (*self._hosts.values(), *self._leaving.values()):
            await entry.ended.wait()

    # ---- starting ---------------------------------------------------------------------------

    def _control_path(self, host: HostId) -> Path:
        return self._folder.sockets / f"{host}.control"

    def _add(self, host: HostId, *, pid: int) -> None:
        entry = _Host(host, self._control_path(host))
        self._hosts[host] = entry
        if pid:
            self._up(entry, pid, adopted=True)
        else:
            self._start_later(entry)

    def _up(self, entry: _Host, pid: int, *, adopted: bool) -> None:
        self._watch(entry, pid)
        if self._listener is not None and entry.pidfd >= 0:
            self._listener.host_up(entry.host, str(entry.control_path), adopted=adopted)

    def _start_later(self, entry: _Host) -> None:
        if not self._stopping and (entry.task is None or entry.task.done()):
            entry.task = asyncio.create_task(self._start(entry))

    async def _start(self, entry: _Host) -> None:
        """Start the agent after its pause and tell when it listens, or why it does not."""
        await asyncio.sleep(entry.pause_s)
        entry.pause_s = min(max(entry.pause_s * 2, FIRST_PAUSE_S), LONGEST_PAUSE_S)
        try:
            process = self._spawn(entry)
        except OSError as error:
            self._down(entry, f"its agent could not be started: {error}")
            return
        while (pid := _listener_pid(entry.control_path)) == 0:
            if process.poll() is not None:
                entry.process = None
                self._down(entry, self._last_words(entry.host, process.returncode))
                return
            await asyncio.sleep(LOOK_S)
        self._up(entry, pid, adopted=pid != process.pid)

    def _spawn(self, entry: _Host) -> subprocess.Popen[bytes]:
        folder = self._folder.host(entry.host)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        config = folder / "agent.json"
        write_private(config, msgspec.json.encode(self._config(entry.host, folder)).decode())
        environment = {k: v for k, v in os.environ.items() if k not in _NOT_FOR_AGENTS}
        with (folder / "agent.out").open("wb") as output:
            entry.process = subprocess.Popen(
                [sys.executable, "-m", "notebookos_ext.agent", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=folder,
                start_new_session=True,
                # What a killed process leaves is swept only when its agents are gone too.
                pass_fds=(self._folder.lock,) if self._private else (),
            )
        log.debug("host agent %s started as process %d", entry.host, entry.process.pid)
        return entry.process

    def _config(self, host: HostId, folder: Path) -> AgentConfig:
        settings = self._settings
        return AgentConfig(
            host=host,
            machine=socket.gethostname(),
            folder=str(folder),
            socket_folder=str(self._folder.sockets),
            token_file=str(self._folder.token_file),
            checkpoint_store=self._store,
            store_namespace=self._store_namespace,
            lock_folder=str(self._folder.device_locks),
            gpus=settings.gpus,
            simulated_gpus=settings.simulated_gpus_per_host,
            hash_seed=self._folder.hash_seed,
            templates=(sys.executable,),
            preload=settings.preload,
            lease_s=settings.lease_s,
            compact_entries=settings.compact_entries,
            compact_bytes=settings.compact_bytes,
            stopped_replica_s=settings.stopped_replica_s,
            consensus_engine=settings.consensus_engine,
        )

    def _last_words(self, host: HostId, code: int) -> str:
        try:
            lines = (self._folder.host(host) / "agent.out").read_text("utf-8", "replace")
        except OSError:
            lines = ""
        said = [line.strip() for line in lines.splitlines() if line.strip()]
        return said[-1] if said else f"its agent ended with status {code} and said nothing"

    # ---- watching ---------------------------------------------------------------------------

    def _watch(self, entry: _Host, pid: int) -> None:
        if entry.pidfd >= 0 and entry.pid == pid:
            return
        self._unwatch(entry)
        entry.pid = pid
        try:
            entry.pidfd = os.pidfd_open(pid)
        except OSError:
            self._ended(entry)
            return
        entry.ended.clear()
        asyncio.get_running_loop().add_reader(entry.pidfd, self._ended, entry)

    def _unwatch(self, entry: _Host) -> None:
        if entry.pidfd >= 0:
            asyncio.get_running_loop().remove_reader(entry.pidfd)
            os.close(entry.pidfd)
            entry.pidfd = -1
            entry.ended.set()

    def _ended(self, entry: _Host) -> None:
        self._unwatch(entry)
        reason = "its agent process ended"
        if entry.process is not None and entry.process.pid == entry.pid:
            code = entry.process.wait()
            entry.process = None
            if code < 0:
                reason = f"its agent was killed by signal {-code}"
            elif code > 0:
                reason = self._last_words(entry.host, code)
        self._down(entry, reason)

    def _down(self, entry: _Host, reason: str) -> None:
        if self._stopping or entry.released:
            return
        if self._listener is not None:
            self._listener.host_down(entry.host, reason)
        # Called from the task that starts it, too, which ends right afterwards.
        asyncio.get_running_loop().call_soon(self._start_later, entry)


def _listener_pid(path: Path) -> int:
    """The process that listens on a unix socket, 0 when nobody does."""
    with socket.socket(socket.AF_UNIX) as probe:
        # A listening unix socket accepts at once or refuses at once.
        probe.settimeout(1.0)
        if probe.connect_ex(os.fsencode(path)) != 0:
            return 0
        credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[:4], sys.byteorder)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
