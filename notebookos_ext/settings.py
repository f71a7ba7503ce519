"""One frozen `Settings`, checked once by `validate`; every other module receives values.

`app.py` fills it from Jupyter's configuration, the provisioner from its defaults when it schedules
without a server. It knows no configuration library and reads no file.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping

from notebookos_ext.errors import InvalidSettings

REPLICA_COUNTS = (1, 3, 5)
GPUS = ("auto", "simulated", "none")
POLICIES = ("replicated", "pooled", "reservation", "batch")
PREFERENCES = ("last", "rotate")
CONSENSUS_ENGINES = ("raft", "raftos")
RAFTOS_VERSION = "0.2.6"
"""The published version that the engine `raftos` is."""
SYNCS = ("log-before-reply", "after-reply", "all-before-reply")
SERVER_LEASE_S = 120.0
PRIVATE_LEASE_S = 15.0
LEAST_LEASE_S = 2.0
LEAST_POLL_S = 0.1
MOST_HOSTS = 64


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that a person may choose about an embedded cluster."""

    hosts: int = 4
    """Virtual hosts at the start."""
    max_hosts: int = 8
    """As many as the cluster may grow to."""
    replica_count: int = 3
    """Replicas of a kernel whose notebook does not say otherwise: 1, 3 or 5."""
    gpus_per_cell: int = 0
    """GPUs of a GPU cell in a notebook that does not say otherwise."""
    gpus: str = "auto"
    """`auto`: real GPUs when there are any, else simulated ones; `simulated`; `none`."""
    simulated_gpus_per_host: int = 2
    """Simulated devices of each virtual host."""
    policy: str = "replicated"
    """`replicated`: GPUs are bound while a cell runs; `pooled`: the same with one replica, which
    goes where GPUs are free; `reservation`: one replica keeps them; `batch`: a fresh replica for
    every cell, and the kernel in the checkpoint store in between.
    """
    scheduling: Mapping[str, object] = dataclasses.field(default_factory=dict)
    """Options of the scheduler beyond the policy, by the names of `cluster/options.py`, which
    checks them: autoscaler, prewarm, quotas and so on.
    """
    executor_preference: str = "last"
    """`last`: the last executor is preferred; `rotate`: another replica for every cell."""
    sync: str = "log-before-reply"
    """What is committed before a cell's reply goes out (design 4.5)."""
    reply_budget_ms: int = 10_000
    """How long a reply may be kept back for the commit."""
    consensus_engine: str = "raft"
    """`raft`: our own core; `raftos`: the published package, which is not durable."""
    preload: tuple[str, ...] = ()
    """Modules that the templates import before replicas are forked from them."""
    state_folder: str = ""
    """Logs, keys and the checkpoint store; empty: in the user's Jupyter data folder."""
    checkpoint_store: str = ""
    """The checkpoint store: a folder, or `s3://bucket/prefix?…`; empty: `store` in the state
    folder.
    """
    sweep_hours: float = 1.0
    """How often chunks that nothing names go from the checkpoint store; 0: only when asked."""
    sweep_spared_hours: float = 1.0
    """Chunks that were put or looked for within so long stay: they may be about to be named."""
    compact_entries: int = 4_000
    """A kernel's log is compacted into a snapshot when it has grown by so many entries,"""
    compact_bytes: int = 32 * 1024 * 1024
    """or by so many bytes."""
    stopped_replica_s: float = 30.0
    """A replica whose process stands still (SIGSTOP) for so long is ended; 0: never."""
    journal_file: str = ""
    """Where the scheduler's events are written, for replay in the simulator; empty: nowhere."""
    keep_kernels_days: float = 7.0
    """How long kernels are kept after the end of their server; 0: not at all."""
    idle_minutes: float = 0.0
    """After how long without use a kernel goes into the checkpoint store, until it is used again;
    0: never.
    """
    user: str = ""
    """Whose kernels and usage it is where Jupyter knows nobody by name; empty: JupyterHub's user,
    else the operating system's.
    """
    lease_s: float = SERVER_LEASE_S
    """How long host agents live without hearing from their controller."""
    poll_s: float = 5.0
    """How often the devices' use is read."""

    def validate(self) -> Settings:
        """Return itself. Raises InvalidSettings with a sentence for the first wrong value."""
        _whole("hosts", self.hosts, 1, MOST_HOSTS)
        _whole("max_hosts", self.max_hosts, 1, MOST_HOSTS)
        if self.hosts > self.max_hosts:
            raise InvalidSettings(
                f"hosts is {self.hosts} but max_hosts is {self.max_hosts}; "
                "raise max_hosts or lower hosts"
            )
        _one_of("replica_count", self.replica_count, REPLICA_COUNTS)
        _whole("gpus_per_cell", self.gpus_per_cell, 0, 1024)
        _one_of("gpus", self.gpus, GPUS)
        _whole("simulated_gpus_per_host", self.simulated_gpus_per_host, 0, 64)
        _one_of("policy", self.policy, POLICIES)
        if not isinstance(self.scheduling, Mapping):
            raise InvalidSettings(
                f"scheduling is {self.scheduling!r}; it must be options by name, such as "
                '{"quota": 4, "autoscaler": {"least_hosts": 2}}'
            )
        _one_of("executor_preference", self.executor_preference, PREFERENCES)
        _one_of("sync", self.sync, SYNCS)
        _one_of("consensus_engine", self.consensus_engine, CONSENSUS_ENGINES)
        _whole("reply_budget_ms", self.reply_budget_ms, 0, 60_000)
        _between("lease_s", self.lease_s, LEAST_LEASE_S, 7 * 24 * 3600, "seconds")
        _whole("compact_entries", self.compact_entries, 10, 1_000_000)
        _whole("compact_bytes", self.compact_bytes, 100_000, 10 * 1024**3)
        _between("stopped_replica_s", self.stopped_replica_s, 0, 86_400, "seconds")
        _between("keep_kernels_days", self.keep_kernels_days, 0, 3650, "days")
        _between("idle_minutes", self.idle_minutes, 0, 527_040, "minutes")
        _between("sweep_hours", self.sweep_hours, 0, 8760, "hours")
        _between("sweep_spared_hours", self.sweep_spared_hours, 0.5, 8760, "hours")
        _between("poll_s", self.poll_s, LEAST_POLL_S, 3600, "seconds")
        if not isinstance(self.checkpoint_store, str):
            raise InvalidSettings(
                f"checkpoint_store is {self.checkpoint_store!r}; it must be the path of a folder, "
                "or s3://bucket/prefix"
            )
        for name in ("state_folder", "journal_file"):
            if not isinstance(path := getattr(self, name), str):
                what = name.rpartition("_")[2]
                raise InvalidSettings(f"{name} is {path!r}; it must be the path of a {what}")
        if not isinstance(self.user, str):
            raise InvalidSettings(f"user is {self.user!r}; it must be a name")
        if not isinstance(self.preload, tuple):
            raise InvalidSettings(f"preload is {self.preload!r}; it must be a list of module names")
        for module in self.preload:
            if not all(part.isidentifier() for part in str(module).split(".")):
                raise InvalidSettings(f"preload names {module!r}, which is not a module name")
        return self


def names() -> tuple[str, ...]:
    """Every setting that exists."""
    return tuple(field.name for field in dataclasses.fields(Settings))


def reject_unknown(given: Iterable[str], known: Iterable[str], *, where: str) -> None:
    """Raise InvalidSettings for the first of `given` that is no setting, with the likeliest one."""
    allowed = sorted(known)
    for name in given:
        if name in allowed:
            continue
        close = difflib.get_close_matches(name, allowed, n=1)
        advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(allowed)}"
        raise InvalidSettings(f"{where}.{name} is not a setting of NotebookOS; {advice}")


def _whole(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidSettings(
            f"{name} is {value!r}; it must be a whole number from {least} to {most}"
        )


def _between(name: str, value: object, least: float, most: float, unit: str) -> None:
    if isinstance(value, bool) or not (isinstance(value, int | float) and least <= value <= most):
        raise InvalidSettings(
            f"{name} is {value!r}; it must be between {least:g} and {most:g} {unit}"
        )


def _one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if isinstance(value, bool) or value not in allowed:
        choices = ", ".join(str(item) for item in allowed)
        raise InvalidSettings(f"{name} is {value!r}; it must be one of {choices}")
