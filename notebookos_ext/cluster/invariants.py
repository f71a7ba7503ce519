"""What holds after every event, written once; tests and the simulator call `check` each time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from notebookos_ext.cluster.hosts import Share, load_key
from notebookos_ext.cluster.model import REPLICA_COUNTS, HostId, ReplicaState
from notebookos_ext.cluster.replicas import EXECUTING, IDLE, LOST, Kernel, MigrationPhase, Phase
from notebookos_ext.cluster.state import ClusterState
from notebookos_ext.cluster.survivors import has_majority
from notebookos_ext.errors import Defect


def check(state: ClusterState) -> None:
    """Raise Defect with everything that is wrong between two events."""
    problems = [
        *state.pool.problems(),
        *_bindings(state),
        *_hosts(state),
        *_order(state),
        *_moves(state),
        *_majorities(state),
        *_waiting(state),
        *_quotas(state),
        *(problem for kernel in state.kernels.values() for problem in _kernel(state, kernel)),
    ]
    if problems:
        raise Defect("the scheduler's state is wrong: " + "; ".join(problems))


def _bindings(state: ClusterState) -> Iterator[str]:
    for device, binding in state.pool.bindings.items():
        host = state.hosts.get(binding.host)
        if host is None or not host.ready:
            yield f"{device} is bound on {binding.host}, which is not there"
        if binding.releasing:
            continue
        kernel = state.kernels.get(binding.kernel)
        if binding.reserved:
            if kernel is None or not _may_reserve(state, kernel, binding.host):
                yield f"{device} is reserved for {binding.kernel}, which has no use for it"
            continue
        attempt = kernel.attempt if kernel is not None else None
        if attempt is None or attempt.number != binding.attempt:
            yield f"{device} is bound by attempt {binding.attempt} of {binding.kernel}, not open"
        elif device not in attempt.devices or attempt.host != binding.host:
            yield f"{device} is bound by an attempt that has not asked for it"


def _may_reserve(state: ClusterState, kernel: Kernel, host: HostId) -> bool:
    if state.sessions_reserve:
        return host in kernel.members
    if state.stores_after_cells:
        return host in kernel.members and bool(kernel.waiting)
    migration = kernel.migration
    return migration is not None and migration.cell is not None and migration.target == host


def _quotas(state: ClusterState) -> Iterator[str]:
    options = state.options
    if not options.quota and not options.quotas:
        return
    held: Counter[str] = Counter()
    for kernel in state.kernels.values():
        if kernel.attempt is not None:
            held[kernel.user] += len(kernel.attempt.devices)
    for user, gpus in held.items():
        quota = options.quotas.get(user, options.quota)
        if quota and gpus > quota:
            yield f"cells of {user} hold {gpus} GPUs, and may hold {quota}"


def _moves(state: ClusterState) -> Iterator[str]:
    moving = {kernel.id for kernel in state.kernels.values() if kernel.migration is not None}
    if moving != set(state.moving):
        yield "the kernels that are counted as moving are not those that move"
    for kernel_id in moving:
        kernel = state.kernels[kernel_id]
        migration = kernel.migration
        if migration is None:
            continue
        newcomer = migration.newcomer
        if newcomer is None and migration.phase is not MigrationPhase.CHANGING:
            yield f"the move of {kernel_id} begins nothing"
        if newcomer is not None:
            if newcomer.host in kernel.members:
                yield f"{newcomer.id} comes to {newcomer.host}, where the kernel is already"
            if newcomer.id not in state.hosts[newcomer.host].replicas:
                yield f"{newcomer.host} does not list {newcomer.id}, which comes to it"
            alive = newcomer.state is not LOST
            if not alive and migration.phase is not MigrationPhase.CHANGING:
                yield f"{newcomer.id} is lost, and its move goes on"
        if migration.victim is not None and all(r.id != migration.victim for r in kernel.replicas):
            yield f"{migration.victim} is to go and is not there"
        if migration.cell is not None and state.queue.find(kernel_id, migration.cell) is None:
            yield f"a replica of {kernel_id} moves for {migration.cell}, which does not wait"


def _majorities(state: ClusterState) -> Iterator[str]:
    for kernel in state.kernels.values():
        lost = not has_majority(state.hosts, kernel)
        if lost != (kernel.majority_lost_at is not None):
            yield f"{kernel.id} has {'no ' if lost else 'a '}majority, which was not noticed"
        if lost != (kernel.id in state.without_majority):
            yield f"{kernel.id} is listed as without a majority and is not, or the other way round"
        if kernel.majority_told and not lost:
            yield f"{kernel.id} has a majority, and its user was told that it has not"
        if kernel.lost_members.keys() - set(kernel.members):
            yield f"{kernel.id} has lost members that are none of it"
        for host in kernel.former:
            if host in kernel.members or (host in state.hosts and state.hosts[host].ready):
                yield f"{host} has an old log of {kernel.id} and was not told to delete it"
    if state.recount:
        yield f"nobody has looked whether {sorted(state.recount)} have a majority"


def _hosts(state: ClusterState) -> Iterator[str]:
    for host in state.hosts.values():
        executing = 0
        for replica_id in host.replicas:
            found = state.find_replica(replica_id)
            if found is None or found[1].host != host.id:
                yield f"{host.id} lists {replica_id}, which is not there"
            elif found[1].state is EXECUTING:
                executing += 1
        if executing != host.executing:
            yield f"{host.id} counts {host.executing} executors instead of {executing}"
        promised = Share()
        for replica_id in host.replicas:
            found = state.find_replica(replica_id)
            if found is not None:
                promised = Share(*(a + b for a, b in zip(promised, found[1].share, strict=True)))
        if promised != host.promised:
            yield f"{host.id} promises {host.promised} instead of {promised}"
        if host.draining != (host.id in state.draining):
            yield f"{host.id} is drained and not listed so, or the other way round"
        if not host.ready and state.pool.devices(host.id):
            yield f"{host.id} is lost but still lists devices"


def _order(state: ClusterState) -> Iterator[str]:
    usable = sorted((host for host in state.hosts.values() if host.usable), key=load_key)
    if [host.id for host in usable] != [host.id for host in state.by_load]:
        yield "the hosts are not in the order of their load"


def _kernel(state: ClusterState, kernel: Kernel) -> Iterator[str]:
    if not kernel.placed:
        if kernel.id not in state.without_hosts and not kernel.stored:
            yield f"kernel {kernel.id} has no hosts and does not wait for any"
        if kernel.replicas or kernel.attempt is not None:
            yield f"kernel {kernel.id} runs something without hosts"
        return
    if kernel.stored:
        yield f"kernel {kernel.id} has hosts and is in the store alone"
    if kernel.id in state.without_hosts:
        yield f"kernel {kernel.id} has hosts and waits for some"
    resized = kernel.id in state.to_resize or kernel.migration is not None
    if len(kernel.replicas) not in REPLICA_COUNTS and not resized:
        yield f"kernel {kernel.id} has {len(kernel.replicas)} replicas"
    if tuple(replica.host for replica in kernel.replicas) != kernel.members:
        yield f"the replicas of kernel {kernel.id} are not where its members are"
    if len(set(kernel.members)) != len(kernel.members):
        yield f"two replicas of kernel {kernel.id} are on one host"
    yield from _replicas(state, kernel)
    yield from _attempt(kernel)


def _replicas(state: ClusterState, kernel: Kernel) -> Iterator[str]:
    for replica in kernel.replicas:
        host = state.hosts[replica.host]
        if replica.id not in host.replicas:
            yield f"{host.id} does not list {replica.id}"
        if replica.state is ReplicaState.STOPPING:
            yield f"{replica.id} was left stopping"
        if not host.ready and replica.state is not LOST:
            yield f"{replica.id} is {replica.state} on a lost host"
        planned = replica.id in state.lost
        if planned != (host.ready and replica.state is LOST):
            yield f"the relaunch of {replica.id} is {'planned in vain' if planned else 'forgotten'}"
    alive = {r.id for r in kernel.replicas if r.state in (IDLE, EXECUTING)}
    for name, replica_id in (("held", kernel.held_by), ("pending", kernel.pending_on)):
        if replica_id is not None and replica_id not in alive:
            yield f"kernel {kernel.id} has {name} names on {replica_id}, whose process is gone"


def _attempt(kernel: Kernel) -> Iterator[str]:
    executing = [r.id for r in kernel.replicas if r.state is EXECUTING]
    attempt = kernel.attempt
    if attempt is None:
        if executing:
            yield f"{', '.join(executing)} executes without an attempt"
        return
    if executing not in ([], [attempt.replica]):
        yield f"{', '.join(executing)} executes beside attempt {attempt.number}"
    if attempt.phase is Phase.RUNNING and not executing:
        yield f"attempt {attempt.number} of {kernel.id} runs on a replica that does not execute"
    if attempt.number != kernel.last_attempt:
        yield f"attempt {attempt.number} of {kernel.id} is not its last one"


def _waiting(state: ClusterState) -> Iterator[str]:
    of_kernels = [w for kernel in state.kernels.values() for w in kernel.waiting]
    in_queue = state.waiting
    if {id(w) for w in of_kernels} != {id(w) for w in in_queue}:
        yield "the cells that kernels wait with are not those of the queue"
    for waiting in in_queue:
        name = waiting.cell.cell
        if not waiting.reason or waiting.position < 1:
            yield f"cell {name} waits without having been told why"
        kernel = state.kernels.get(waiting.cell.kernel)
        if kernel is None:
            yield f"cell {name} waits for a kernel that is gone"
        elif kernel.attempt is not None and kernel.attempt.cell.cell == name:
            yield f"cell {name} waits and runs"
        elif waiting.for_gpus and waiting.cell.gpus == 0:
            yield f"cell {name} needs no GPU and stands in line for one"
    in_line = [w for w in in_queue if w.for_gpus][:64]
    if [w.position for w in in_line] != list(range(1, len(in_line) + 1)):
        yield "the positions in the queue are not 1, 2, 3 …"
