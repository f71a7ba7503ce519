"""The published raftos as an engine: this host's members, each a process. *Not durable.*

It stands where `Members` does and makes of raftos what can be made from outside: proposals from
any host, confirmed each for itself, never delivered twice, and read barriers (which are entries of
their own). What raftos loses it loses: nothing is flushed, and after a fail-over or a restart a
group may never commit again. Groups of one, handovers and changes of members it does not have.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import random
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from notebookos_ext.agent.member import Carrier
from notebookos_ext.agent.raftos_member import BARRIER, RaftosMember
from notebookos_ext.cluster.consensus.membership import Change, Membership
from notebookos_ext.cluster.consensus.messages import (
    PAYLOAD_BYTES_MAX,
    Entry,
    Envelope,
    Foreign,
)
from notebookos_ext.cluster.consensus.replicated_log import MemberStatus
from notebookos_ext.cluster.model import HostId, KernelId
from notebookos_ext.errors import (
    Infeasible,
    InvalidRequest,
    InvalidSettings,
    NoMajority,
    NotFound,
    OutcomeUnknown,
)
from notebookos_ext.settings import RAFTOS_VERSION

HEARTBEAT_S = 0.3
"""raftos's own. A leader that is held up for five of them is replaced, which its groups may not
survive.
"""
NOT_DURABLE = (
    "consensus_engine is raftos: it flushes nothing to disk and may lose what it has acknowledged; "
    "use it for comparison only"
)

_log = logging.getLogger(__name__)


def require_raftos() -> None:
    """Raises InvalidSettings, with the way out, unless the one known version is installed."""
    try:
        found = importlib.metadata.version("raftos")
        importlib.metadata.version("msgpack")
    except importlib.metadata.PackageNotFoundError as error:
        raise InvalidSettings(
            f"consensus_engine is raftos, but {error.name} is not installed in {sys.prefix}; "
            "run jupyter notebookos install-raftos there"
        ) from None
    if found != RAFTOS_VERSION:
        raise InvalidSettings(
            f"consensus_engine is raftos, but version {found} of it is installed, not "
            f"{RAFTOS_VERSION}; run jupyter notebookos install-raftos"
        )


def fixed(kernel: KernelId) -> Infeasible:
    """Why a kernel's group stays as it is."""
    return Infeasible(
        f"the hosts of kernel {kernel} cannot change: raftos fixes them when a group is made; "
        "set consensus_engine to raft for kernels that move"
    )


class RaftosMembers:
    """Opens and closes members; everything on the loop of the agent. See `Members`.

    Raises:
        InvalidSettings: raftos is not installed.
    """

    def __init__(
        self,
        *,
        host: HostId,
        folder: Path,
        transport: Carrier,
        rng: random.Random,
        on_committed: Callable[[KernelId, Sequence[Entry]], None],
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        require_raftos()
        self._host = host
        self._folder = folder
        self._carrier = transport
        self._rng = rng
        self._on_committed = on_committed
        self._heartbeat_s = heartbeat_s
        self._members: dict[KernelId, RaftosMember] = {}
        self._opening: dict[KernelId, asyncio.Lock] = {}
        _log.warning("%s", NOT_DURABLE)

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
        is_new: bool = True,  # noqa: ARG002 - raftos cannot tell a lost log from a new one
    ) -> None:
        """Start the process of this host's member; opening twice is fine.

        Raises:
            InvalidRequest: this host is not among `member_hosts`, or the id is no file name.
            Infeasible: raftos has no groups of one.
            LaunchFailed: the process did not begin, perhaps because its files cannot be read.
        """
        if self._host not in member_hosts:
            raise InvalidRequest(f"host {self._host} is not among {', '.join(member_hosts)}")
        if not re.fullmatch(r"\w[\w.-]*", kernel):
            raise InvalidRequest(f"{kernel!r} cannot be the id of a kernel")
        if len(member_hosts) == 1:
            raise Infeasible(
                "raftos elects nobody in a group of one; ask for 3 or 5 replicas, "
                "or set consensus_engine to raft"
            )
        async with self._opening.setdefault(kernel, asyncio.Lock()):
            if kernel in self._members:
                return
            member = RaftosMember(
                kernel=kernel,
                group=f"{kernel}/{group}",
                host=self._host,
                folder=self._folder / kernel / group,
                carrier=self._carrier,
                barrier=f"{BARRIER}{self._rng.getrandbits(64):x}",
                on_committed=self._on_committed,
            )
            # Messages of the others come as soon as they have begun.
            self._members[kernel] = member
            try:
                await member.begin(member_hosts, self._heartbeat_s)
            except BaseException:
                del self._members[kernel]
                raise
            if campaign:
                member.campaign()

    async def join(self, kernel: KernelId, *, group: str = "") -> str:  # noqa: ARG002 - never
        """Raises Infeasible: raftos's groups never change."""
        raise fixed(kernel)

    async def change_membership(
        self,
        kernel: KernelId,
        change: Change,  # noqa: ARG002 - never done
        timeout_s: float = 30.0,  # noqa: ARG002 - as in `ReplicatedLog`
    ) -> Membership:
        """Raises Infeasible: raftos's groups never change."""
        raise fixed(kernel)

    async def propose(
        self, kernel: KernelId, payload: bytes, proposal_id: str, timeout_s: float = 10.0
    ) -> int:
        """Commit `payload`, as far as raftos does; see `ReplicatedLog.propose`."""
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise InvalidRequest(
                f"an entry of {len(payload):,} bytes is over the limit of {PAYLOAD_BYTES_MAX:,}; "
                "put its large parts into the checkpoint store"
            )
        return await self._member(kernel).propose(payload, proposal_id, timeout_s)

    def committed_from(self, kernel: KernelId, index: int) -> Sequence[Entry]:
        """The committed proposals known here from log index `index` on, in order."""
        return [entry for entry in self._member(kernel).entries if entry.index >= index]

    async def read_barrier(self, kernel: KernelId, timeout_s: float = 10.0) -> int:
        """Return when an entry made for this call is delivered here. Raises NoMajority."""
        member = self._member(kernel)
        try:
            return await member.propose(b"", member.new_barrier(), timeout_s)
        except OutcomeUnknown as error:
            raise NoMajority(error.message) from None

    async def transfer_leadership(
        self, kernel: KernelId, to: HostId, timeout_s: float = 5.0
    ) -> None:
        """Raftos has no handover. Raises Infeasible unless `to` leads already."""
        member = self._member(kernel)
        if member.standing.leader != to:
            raise Infeasible(
                f"kernel {kernel}: raftos cannot hand over to {to} within {timeout_s:g} s or ever"
            )

    def status(self, kernel: KernelId) -> MemberStatus:
        """This host's member as of now."""
        return self._member(kernel).status

    def receive(self, host: HostId, envelopes: Sequence[Envelope]) -> None:
        """Messages that `host` sent; what it says in another's name is dropped."""
        for envelope in envelopes:
            kernel = envelope.group.partition("/")[0]
            member = self._members.get(KernelId(kernel))
            if member is None or member.group != envelope.group:
                continue
            if envelope.message.sender == host and isinstance(envelope.message, Foreign):
                member.receive(host, envelope.message.payload)

    def peer_lost(self, host: HostId) -> None:
        """Raftos finds out by itself."""

    def peer_back(self, host: HostId) -> None:
        """Raftos finds out by itself."""

    async def close(self, kernel: KernelId, *, delete: bool) -> None:
        """End this host's member, with its files if `delete`."""
        async with self._opening.setdefault(kernel, asyncio.Lock()):
            member = self._members.pop(kernel, None)
            if member is not None:
                await member.close()
                if delete:
                    await asyncio.to_thread(shutil.rmtree, member.folder, ignore_errors=True)

    async def shut_down(self) -> None:
        """End all members and keep their files."""
        for kernel in self.kernels:
            await self.close(kernel, delete=False)

    def _member(self, kernel: KernelId) -> RaftosMember:
        member = self._members.get(kernel)
        if member is None:
            raise NotFound(f"host {self._host} has no member of kernel {kernel}")
        return member
