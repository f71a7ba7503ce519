"""What processes are started with: a host agent by its backend, a replica by its template."""

from __future__ import annotations

import msgspec

from notebookos_ext.cluster.messages.control import LaunchReplica
from notebookos_ext.cluster.model import HostId


class AgentConfig(msgspec.Struct, frozen=True):
    """What a host agent is started with: a JSON file that the backend writes (mode 0600, no secrets
    in it).

    The agent listens on `<socket_folder>/<host>.control` and `<socket_folder>/<host>.peer`, both
    unix
    sockets in a private folder with a short path. `folder` keeps its members' logs and its own log
    file.
    """

    host: HostId
    machine: str
    folder: str
    socket_folder: str
    token_file: str
    """32 random bytes in hex, mode 0600: the cluster token that controllers and peers prove to
    know.
    """
    checkpoint_store: str
    """Address of the checkpoint store, as in the settings."""
    lock_folder: str
    """Device locks of this machine, shared by every cluster of the user (one file per real device).
    """
    gpus: str
    """`auto` (real ones when NVML finds any, else simulated), `simulated` or `none`."""
    simulated_gpus: int
    """Simulated devices of this virtual host."""
    hash_seed: int
    """PYTHONHASHSEED of every template and replica of the installation."""
    templates: tuple[str, ...]
    """Interpreters whose template is started at once."""
    preload: tuple[str, ...]
    """Modules that templates import before the first fork."""
    lease_s: float
    """Lease until the first controller attaches, then as the controller says."""
    consensus_engine: str = "raft"
    """`raft`, or `raftos`, which must be installed and is not durable."""
    store_namespace: str = ""
    """Keeps the chunks of this cluster apart from others' in the same store; empty: it is ours."""
    compact_entries: int = 4_000
    """A kernel's log is compacted when it holds so many entries more than after the last time,"""
    compact_bytes: int = 32 * 1024 * 1024
    """or so many bytes."""
    stopped_replica_s: float = 30.0
    """A replica that stands still (SIGSTOP) for so long is ended; 0: never."""


class ForkReplica(msgspec.Struct, frozen=True):
    """Agent to template, framed, with two file descriptors: the replica's end of its socket pair,
    and a log file.
    """

    launch: LaunchReplica | None
    """None: the fork is a pre-warmed replica. It says hello and waits for BecomeReplica."""
    socket_folder: str
    agent_pid: int


class BecomeReplica(msgspec.Struct, frozen=True):
    """Agent to pre-warmed replica, framed, with one descriptor: the replica's log file.

    From here on it does what a fork with this launch does, which begins with another hello.
    """

    launch: LaunchReplica
