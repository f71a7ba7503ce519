"""What the rest of the package sees of consensus: one replicated log per kernel.

Any engine that keeps these promises can stand behind it; the default is this folder's core, driven
by `agent/members.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from notebookos_ext.cluster.consensus.membership import Change, Membership
from notebookos_ext.cluster.consensus.messages import Entry
from notebookos_ext.cluster.consensus.ready import Role
from notebookos_ext.cluster.model import HostId, KernelId


class MemberStatus(msgspec.Struct, frozen=True):
    """One member as its host sees it now.

    `failure` is empty while the member takes part, else the sentence that says why it does not.
    """

    kernel: KernelId
    role: Role
    term: int
    leader: HostId | None
    last_index: int
    commit_index: int
    delivered_index: int
    resting: bool
    failure: str = ""
    member: str = ""
    """Its name in the group; see `membership.later_member`."""
    membership: Membership = Membership()
    """As far as it is committed here."""
    snapshot_index: int = 0
    """Up to here a snapshot stands for the log on disk; 0: there is none."""
    log_bytes: int = 0
    leader_changes: int = 0
    """Since the member was opened."""
    last_term: int = 0
    """Of the entry at `last_index`: of two members the one whose log ends higher knows more."""


class SnapshotHooks(Protocol):
    """The application's side of snapshots. All calls come on the loop of the log's owner."""

    def capture(self, kernel: KernelId) -> Callable[[], Awaitable[bytes]] | None:
        """What makes the state after all entries that were delivered until now; None: not now.

        The state is made while further entries are delivered, which must not find their way into
        it. What is awaited raises NotebookOSError when no state can be made; nothing is lost then.
        """
        ...

    def compacted(self, kernel: KernelId, index: int) -> None:
        """The log has forgotten what the state stands for that was captured at `index`."""
        ...

    def restore(self, kernel: KernelId, index: int, state: bytes) -> None:
        """Go on from `state`, in which everything up to `index` is; later entries follow.

        Raises StorageError when it cannot be used: the member then takes no part any more.
        """
        ...


class ReplicatedLog(Protocol):
    """Committed means: on the disks of a majority, for ever, at one index, the same everywhere."""

    async def propose(
        self, kernel: KernelId, payload: bytes, proposal_id: str, timeout_s: float = 10.0
    ) -> int:
        """Commit `payload` and return its index; a repeated `proposal_id` is not committed again.

        Raises:
            InvalidRequest: the payload is over `PAYLOAD_BYTES_MAX`.
            NoMajority: nobody leads; the payload has not been handed to anyone.
            NotFound: this host has no member of that kernel.
            OutcomeUnknown: it may or may not be committed; repeat it with the same id.
            Refused: it was first proposed so long ago that nobody can tell whether it is committed.
            StorageError: this host's disk is full or broken, so its member takes no part.
        """
        ...

    def committed_from(self, kernel: KernelId, index: int) -> Sequence[Entry]:
        """The committed proposals that this host knows of, from `index` on, in order."""
        ...

    async def read_barrier(self, kernel: KernelId, timeout_s: float = 10.0) -> int:
        """Return when everything acknowledged before the call is delivered here, and up to where.

        Raises:
            NoMajority: nobody could confirm it in time.
            NotFound: this host has no member of that kernel.
            StorageError: this host's disk is full or broken, so its member takes no part.
        """
        ...

    async def transfer_leadership(
        self, kernel: KernelId, to: HostId, timeout_s: float = 5.0
    ) -> None:
        """Return when `to` leads as far as this host knows.

        Raises:
            InvalidRequest: `to` has no member of that kernel.
            NoMajority: it did not come to lead in time; whoever leads still does.
            NotFound: this host has no member of that kernel.
        """
        ...

    async def change_membership(
        self, kernel: KernelId, change: Change, timeout_s: float = 30.0
    ) -> Membership:
        """Return when the change is committed as far as this host knows, with what is committed.

        Raises:
            InvalidRequest: it would leave nobody to decide, or promotes a stranger.
            NoMajority: nobody could commit it in time; it may still happen.
            NotFound: this host has no member of that kernel.
            Unavailable: the learner to be promoted has not caught up yet.
        """
        ...

    def status(self, kernel: KernelId) -> MemberStatus:
        """The member of this host. Raises NotFound if it has none."""
        ...
