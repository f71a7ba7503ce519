"""This host's members of all its kernels' Raft groups: the default `ReplicatedLog`."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from notebookos_ext.agent.member import Carrier, Member
from notebookos_ext.clock import Clock
from notebookos_ext.cluster.consensus.messages import Entry, Envelope, Foreign, Message
from notebookos_ext.cluster.consensus.node import Node
from notebookos_ext.cluster.consensus.ready import Timing
from notebookos_ext.cluster.consensus.replicated_log import MemberStatus
from notebookos_ext.cluster.model import HostId, KernelId
from notebookos_ext.errors import InvalidRequest, NotFound
from notebookos_ext.storage.wal import Identity, WriteAheadLog

TICK_S = 0.1
SAVING_THREADS = 4

_EARLY_KERNELS_MAX = 64
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
        self._tick_s = tick_s
        self._timing = timing or Timing()
        self._members: dict[KernelId, Member] = {}
        self._opening: dict[KernelId, asyncio.Lock] = {}
        self._early: dict[KernelId, list[Message]] = {}
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
    ) -> None:
        """Create this host's member of the kernel's group, or recover it; opening twice is fine.

        A kernel may have one `group` after the other. Each has a log of its own, so that what a
        host still has of a former one, whose end it missed, can never vote or count in this one.
        `campaign`: it should lead at first, so it begins an election without waiting. Committed
        entries of an earlier life may be passed to `on_committed` before this returns.

        Raises:
            InvalidRequest: this host is not among `member_hosts`, or the id is no file name.
            CorruptRecord: the log is damaged, or was made for other members.
            StorageError: the log cannot be opened, or the disk is full.
        """
        if self._host not in member_hosts:
            raise InvalidRequest(f"host {self._host} is not among {', '.join(member_hosts)}")
        if not re.fullmatch(r"\w[\w.-]*", kernel):
            raise InvalidRequest(f"{kernel!r} cannot be the id of a kernel")
        async with self._opening.setdefault(kernel, asyncio.Lock()):
            member = self._members.get(kernel)
            if member is None:
                member = await self._create(kernel, member_hosts, self._folder / kernel / group)
                self._members[kernel] = member
                self._catch_up(kernel, member)
                if campaign or len(member_hosts) == 1:
                    member.campaign()
            elif member.node.members != tuple(member_hosts):
                raise InvalidRequest(
                    f"kernel {kernel} has members on {', '.join(member.node.members)}; "
                    "they are fixed when it is created"
                )
        if self._ticker is None:
            self._ticker = asyncio.create_task(self._tick())

    async def propose(
        self, kernel: KernelId, payload: bytes, proposal_id: str, timeout_s: float = 10.0
    ) -> int:
        """Commit `payload`, from whichever host; see `ReplicatedLog.propose`."""
        return await self._member(kernel).propose(payload, proposal_id, timeout_s)

    def committed_from(self, kernel: KernelId, index: int) -> Sequence[Entry]:
        """The committed proposals known here from log index `index` on, in order."""
        return self._member(kernel).entries_from(index)

    async def read_barrier(self, kernel: KernelId, timeout_s: float = 10.0) -> int:
        """Wait until all that was acknowledged anywhere before this call is delivered here."""
        return await self._member(kernel).read_barrier(timeout_s)

    async def transfer_leadership(
        self, kernel: KernelId, to: HostId, timeout_s: float = 5.0
    ) -> None:
        """Let the member on `to` lead; see `ReplicatedLog.transfer_leadership`."""
        await self._member(kernel).transfer(to, timeout_s)

    def campaign(self, kernel: KernelId) -> None:
        """Try to lead: ask the leader to hand over, or begin an election if there is none."""
        self._member(kernel).campaign()

    def status(self, kernel: KernelId) -> MemberStatus:
        """This host's member as of now."""
        return self._member(kernel).status

    def receive(self, host: HostId, envelopes: Sequence[Envelope]) -> None:
        """Messages that `host` sent; what it says in another's name is dropped."""
        touched: dict[KernelId, Member] = {}
        for envelope in envelopes:
            if envelope.message.sender != host or isinstance(envelope.message, Foreign):
                continue
            kernel = KernelId(envelope.group)
            member = self._members.get(kernel)
            if member is None:
                self._keep_early(kernel, envelope.message)
            else:
                member.step(envelope.message)
                touched[kernel] = member
        for member in touched.values():
            member.pump()

    def peer_lost(self, host: HostId) -> None:
        """`host` is gone or cannot be reached: groups that it led elect at once."""
        for member in list(self._members.values()):
            member.member_lost(host)

    def peer_back(self, host: HostId) -> None:
        """`host` can be reached again."""
        for member in list(self._members.values()):
            member.member_back(host)

    async def close(self, kernel: KernelId, *, delete: bool) -> None:
        """End this host's member, with its log if `delete`; a kernel that is not here is fine."""
        async with self._opening.setdefault(kernel, asyncio.Lock()):
            member = self._members.pop(kernel, None)
            self._early.pop(kernel, None)
            if member is not None:
                await member.close(delete=delete)

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

    async def _create(
        self, kernel: KernelId, member_hosts: tuple[HostId, ...], folder: Path
    ) -> Member:
        identity = Identity(kernel, self._host, tuple(member_hosts))
        wal = await asyncio.get_running_loop().run_in_executor(
            self._executor, WriteAheadLog.open, folder, identity
        )
        node = Node(
            me=self._host,
            members=member_hosts,
            rng=random.Random(self._rng.getrandbits(64)),
            timing=self._timing,
            hard_state=wal.hard_state,
            entries=wal.entries,
        )
        for other in member_hosts:
            if other != self._host and other not in self._carrier.up:
                node.member_lost(other)
        return Member(
            kernel=kernel,
            node=node,
            wal=wal,
            carrier=self._carrier,
            executor=self._executor,
            read_nonce=f"{self._rng.getrandbits(64):x}",
            on_committed=self._on_committed,
            on_leader_change=self._on_leader_change,
        )

    def _keep_early(self, kernel: KernelId, message: Message) -> None:
        """A group's members open one after another; what the first says is kept for the last."""
        kept = self._early.setdefault(kernel, [])
        if len(kept) < _EARLY_MESSAGES_MAX:
            kept.append(message)
        if len(self._early) > _EARLY_KERNELS_MAX:
            del self._early[next(iter(self._early))]

    def _catch_up(self, kernel: KernelId, member: Member) -> None:
        for message in self._early.pop(kernel, []):
            member.step(message)
        member.pump()

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
