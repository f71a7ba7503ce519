"""What the harness can break, each drawn from a seed and healed by itself.

A fault is a function: it breaks something now, says what, and gives back how to heal it if it does
not end by itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import signal
from collections.abc import Callable

import psutil
from chaos.world import Heal, World, kill

SMALLEST_FILE_BYTES = 4096
"""To an agent that may write no longer files its disk is as good as full."""

Injected = tuple[str, Heal | None]
Inject = Callable[[World, random.Random, str], Injected]


@dataclasses.dataclass(frozen=True)
class Fault:
    """`weight`: how often it comes; `ends_server`: clients lose their connection."""

    inject: Inject
    weight: int = 2
    ends_server: bool = False


def executor_killed(world: World, rng: random.Random, kernel: str) -> Injected:
    """The process that runs the cell, or ran the last one."""
    replicas = world.replicas(kernel)
    kill(replicas[0]["pid"] if replicas else None)
    return "executor", None


def standby_killed(world: World, rng: random.Random, kernel: str) -> Injected:
    """A process that runs nothing."""
    replicas = world.replicas(kernel)[1:]
    kill(rng.choice(replicas)["pid"] if replicas else None)
    return "standby", None


def two_replicas_killed(world: World, rng: random.Random, kernel: str) -> Injected:
    """Most of a kernel's processes at once."""
    for replica in world.replicas(kernel)[:2]:
        kill(replica["pid"])
    return "two replicas", None


def all_replicas_killed(world: World, rng: random.Random, kernel: str) -> Injected:
    """All of a kernel's processes at once; its logs stay."""
    for replica in world.replicas(kernel):
        kill(replica["pid"])
    return "all replicas", None


def replica_stopped(world: World, rng: random.Random, kernel: str) -> Injected:
    """SIGSTOP: it lives, holds its sockets, and does nothing."""
    replicas = world.replicas(kernel)
    return _stopped(rng.choice(replicas)["pid"]) if replicas else ("nobody", None)


def replica_stopped_for_good(world: World, rng: random.Random, kernel: str) -> Injected:
    """SIGSTOP to the executor, and nobody lets it go on."""
    replicas = world.replicas(kernel)
    kill(replicas[0]["pid"] if replicas else None, signal.SIGSTOP)
    return "executor", None


def agent_killed(world: World, rng: random.Random, kernel: str) -> Injected:
    """One host agent; its replicas end with it."""
    host, pid = _agent(world, rng)
    kill(pid)
    return host, None


def executors_host_killed(world: World, rng: random.Random, kernel: str) -> Injected:
    """The executor's whole host: its agent and all below it, at one moment."""
    replicas = world.replicas(kernel)
    host = replicas[0]["host_id"] if replicas else ""
    pid = world.agents().get(host)
    below = _descendants(pid)
    for each in [pid, *below]:
        kill(each)
    return host, None


def agent_stopped(world: World, rng: random.Random, kernel: str) -> Injected:
    """SIGSTOP to an agent."""
    return _stopped(_agent(world, rng)[1])


def link_cut(world: World, rng: random.Random, kernel: str) -> Injected:
    """Two agents cannot reach each other; both are reached by all others."""
    one, other = rng.sample(world.hosts, 2)
    world.links.cut(one, other)
    return f"{one} and {other}", world.links.heal


def host_cut_off(world: World, rng: random.Random, kernel: str) -> Injected:
    """No other agent reaches this one; the controller does."""
    host = rng.choice(world.hosts)
    for other in world.hosts:
        if other != host:
            world.links.cut(host, other)
    return host, world.links.heal


def link_one_way(world: World, rng: random.Random, kernel: str) -> Injected:
    """What one agent says does not reach another one, whose words arrive."""
    one, other = rng.sample(world.hosts, 2)
    world.links.hold(one, other)
    return f"{one} to {other}", world.links.heal


def links_slow(world: World, rng: random.Random, kernel: str) -> Injected:
    """Everything between agents is late."""
    delay_s = rng.choice((0.02, 0.1, 0.3))
    for one in world.hosts:
        for other in world.hosts:
            if one < other:
                world.links.slow(one, other, delay_s)
    return f"{delay_s} s", world.links.heal


def store_away(world: World, rng: random.Random, kernel: str) -> Injected:
    """Every read and write of the checkpoint store fails: a file is where its folder was."""
    chunks, aside = world.store / "chunks", world.store / "chunks.aside"
    if not chunks.is_dir():
        return "it was not there", None
    chunks.rename(aside)
    chunks.write_bytes(b"")

    def heal() -> None:
        if aside.is_dir():
            chunks.unlink(missing_ok=True)
            aside.rename(chunks)

    return "chunks", heal


def disk_full(world: World, rng: random.Random, kernel: str) -> Injected:
    """An agent may write no long files: logs and chunks refuse to grow."""
    host, pid = _agent(world, rng)
    _limit_files(pid, SMALLEST_FILE_BYTES)
    return host, lambda: _limit_files(pid, psutil.RLIM_INFINITY)


def server_killed(world: World, rng: random.Random, kernel: str) -> Injected:
    """Kill -9 of the Jupyter server; agents and replicas live on."""
    world.kill_server()
    return "server", None


def machine_killed(world: World, rng: random.Random, kernel: str) -> Injected:
    """Server, agents and replicas at once, as when the machine loses power (its disk aside)."""
    world.kill_machine()
    return "everything", None


FAULTS = {
    "executor killed": Fault(executor_killed, 4),
    "standby killed": Fault(standby_killed),
    "two replicas killed": Fault(two_replicas_killed),
    "all replicas killed": Fault(all_replicas_killed, 1),
    "replica stopped": Fault(replica_stopped),
    "replica stopped for good": Fault(replica_stopped_for_good, 1),
    "agent killed": Fault(agent_killed, 3),
    "executor's host killed": Fault(executors_host_killed),
    "agent stopped": Fault(agent_stopped),
    "link cut": Fault(link_cut),
    "host cut off": Fault(host_cut_off),
    "link one-way": Fault(link_one_way),
    "links slow": Fault(links_slow),
    "store away": Fault(store_away),
    "disk full": Fault(disk_full),
    "server killed": Fault(server_killed, 1, ends_server=True),
    "machine killed": Fault(machine_killed, 1, ends_server=True),
}
"""Besides, cells crash their own process, and browsers leave in mid-cell and come back."""


def _stopped(pid: int) -> Injected:
    kill(pid, signal.SIGSTOP)
    return f"process {pid}", lambda: kill(pid, signal.SIGCONT)


def _agent(world: World, rng: random.Random) -> tuple[str, int]:
    return rng.choice(sorted(world.agents().items()))


def _descendants(pid: int | None) -> list[int]:
    with contextlib.suppress(psutil.Error):
        return [each.pid for each in psutil.Process(pid).children(recursive=True)] if pid else []
    return []


def _limit_files(agent: int, most_bytes: int) -> None:
    # What it starts meanwhile inherits the limit.
    for pid in [agent, *_descendants(agent)]:
        with contextlib.suppress(psutil.Error):
            hard = psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE)[1]
            psutil.Process(pid).rlimit(psutil.RLIMIT_FSIZE, (most_bytes, hard))
