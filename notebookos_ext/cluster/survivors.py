"""What is left of a kernel's Raft group: which members can vote, and what is said of the others."""

from __future__ import annotations

from collections.abc import Mapping

from notebookos_ext.cluster.consensus.quorum import majority
from notebookos_ext.cluster.hosts import Host
from notebookos_ext.cluster.model import HostId
from notebookos_ext.cluster.replicas import Kernel, MigrationPhase

Hosts = Mapping[HostId, Host]


def can_vote(hosts: Hosts, kernel: Kernel, host: HostId) -> bool:
    """Whether the host is there and has the kernel's log."""
    found = hosts.get(host)
    return found is not None and found.ready and host not in kernel.lost_members


def has_majority(hosts: Hosts, kernel: Kernel) -> bool:
    """Whether the kernel can commit; while its members change, by either of the two sets.

    A kernel without hosts has no group, and so nothing to lose.
    """
    changing = kernel.migration is not None and kernel.migration.phase is MigrationPhase.CHANGING
    asked = kernel.migration.members if changing and kernel.migration is not None else ()
    return not kernel.members or any(
        sum(can_vote(hosts, kernel, host) for host in members) >= majority(len(members))
        for members in (kernel.members, asked)
        if members
    )


def survivors(hosts: Hosts, kernel: Kernel) -> tuple[HostId, ...]:
    """Hosts from whose logs the kernel can go on: the executor's first, then by replica.

    A replica that comes counts once its vote was asked for: it has caught up then, and may be all
    that is left of a group that has taken it in already.
    """
    replicas = list(kernel.replicas)
    moving = kernel.migration
    newcomer = moving.newcomer if moving is not None else None
    if moving is not None and newcomer is not None and moving.phase is MigrationPhase.CHANGING:
        replicas.append(newcomer)
    executor = kernel.attempt.replica if kernel.attempt is not None else kernel.last_executor
    replicas.sort(key=lambda replica: replica.id != executor)
    return tuple(r.host for r in replicas if can_vote(hosts, kernel, r.host))


def is_hopeless(hosts: Hosts, kernel: Kernel) -> bool:
    """Whether no member has a log any more, so that none can ever learn it from another."""
    return bool(kernel.members) and all(
        host in kernel.lost_members or hosts[host].removed for host in kernel.members
    )


def without_majority(hosts: Hosts, kernel: Kernel) -> str:
    """Why the kernel can commit nothing, and what can be done; for people."""
    if kernel.going_on:
        return "the kernel goes on unprotected, from what is left of it"
    if is_hopeless(hosts, kernel):
        whose = "its only log is" if len(kernel.members) == 1 else "all its logs are"
        return (
            f"the kernel's variables are gone, for {whose} lost "
            f"({_absent(hosts, kernel)}); restart it to begin with an empty namespace"
        )
    left = sum(can_vote(hosts, kernel, host) for host in kernel.members)
    count = len(kernel.members)
    of = f"{left or 'none'} of its {count} members" if count > 1 else "none of its members"
    verb = "is" if left == 1 else "are"
    said = f"only {of} {verb} left" if left else f"{of} {verb} left"
    can_go_on = "can go on unprotected with what is left" if survivors(hosts, kernel) else ""
    if any(not (hosts[host].ready or hosts[host].removed) for host in kernel.members):
        after = f"it waits for them, or {can_go_on}" if can_go_on else "it waits for them"
    else:
        after = f"it {can_go_on}, or be restarted"
    return f"the kernel can commit nothing, for {said} ({_absent(hosts, kernel)}); {after}"


def _absent(hosts: Hosts, kernel: Kernel) -> str:
    return ", ".join(
        _why_not(hosts, kernel, host)
        for host in kernel.members
        if not can_vote(hosts, kernel, host)
    )


def _why_not(hosts: Hosts, kernel: Kernel, host: HostId) -> str:
    if host in kernel.lost_members:
        return f"{host} has lost its log"
    if hosts[host].removed:
        return f"{host} is gone for good"
    return f"{host} is lost: {hosts[host].lost_reason}"
