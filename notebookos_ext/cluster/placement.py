"""Where things fit: hosts for replicas, devices of a host for a cell; and why not.

Filters refuse with a reason that people read; scorers rank what is left. Knows nothing of policies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping

import msgspec

from notebookos_ext.cluster.gpus import GpuPool
from notebookos_ext.cluster.hosts import PARTS, Host, Share, load_key, share_of
from notebookos_ext.cluster.model import DeviceId, HostId, KernelSpec

WINDOW = 24
"""How many hosts that fit are compared; they come in the order of their load."""


class Placement(msgspec.Struct, frozen=True):
    """Hosts for the replicas, best first; fewer than asked for when there are no more."""

    hosts: tuple[HostId, ...]
    refused: dict[HostId, str]
    """Every other host that was looked at and refused, with the reason."""


class Ask(msgspec.Struct, frozen=True):
    """What is to be placed: one or more replicas of a kernel."""

    spec: KernelSpec
    share: Share
    """What each replica would promise."""
    limit: float = 0.0
    """How many times a host may be promised; 0: without limit."""
    without: tuple[HostId, ...] = ()
    """Hosts that are out of the question, such as those that have a replica already."""
    domains: frozenset[str] = frozenset()
    """Failure domains that other replicas of the kernel are in."""


def ask_for(spec: KernelSpec, count: int, limit: float = 0.0) -> Ask:
    """For a kernel that has no host yet and wants `count`."""
    return Ask(spec, share_of(spec, count), limit)


# ---- filters: a reason to refuse the host, or None

HostFilter = Callable[[Host, Ask], str | None]


def refuse_lost(host: Host, _ask: Ask) -> str | None:
    """A host whose agent is gone takes nothing new."""
    return None if host.ready else f"{host.id} is lost: {host.lost_reason}"


def refuse_draining(host: Host, _ask: Ask) -> str | None:
    """A host that is to be emptied takes nothing new."""
    return f"{host.id} is being drained" if host.draining else None


def refuse_gpu_type(host: Host, ask: Ask) -> str | None:
    """A kernel may insist on a type of GPU."""
    wanted = ask.spec.gpu_type
    if not wanted or host.spec.gpu_type == wanted:
        return None
    return f"{host.id} has {host.spec.gpu_type or 'GPUs of no stated type'}, not {wanted}"


def refuse_labels(host: Host, ask: Ask) -> str | None:
    """A kernel may insist on labels."""
    missing = [label for label in ask.spec.labels if label not in host.spec.labels]
    return f"{host.id} is not labelled {', '.join(missing)}" if missing else None


def refuse_gpu_memory(host: Host, ask: Ask) -> str | None:
    """Each GPU of a kernel needs some memory."""
    needed = ask.spec.gpu_memory_bytes
    if not needed or all(spec.memory_bytes >= needed for spec in host.spec.devices):
        return None
    return f"{host.id} has GPUs with less than {needed / 2**30:g} GiB"


def refuse_small(host: Host, ask: Ask) -> str | None:
    """One replica alone must fit into a host's cores and memory."""
    if host.spec.millicpus and ask.spec.millicpus > host.spec.millicpus:
        return f"{host.id} has fewer than {ask.spec.millicpus / 1000:g} cores"
    if host.spec.memory_bytes and ask.spec.memory_bytes > host.spec.memory_bytes:
        return f"{host.id} has less than {ask.spec.memory_bytes / 2**30:g} GiB of memory"
    return None


def refuse_oversubscribed(host: Host, ask: Ask) -> str | None:
    """GPUs, cores and memory may be promised only so many times."""
    if not ask.limit:
        return None
    for what, promised, more, has in (
        ("GPUs", host.promised.gpus, ask.share.gpus, host.gpu_count),
        ("cores", host.promised.millicpus, ask.share.millicpus, host.spec.millicpus),
        ("memory", host.promised.memory_bytes, ask.share.memory_bytes, host.spec.memory_bytes),
    ):
        if has and more and promised + more > ask.limit * has * PARTS:
            ratio = (promised + more) / has / PARTS
            return (
                f"the {what} of {host.id} would be promised {ratio:.2g} times, "
                f"more than {ask.limit:g}"
            )
    return None


LASTING: tuple[HostFilter, ...] = (
    refuse_gpu_type,
    refuse_labels,
    refuse_gpu_memory,
    refuse_small,
)
"""Those whose answer stays as it is as long as host and kernel do."""

FILTERS: tuple[HostFilter, ...] = (
    refuse_lost,
    refuse_draining,
    refuse_gpu_type,
    refuse_labels,
    refuse_gpu_memory,
    refuse_small,
    refuse_oversubscribed,
)


def refusal(host: Host, ask: Ask) -> str | None:
    """The first reason against the host."""
    for refuse in FILTERS:
        reason = refuse(host, ask)
        if reason is not None:
            return reason
    return None


def misfit(host: Host, ask: Ask) -> str | None:
    """Why the host will never do, however long one waits; None when it may."""
    return next((reason for refuse in LASTING if (reason := refuse(host, ask))), None)


def misfits_text(hosts: Iterable[Host], ask: Ask) -> str:
    """Why some of the hosts are not for it, for people; empty when they all are."""
    reasons = [reason for host, _ in zip(hosts, range(WINDOW)) if (reason := refusal(host, ask))]  # noqa: B905 - a bound
    if not reasons:
        return ""
    more = f", nor do {len(reasons) - 1} more fit" if len(reasons) > 1 else ""
    return f"{reasons[0]}{more}"


# ---- scorers: lower is better


def lacks_gpus(host: Host, spec: KernelSpec) -> bool:
    """Hosts that could never serve the notebook's GPU cells come last."""
    return host.gpu_count < spec.gpus_per_cell


def shares_domain(host: Host, domains: Container[str]) -> bool:
    """Replicas of one kernel should not fail together."""
    return bool(host.spec.failure_domain) and host.spec.failure_domain in domains


def is_cold(host: Host) -> bool:
    """Without a pre-warmed replica a start takes longer."""
    return host.prewarmed == 0


# ---- hosts


def place_kernel(hosts: Iterable[Host], ask: Ask, count: int) -> Placement:
    """Choose `count` distinct hosts out of `hosts`, which come in the order of their load.

    Enough GPUs first, then another failure domain, then the lower load, then a pre-warmed replica.
    """
    refused: dict[HostId, str] = {}
    fitting: list[Host] = []
    too_small: list[Host] = []
    for host in hosts:
        if host.id in ask.without:
            continue
        reason = refusal(host, ask)
        if reason is not None:
            refused[host.id] = reason
        elif lacks_gpus(host, ask.spec):
            too_small.append(host)
        else:
            fitting.append(host)
            if len(fitting) >= max(WINDOW, count):
                break
    chosen: list[Host] = []
    domains = set(ask.domains)
    for group in (fitting, too_small):
        while group and len(chosen) < count:
            best = min(
                group,
                key=lambda host: (
                    shares_domain(host, domains),
                    host.gpu_load,
                    is_cold(host),
                    load_key(host),
                ),
            )
            group.remove(best)
            chosen.append(best)
            domains.add(best.spec.failure_domain)
    return Placement(tuple(host.id for host in chosen), refused)


def find_target(
    pool: GpuPool,
    hosts: Mapping[HostId, Host],
    ask: Ask,
    gpus: int,
    kept: Collection[DeviceId] = (),
) -> HostId | None:
    """A host on which a cell could begin as soon as its kernel had a replica there, or None.

    Best fit, so that whole hosts stay free for cells that need many GPUs; among equals one with a
    pre-warmed replica, then the least loaded.
    """
    best: tuple[object, ...] | None = None
    found: HostId | None = None
    looked = least = 0
    for name in pool.hosts_with(gpus):
        host = hosts[name]
        free = pool.free_count(name)
        if found is not None and (looked >= WINDOW or free > least):
            break
        if name in ask.without or (kept and len(pool.free(name, kept)) < gpus):
            continue
        if refusal(host, ask) is not None:
            continue
        looked, least = looked + 1, free
        score = (shares_domain(host, ask.domains), is_cold(host), load_key(host))
        if best is None or score < best:
            best, found = score, name
    return found


# ---- devices


def choose_devices(
    pool: GpuPool,
    host: HostId,
    count: int,
    *,
    known: tuple[DeviceId, ...] = (),
    without: Collection[DeviceId] = (),
    own: tuple[DeviceId, ...] = (),
) -> tuple[DeviceId, ...] | None:
    """`count` free devices of the host, or None.

    `known` are those that the replica's process has used: exactly these if they are free and as
    many as asked for, because a process whose CUDA is set up cannot see others without a restart.
    `without` are free devices that are kept for somebody else, `own` those that are reserved for
    this kernel, which come first.
    """
    if pool.free_count(host) + len(own) < count:
        return None
    free = [*own, *pool.free(host, without)]
    if len(free) < count:
        return None
    if len(known) == count and set(known) <= set(free):
        return known
    if own or not known:
        return tuple(free[:count])
    others = [device for device in free if device not in known]
    left_out = set(others[max(0, count - (len(free) - len(others))) :])
    return tuple(device for device in free if device not in left_out)[:count]


# ---- words


def gpus_text(count: int) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def free_text(pool: GpuPool, host: HostId, total: int, without: Collection[DeviceId] = ()) -> str:
    """How many of a host's GPUs are free, for people, and what becomes of those that are kept."""
    free = pool.free_count(host)
    text = f"{host} has {free} of {total} free"
    if not without:
        return text
    kept = free - len(pool.free(host, without))
    return f"{text} ({kept} kept for a cell that waits longer)" if kept else text
