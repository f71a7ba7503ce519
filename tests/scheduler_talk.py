"""The words of the scheduler's golden files: commands in, one line per action out."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from builders import Cluster

from notebookos_ext.cluster import actions as a
from notebookos_ext.cluster.model import DeviceKind, ExecutorPreference, Outcome
from notebookos_ext.cluster.options import Options


def devices(names: Iterable[str]) -> str:
    listed = ", ".join(names)
    return f" with {listed}" if listed else ""


def line(action: a.Action) -> str:  # noqa: C901, PLR0912 — one case an action
    """An action as one line of text."""
    match action:
        case a.StartReplica():
            members = " ".join(action.members)
            learner = ", learner" if action.learner else ""
            prewarmed = ", prewarmed" if action.prewarmed else ""
            return (
                f"start {action.replica} on {action.host}, epoch {action.epoch}, of {members}"
                f"{learner}{prewarmed}"
            )
        case a.StopReplica():
            return f"stop {action.replica} on {action.host}"
        case a.ChangeMembers():
            return f"change members of {action.kernel} to {' '.join(action.members)}"
        case a.CloseMember():
            return f"close the member of {action.kernel} on {action.host}"
        case a.MajorityLost():
            return f"no majority of {action.kernel}: {action.reason}"
        case a.GoOnUnprotected():
            hosts, members = " ".join(action.hosts), " ".join(action.members)
            return f"go on unprotected with {action.kernel} from one of {hosts}, of {members}"
        case a.MigrationEnded():
            what = f"{action.victim or 'nobody'} to {action.target or 'nowhere'}"
            return f"{'moved' if action.moved else 'not moved'} {what}: {action.reason}"
        case a.StoreKernel():
            return f"store {action.kernel} from {' '.join(action.members)}"
        case a.RestoreKernel():
            return f"restore {action.kernel} on {' '.join(action.members)}, epoch {action.epoch}"
        case a.StartPrewarmed():
            return f"prewarm {action.count} on {action.host}"
        case a.StopPrewarmed():
            return f"stop {action.count} prewarmed on {action.host}"
        case a.ReleaseHost():
            return f"give {action.host} back: {action.reason}"
        case a.RequestHosts():
            return f"request {action.count} hosts: {action.reason}"
        case a.KernelStarted():
            return f"kernel {action.kernel} started"
        case a.KernelRejected():
            return f"kernel {action.kernel} rejected: {action.reason}"
        case a.StartEpoch():
            return f"epoch {action.epoch} of {action.kernel} on {' '.join(action.members)}"
        case a.CloseKernel():
            return f"close kernel {action.kernel} on {' '.join(action.members)}"
        case a.StartAttempt():
            return (
                f"attempt {action.attempt} of {action.cell}: {action.replica} on {action.host}"
                f"{devices(action.devices)}"
            )
        case a.CallElection():
            voters = " ".join(action.voters)
            return f"election {action.attempt} for {action.cell}, {action.gpus} GPUs: {voters}"
        case a.CloseAttempt():
            end = "end the cell" if action.ends_cell else "the cell had not begun"
            members = " ".join(action.members) or "nobody"
            return (
                f"close attempt {action.attempt} of {action.cell} through {members}, "
                f"{end}: {action.reason}"
            )
        case a.ReleaseGpus():
            return (
                f"release attempt {action.attempt} of {action.cell} on {action.host}"
                f"{devices(action.devices)}"
            )
        case a.CellWaiting():
            about = action.estimate_ms
            soon = f" (about {about / 1000:g} s)" if about is not None else ""
            return (
                f"{action.kernel}/{action.cell} waits at {action.position}{soon}: {action.reason}"
            )
        case a.CellRejected():
            return f"{action.kernel}/{action.cell} rejected: {action.reason} [{action.hint}]"
        case a.CellAborted():
            return f"{action.kernel}/{action.cell} aborted: {action.reason}"


class Conversation:
    """Interprets the commands of one file."""

    def __init__(self) -> None:
        self.cluster = Cluster(hosts=0)

    def __call__(self, command: str) -> list[str]:
        verb, *rest = command.split()
        words = [word for word in rest if "=" not in word]
        options = dict(word.split("=", 1) for word in rest if "=" in word)
        answer = getattr(self, f"do_{verb.replace('-', '_')}")(*words, **options)
        if answer and isinstance(answer[0], str):
            return list(answer)
        return [line(action) for action in answer] or ["nothing"]

    # ---- commands

    def do_hosts(self, most: str) -> list[str]:
        self.cluster = Cluster(hosts=0, max_hosts=int(most))
        return [f"at most {most} hosts"]

    def do_cluster(self, text: str, policy: str = "replicated", most: str = "8") -> list[str]:
        """Options as JSON without spaces."""
        options = msgspec.json.decode(text, type=Options)
        self.cluster = Cluster(hosts=0, max_hosts=int(most), policy=policy, options=options)
        return [f"{policy}, at most {most} hosts"]

    def do_prewarmed(self, host: str, failed: str = "no") -> list[a.Action]:
        """One that was being started is ready, or could not be."""
        return self.cluster.prewarmed(host, failed=failed == "yes")

    def do_stored(self, kernel: str, failed: str = "no") -> list[a.Action]:
        return self.cluster.stored(kernel, failed=failed == "yes")

    def do_needed(self, kernel: str) -> list[a.Action]:
        return self.cluster.needed(kernel)

    def do_ballot(self, name: str, replica: str, devices: str = "yield") -> list[a.Action]:
        """`ballot k/c k:1 lead`, `… host-1/0,host-1/1`, or nothing to yield."""
        kernel, cell = name.split("/")
        offered = () if devices in ("yield", "lead") else tuple(devices.split(","))
        return self.cluster.ballot(cell, replica, devices != "yield", offered, kernel=kernel)

    def do_drain(self, host: str, release: str = "no") -> list[a.Action]:
        return self.cluster.drain(host, release=release == "yes")

    def do_undrain(self, host: str) -> list[a.Action]:
        return self.cluster.undrain(host)

    def do_remove_host(self, host: str) -> list[a.Action]:
        return self.cluster.remove_host(host)

    def do_move(
        self, kernel: str, replica: str | None = None, target: str | None = None
    ) -> list[a.Action]:
        return self.cluster.move(kernel, replica, target)

    def do_members(self, kernel: str, *members: str) -> list[a.Action]:
        reason = "no majority answered" if members else ""
        return self.cluster.members_changed(kernel, *members, reason=reason)

    def do_member_lost(self, kernel: str, host: str) -> list[a.Action]:
        return self.cluster.member_lost(kernel, host)

    def do_member_back(self, kernel: str, host: str) -> list[a.Action]:
        return self.cluster.member_back(kernel, host)

    def do_go_on(self, kernel: str) -> list[a.Action]:
        return self.cluster.go_on(kernel)

    def do_went_on(self, kernel: str, host: str = "") -> list[a.Action]:
        """With a host it did, without it could not."""
        return self.cluster.went_on(kernel, host)

    def do_join(
        self, host: str, gpus: str = "2", incarnation: str = "first", kind: str = "simulated"
    ) -> list[a.Action]:
        listed = int(gpus) if gpus.isdigit() else gpus.split(",")
        return self.cluster.join(host, listed, incarnation=incarnation, kind=DeviceKind(kind))

    def do_lose_host(self, host: str) -> list[a.Action]:
        return self.cluster.lose_host(host)

    def do_request(
        self,
        kernel: str,
        replicas: str = "3",
        gpus: str = "0",
        prefer: str = "last",
        user: str = "",
        priority: str = "0",
    ) -> list[a.Action]:
        return self.cluster.request(
            kernel,
            int(replicas),
            gpus_per_cell=int(gpus),
            preference=ExecutorPreference(prefer),
            user=user,
            priority=int(priority),
        )

    def do_start(self, *names: str) -> list[str]:
        """Kernels of one replica, each `name` or `name@user` or `name@user^priority`."""
        for name in names:
            kernel, _, rest = name.partition("@")
            user, _, priority = rest.partition("^")
            self.cluster.start_all(
                self.cluster.request(kernel, 1, user=user, priority=int(priority or 0))
            )
        return [f"{len(names)} kernels have started"]

    def do_ran(self, name: str, seconds: str, gpus: str = "1", times: str = "1") -> list[str]:
        """Cells that begin at once and end after so many seconds."""
        kernel, cell = name.split("/")
        for number in range(int(times)):
            self.cluster.run(f"{cell}.{number}", int(gpus), kernel=kernel)
            self.cluster.now += float(seconds)
            self.cluster.finish(f"{cell}.{number}", kernel=kernel)
        return [f"{times} cells have run"]

    def do_revive(
        self,
        kernel: str,
        *members: str,
        epoch: str = "0",
        after: str = "0",
        stored: str = "0",
        wanted: str = "0",
        former: str = "",
    ) -> list[a.Action]:
        return self.cluster.revive(
            kernel,
            members,
            epoch=int(epoch),
            last_attempt=int(after),
            stored=int(stored),
            wanted=int(wanted),
            former=former,
        )

    def do_started(self, *replicas: str) -> list[a.Action]:
        return [x for replica in replicas for x in self.cluster.replica_started(replica)]

    def do_lost(self, replica: str) -> list[a.Action]:
        return self.cluster.replica_lost(replica)

    def do_restart(self, kernel: str) -> list[a.Action]:
        return self.cluster.restart(kernel)

    def do_stop(self, kernel: str) -> list[a.Action]:
        return self.cluster.stop(kernel)

    def do_settings(
        self, kernel: str, gpus: str | None = None, replicas: str | None = None
    ) -> list[a.Action]:
        return self.cluster.settings(
            kernel,
            gpus=int(gpus) if gpus else None,
            replicas=int(replicas) if replicas else None,
        )

    def do_submit(self, name: str, gpus: str = "0", replica: str | None = None) -> list[a.Action]:
        kernel, cell = name.split("/")
        number = int(replica) if replica else None
        return self.cluster.submit(cell, int(gpus), kernel=kernel, replica=number)

    def do_cancel(self, name: str) -> list[a.Action]:
        kernel, cell = name.split("/")
        return self.cluster.cancel(cell, kernel=kernel)

    def do_begun(self, name: str, attempt: str = "0") -> list[a.Action]:
        kernel, cell = name.split("/")
        return self.cluster.started(cell, kernel=kernel, attempt=int(attempt))

    def do_refused(
        self, name: str, reason: str = "stale", busy: str = "", recycle: str = "no"
    ) -> list[a.Action]:
        kernel, cell = name.split("/")
        return self.cluster.refused(
            cell,
            kernel=kernel,
            reason=reason,
            busy=tuple(busy.split(",")) if busy else (),
            recycle=recycle == "yes",
        )

    def do_closed(self, name: str, outcome: str = "done", attempt: str = "0") -> list[a.Action]:
        kernel, cell = name.split("/")
        return self.cluster.closed(cell, Outcome(outcome), kernel=kernel, attempt=int(attempt))

    def do_released(self, name: str, attempt: str = "0") -> list[a.Action]:
        kernel, cell = name.split("/")
        return self.cluster.released(cell, kernel=kernel, attempt=int(attempt))

    def do_hold(self, replica: str, *names: str) -> list[a.Action]:
        return self.cluster.hold(replica, *names)

    def do_pending(self, replica: str, *names: str) -> list[a.Action]:
        return self.cluster.pending(replica, *names)

    def do_tick(self, seconds: str = "1") -> list[a.Action]:
        return self.cluster.tick(float(seconds))

    def do_show(self) -> list[str]:
        """Hosts, kernels and the queue as they are now."""
        state = self.cluster.scheduler.state
        lines = []
        for host in state.hosts.values():
            gpus = f"{state.pool.free_count(host.id)} of {host.gpu_count} GPUs free"
            lines.append(f"{host.id} {host.state}: {gpus if host.ready else host.lost_reason}")
        for name, binding in state.pool.bindings.items():
            doing = "released by" if binding.releasing else "bound by"
            lines.append(f"{name} {doing} {binding.kernel}/{binding.cell} on {binding.host}")
        for kernel in state.kernels.values():
            replicas = ", ".join(f"{r.number} {r.state}" for r in kernel.replicas)
            lines.append(f"{kernel.id} {kernel.state}: {replicas or 'no replicas'}")
        for waiting in state.queue:
            lines.append(f"{waiting.cell.cell} waits at {waiting.position}")
        return lines or ["nothing"]
