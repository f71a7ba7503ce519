"""This host's members of all its kernels' Raft groups: the default `ReplicatedLog`."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from notebookos_ext.agent.compaction import CompactionLimits
from notebookos_ext.agent.member import Carrier, Member, Sealed
from notebookos_ext.clock import Clock
from notebookos_ext.cluster.consensus.membership import Change, Membership, host_of, later_member
from notebookos_ext.cluster.consensus.messages import Entry, Envelope, Foreign, HardState, Message
from notebookos_ext.cluster.consensus.node import Node
from notebookos_ext.cluster.consensus.ready import Timing
from notebookos_ext.cluster.consensus.replicated_log import MemberStatus, SnapshotHooks
from notebookos_ext.cluster.consensus.snapshot import Snapshot
from notebookos_ext.cluster.model import HostId, KernelId
from notebookos_ext.errors import CorruptRecord, InvalidRequest, LogLost, NotFound
from notebookos_ext.storage.wal import Identity, WriteAheadLog, identity_in, set_aside

_log = logging.getLogger(__name__)
T = TypeVar("T")

TICK_S = 0.1
SAVING_THREADS = 4

_EARLY_GROUPS_MAX = 64
_EARLY_MESSAGES_MAX = 32


class Members:
    """Opens, drives and closes members; everything on the loop of the agent.

    Args:
        host: this host.
        folder: holds one folder with a log per kernel.
        transport: to the other hosts; its owner passes what arrives to `receive` and what it
            reports to `peer_lost` and `peer_back`.
        clock: for how long this host was held up between two ticks.
        rng: spreads election time-outs.
        on_committed: called with each kernel's newly committed proposals, in order, each once per
            life of this object (after a restart they come again, from the first).
        hooks: what captures and restores the state of kernels; without them logs only grow.
        limits: how far a log may grow before it is compacted.
        on_leader_change: called when another host leads a kernel, or none, as far as is known here.
        tick_s: one tick; an election time-out is 15 to 30 of them.
    """

    def __init__(
        self,
        *,
        host: HostId,
        folder: Path,
        transport: Carrier,
        clock: Clock,
        rng: random.Random,
        on_committed: Callable[[KernelId, Sequence[Entry]], None],
        on_leader_change: Callable[[KernelId, HostId | None], None] = lambda _kernel, _leader: None,
        hooks: SnapshotHooks | None = None,
        limits: CompactionLimits | None = None,
        tick_s: float = TICK_S,
        timing: Timing | None = None,
    ) -> None:
        self._host = host
        self._folder = folder
        self._carrier = transport
        self._clock = clock
        self._rng = rng
        self._on_committed = on_committed
        self._on_leader_change = on_leader_change
        self._hooks = hooks
        self._limits = limits or CompactionLimits()
        self._tick_s = tick_s
        self._timing = timing or Timing()
        self._members: dict[KernelId, Member] = {}
        self._by_group: dict[str, Member] = {}
        self._opening: dict[KernelId, asyncio.Lock] = {}
        self._early: dict[str, list[Message]] = {}
        self._executor = ThreadPoolExecutor(SAVING_THREADS, thread_name_prefix="wal")
        self._ticker: asyncio.Task[None] | None = None

    @property
    def kernels(self) -> tuple[KernelId, ...]:
        """The kernels that have an open member here."""
        return tuple(self._members)

    async def open(
        self,
        kernel: KernelId,
        member_hosts: tuple[HostId, ...],
        *,
        campaign: bool,
        group: str = "",
        is_new: bool = True,
    ) -> None:
        """Create this host's member of the kernel's group, or recover it; opening twice is fine.

        A kernel may have one `group` after the other. Each has a log of its own, so that what a
        host still has of a former one, whose end it missed, can never vote or count in this one.
        `campaign`: it should lead at first, so it begins an election without waiting. `is_new`: the
        group is being founded with `member_hosts`, so a log that is not there yet is created;
        otherwise it must be there, and who belongs to the group is what it says. Committed entries
        of an earlier life may be passed to `on_committed` before this returns.

        Raises:
            InvalidRequest: this host is not among `member_hosts`, or the id is no file name.
            LogLost: the log is damaged or gone; `join` makes a new member.
            CorruptRecord: the log was made for other members.
            StorageError: the log cannot be opened, or the disk is full.
        """
        if is_new and self._host not in member_hosts:
            raise InvalidRequest(f"host {self._host} is not among {', '.join(member_hosts)}")
        founded = Identity(group_name(kernel, group), self._host, tuple(member_hosts))
        async with self._opening.setdefault(kernel, asyncio.Lock()):
            member = self._members.get(kernel)
            if member is not None:
                if is_new and member.founders not in {(), founded.members}:
                    raise InvalidRequest(
                        f"kernel {kernel} has members on {', '.join(member.founders)}; "
                        "they are fixed when it is created"
                    )
            else:
                folder = self._folder_of(kernel, group)
                identity = await self._identity(kernel, founded.group, folder)
                if identity is None and not is_new:
                    raise LogLost(f"host {self._host} has no log of kernel {kernel} any more")
                if (
                    is_new
                    and identity is not None
                    and identity.members not in {(), founded.members}
                ):
                    raise CorruptRecord(
                        f"the log in {folder} belongs to member {identity.member} of group "
                        f"{identity.group} on {', '.join(identity.members)}, not on "
                        f"{', '.join(member_hosts)}"
                    )
                member = await self._start(kernel, founded.group, folder, identity or founded)
                if campaign or member.node.log.membership.voters == (self._host,):
                    member.campaign()
            self._tick_from_now_on()

    async def join(self, kernel: KernelId, *, group: str = "") -> str:
        """Have a member here that did not found the group; its name, to be added as a learner.

        A member that is here already stays as it is. A log that is damaged is set aside, and the
        member gets a name that nobody had: its former self may have voted.

        Raises:
            InvalidRequest: the id is no file name.
            StorageError: the log cannot be opened, or the disk is full.
        """
        name = group_name(kernel, group)
        async with self._opening.setdefault(kernel, asyncio.Lock()):
            member = self._members.get(kernel)
            if member is not None and isinstance(member.failure, CorruptRecord):
                await self._end(kernel, delete=False)
                await self._run(set_aside, self._folder_of(kernel, group))
                member = None
            if member is None:
                folder = self._folder_of(kernel, group)
                newcomer = Identity(name, self._new_name(), ())
                try:
                    identity = await self._identity(kernel, name, folder)
                    member = await self._start(kernel, name, folder, identity or newcomer)
                except LogLost as error:
                    _log.warning("%s; a new member joins", error)
                    await self._run(set_aside, folder)
                    member = await self._start(kernel, name, folder, newcomer)
            self._tick_from_now_on()
            return member.node.me

    async def seal(self, kernel: KernelId) -> Sealed:
        """Stop this host's member for good in its present group; see `Member.seal`."""
        return await self._member(kernel).seal()

    async def found(
        self, kernel: KernelId, group: str, term: int, snapshot: Snapshot | None
    ) -> None:
        """Put the log of a group on disk that has this member alone and begins with `snapshot`.

        Nothing runs with it before `switch`. Raises StorageFull, StorageError.
        """
        folder = self._folder_of(kernel, group)
        identity = Identity(group_name(kernel, group), self._host, (self._host,))
        await self._run(_found, folder, identity, term, snapshot)

    async def switch(self, kernel: KernelId, group: str) -> None:
        """Let the member of a group that was founded here take the place of the sealed one.

        Whoever asks meanwhile still finds that one. Raises StorageError, and LogLost.
        """
        async with self._opening.setdefault(kernel, asyncio.Lock()):
            former = self._member(kernel)
            name, folder = group_name(kernel, group), self._folder_of(kernel, group)
            identity = await self._identity(kernel, name, folder)
            if identity is None:
                raise LogLost(f"host {self._host} has no log of the new group of kernel {kernel}")
            member = await self._start(kernel, name, folder, identity)
            self._by_group.pop(former.group, None)
            self._early.pop(former.group, None)
            await former.close(delete=False)
            member.campaign()

    async def propose(
        self, kernel: KernelId, payload: bytes, proposal_id: str, timeout_s: float = 10.0
    ) -> int:
        """Commit `payload`, from whichever host; see `ReplicatedLog.propose`."""
        return await self._member(kernel).asked.propose(payload, proposal_id, timeout_s)

    def committed_from(self, kernel: KernelId, index: int) -> Sequence[Entry]:
        """The committed proposals known here from log index `index` on, in order."""
        return self._member(kernel).entries_from(index)

    async def read_barrier(self, kernel: KernelId, timeout_s: float = 10.0) -> int:
        """Wait until all that was acknowledged anywhere before this call is delivered here."""
        return await self._member(kernel).asked.read_barrier(timeout_s)

    async def transfer_leadership(
        self, kernel: KernelId, to: HostId, timeout_s: float = 5.0
    ) -> None:
        """Let the member on `to` lead; see `ReplicatedLog.transfer_leadership`."""
        await self._member(kernel).asked.transfer(to, timeout_s)

    async def change_membership(
        self, kernel: KernelId, change: Change, timeout_s: float = 30.0
    ) -> Membership:
        """Add a learner, promote or remove a member; see `ReplicatedLog.change_membership`."""
        return await self._member(kernel).asked.change_membership(change, timeout_s)

    def campaign(self, kernel: KernelId) -> None:
        """Try to lead: ask the leader to hand over, or begin an election if there is none."""
        self._member(kernel).campaign()

    def status(self, kernel: KernelId) -> MemberStatus:
        """This host's member as of now."""
        return self._member(kernel).status

    def receive(self, host: HostId, envelopes: Sequence[Envelope]) -> None:
        """Messages that `host` sent; what it says in another's name is dropped."""
        touched: dict[str, Member] = {}
        for envelope in envelopes:
            message = envelope.message
            if host_of(message.sender) != host or isinstance(message, Foreign):
                continue
            member = self._by_group.get(envelope.group)
            if member is None:
                self._keep_early(envelope.group, message)
            else:
                member.step(message)
                touched[envelope.group] = member
        for member in touched.values():
            member.pump()

    def peer_lost(self, host: HostId) -> None:
        """`host` is gone or cannot be reached: groups that it led elect at once."""
        for member in list(self._members.values()):
            member.host_lost(host)

    def peer_back(self, host: HostId) -> None:
        """`host` can be reached again."""
        for member in list(self._members.values()):
            member.host_back(host)

    async def close(self, kernel: KernelId, *, delete: bool) -> None:
        """End this host's member, with its log if `delete`; a kernel that is not here is fine."""
        async with self._opening.setdefault(kernel, asyncio.Lock()):
            await self._end(kernel, delete=delete)

    async def shut_down(self) -> None:
        """End all members and keep their logs."""
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.wait([self._ticker])
            self._ticker = None
        for kernel in self.kernels:
            await self.close(kernel, delete=False)
        self._executor.shutdown()

    def _member(self, kernel: KernelId) -> Member:
        member = self._members.get(kernel)
        if member is None:
            raise NotFound(f"host {self._host} has no member of kernel {kernel}")
        return member

    def _folder_of(self, kernel: KernelId, group: str) -> Path:
        if not re.fullmatch(r"\w[\w.-]*", kernel):
            raise InvalidRequest(f"{kernel!r} cannot be the id of a kernel")
        return self._folder / kernel / group

    def _new_name(self) -> str:
        return later_member(self._host, f"{self._rng.getrandbits(64):016x}")

    async def _run(self, call: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *arguments)

    async def _identity(self, kernel: KernelId, group: str, folder: Path) -> Identity | None:
        """Whose log is in `folder`; None if there never was one."""
        try:
            found = await self._run(identity_in, folder)
        except (CorruptRecord, NotFound) as error:
            raise LogLost(f"host {self._host}: {error.message}") from error
        if found is None:
            return None
        # Before groups had names of their own, each was called like its kernel.
        if found.group not in {group, kernel} or host_of(found.member) != self._host:
            raise CorruptRecord(
                f"the log in {folder} belongs to member {found.member} of group {found.group}, not "
                f"to one of {group} on host {self._host}"
            )
        return found

    async def _start(
        self, kernel: KernelId, group: str, folder: Path, identity: Identity
    ) -> Member:
        try:
            wal = await self._run(WriteAheadLog.open, folder, identity)
        except CorruptRecord as error:
            raise LogLost(f"host {self._host}: {error.message}") from error
        try:
            snapshot = await self._run(wal.read_snapshot)
            node = Node(
                me=identity.member,
                members=identity.members,
                rng=random.Random(self._rng.getrandbits(64)),
                timing=self._timing,
                hard_state=wal.hard_state,
                snapshot=None if snapshot is None else snapshot.meta,
                entries=wal.entries,
            )
            for other in node.members:
                if host_of(other) != self._host and host_of(other) not in self._carrier.up:
                    node.member_lost(other)
            member = Member(
                kernel=kernel,
                group=group,
                node=node,
                wal=wal,
                carrier=self._carrier,
                executor=self._executor,
                read_nonce=f"{self._rng.getrandbits(64):x}",
                on_committed=self._on_committed,
                on_leader_change=self._on_leader_change,
                hooks=self._hooks,
                limits=self._limits,
            )
        except BaseException:
            wal.close()
            raise
        if snapshot is not None:
            member.restore(snapshot)
        self._members[kernel] = self._by_group[group] = member
        for message in self._early.pop(group, []):
            member.step(message)
        member.pump()
        return member

    async def _end(self, kernel: KernelId, *, delete: bool) -> None:
        member = self._members.pop(kernel, None)
        if member is not None:
            self._by_group.pop(member.group, None)
            self._early.pop(member.group, None)
            await member.close(delete=delete)

    def _keep_early(self, group: str, message: Message) -> None:
        """A group's members open one after another; what the first says is kept for the last."""
        kept = self._early.setdefault(group, [])
        if len(kept) < _EARLY_MESSAGES_MAX:
            kept.append(message)
        if len(self._early) > _EARLY_GROUPS_MAX:
            del self._early[next(iter(self._early))]

    def _tick_from_now_on(self) -> None:
        if self._ticker is None:
            self._ticker = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        """Tick all members that need it; a turn that comes late is one tick, not several.

        After a hold-up of this process its clock must not jump: the messages that arrived
        meanwhile are still unread, and whoever seems silent may not be.
        """
        while True:
            began = self._clock.monotonic()
            for member in list(self._members.values()):
                if member.needs_ticks:
                    member.tick()
            spent_s = self._clock.monotonic() - began
            await asyncio.sleep(max(self._tick_s - spent_s, self._tick_s / 2))


def _found(folder: Path, identity: Identity, term: int, snapshot: Snapshot | None) -> None:
    wal = WriteAheadLog.open(folder, identity)
    try:
        if snapshot is not None:
            wal.save(HardState(term), (), snapshot)
    finally:
        wal.close()


def group_name(kernel: KernelId, group: str) -> str:
    """What a group is called in messages and logs; no other group of any kernel ever is."""
    return f"{kernel}/{group}" if group else kernel
