"""Goes on with a kernel in a new group of this host's member alone, from what the member knows.

For a kernel without a majority. Everything in the member's log counts in the new group, also what
may not have been committed in the old one: it is what the member would commit if it led, and
leaving it out could lose what was acknowledged. The new group has a key, a log and a name of its
own, so no vote, entry or acknowledgement of the old one means anything in it.

Two steps: the controller writes the new key down in between, so that whenever it ends there is one
group that the next controller opens.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from notebookos_ext.agent.kernel_states import KernelStates
from notebookos_ext.agent.kernels import HostedKernel, group_of
from notebookos_ext.agent.members import Members
from notebookos_ext.agent.raftos_members import RaftosMembers, fixed
from notebookos_ext.cluster.consensus.messages import Entry
from notebookos_ext.cluster.consensus.snapshot import Snapshot
from notebookos_ext.cluster.messages.control import (
    Done,
    GroupPrepared,
    PrepareGroup,
    SwitchGroup,
)
from notebookos_ext.cluster.model import KernelId
from notebookos_ext.cluster.snapshots import KernelSnapshot, encode_snapshot
from notebookos_ext.errors import NotFound, Unavailable

log = logging.getLogger(__name__)


class _Prepared(msgspec.Struct, frozen=True):
    log_key: bytes
    tail: tuple[Entry, ...]
    snapshot: KernelSnapshot
    index: int


class Regrouping:
    """Answers the controller; `kernels` are those that are open.

    Args:
        reopen: opens the member of a kernel that could not go on again, in its old group.
        switched: a kernel's group is another now; its other logs may go.
    """

    def __init__(
        self,
        kernels: Mapping[KernelId, HostedKernel],
        members: Members | RaftosMembers,
        states: KernelStates,
        *,
        reopen: Callable[[HostedKernel], Awaitable[None]],
        switched: Callable[[HostedKernel], Awaitable[None]],
    ) -> None:
        self._kernels = kernels
        self._members = members
        self._states = states
        self._reopen = reopen
        self._switched = switched
        self._prepared: dict[KernelId, _Prepared] = {}

    def forget(self, kernel: KernelId) -> None:
        """The kernel is closed here, or goes on in its old group."""
        self._prepared.pop(kernel, None)

    async def prepare(self, request: PrepareGroup) -> GroupPrepared:
        """See `PrepareGroup`. Raises NotFound, Unavailable, StorageError; Infeasible for raftos."""
        if isinstance(self._members, RaftosMembers):
            raise fixed(request.kernel)
        hosted = self._hosted(request.kernel)
        if self._prepared.pop(request.kernel, None) is not None:
            # Whoever asked for that one never heard of it, and goes on with another key.
            await self._reopen(hosted)
        try:
            sealed = await self._members.seal(request.kernel)
            whole = hosted.history.with_tail(sealed.tail)
            if whole.is_restoring:
                raise Unavailable(
                    f"kernel {request.kernel} was just being brought back from the store, and not "
                    "all of it is here; restart the kernel"
                )
            snapshot = await self._states.folded(whole.freeze())
            state = encode_snapshot(request.kernel, snapshot, request.log_key)
            await self._members.found(
                request.kernel,
                group_of(request.log_key),
                sealed.term,
                Snapshot(sealed.meta, state) if sealed.meta.index else None,
            )
        except BaseException:
            await self._reopen(hosted)
            raise
        index = sealed.meta.index
        self._prepared[request.kernel] = _Prepared(request.log_key, sealed.tail, snapshot, index)
        log.info(
            "kernel %s: a new group is prepared, up to entry %d, %d of them uncertain",
            request.kernel,
            index,
            len(sealed.tail),
        )
        return GroupPrepared(
            last_closed_attempt=whole.last_closed_attempt, uncertain=len(sealed.tail)
        )

    async def switch(self, request: SwitchGroup) -> Done:
        """See `SwitchGroup`. Raises NotFound when it was not prepared, StorageError."""
        hosted = self._hosted(request.kernel)
        prepared = self._prepared.get(request.kernel)
        if prepared is None or prepared.log_key != request.log_key:
            raise NotFound(f"no new group of kernel {request.kernel} was prepared here")
        if isinstance(self._members, RaftosMembers):
            raise fixed(request.kernel)
        del self._prepared[request.kernel]
        hosted.regroup(prepared.log_key, prepared.tail, prepared.snapshot, prepared.index)
        await self._members.switch(request.kernel, hosted.group)
        await self._switched(hosted)
        return Done()

    def _hosted(self, kernel: KernelId) -> HostedKernel:
        hosted = self._kernels.get(kernel)
        if hosted is None:
            raise NotFound(f"kernel {kernel} is not open on this host")
        return hosted
