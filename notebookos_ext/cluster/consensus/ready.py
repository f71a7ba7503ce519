"""What a member is, what it is told once, and what it wants done."""

from __future__ import annotations

import enum

import msgspec

from notebookos_ext.cluster.consensus.messages import Entry, HardState, Message
from notebookos_ext.cluster.consensus.reads import ReadResult
from notebookos_ext.cluster.consensus.snapshot import Snapshot


class Role(enum.StrEnum):
    """What a member does at present."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Proposed(enum.StrEnum):
    """What became of a call of `propose`; only the log says when it is committed."""

    COMMITTED = "committed"
    """It was already."""
    APPENDED = "appended"
    """It is in this leader's log."""
    FORWARDED = "forwarded"
    """It is on its way to the leader, from which no answer but the log itself may come."""
    REFUSED = "refused"
    """No leader is known, or it is handing over: ask again."""
    EXPIRED = "expired"
    """It was first proposed so long ago that nobody can tell whether it was committed since."""


class Timing(msgspec.Struct, frozen=True):
    """Durations in ticks."""

    election_ticks: int = 15
    """A follower with a leader waits between this and twice this before it doubts the leader."""
    heartbeat_ticks: int = 2
    retry_ticks: int = 5
    """Without a leader there is nobody to depose: wait between this and twice this."""
    stagger_ticks: int = 2
    """After the loss of the leader's host the others begin one after another, this far apart."""
    rest_ticks: int = 10
    """The group rests after this long without anything to do."""


class Ready(msgspec.Struct, frozen=True):
    """What a member wants done; see the module for the order."""

    early: tuple[Message, ...] = ()
    """May leave before anything is saved."""
    hard_state: HardState | None = None
    snapshot: Snapshot | None = None
    """To be saved before `entries`, in the place of all entries and any snapshot on the disk."""
    entries: tuple[Entry, ...] = ()
    """To be saved; they replace whatever the disk has at their indices and beyond."""
    messages: tuple[Message, ...] = ()
    """May leave only when `hard_state`, `snapshot` and `entries` are on disk."""
    committed: tuple[Entry, ...] = ()
    """On disk here and committed, in order, each exactly once per life of this object.

    The application takes over the state of `snapshot`, if there is one, before them.
    """
    reads: tuple[ReadResult, ...] = ()
    refused: tuple[str, ...] = ()
    """Proposals of this member that the supposed leader could not take: propose them again."""
    expired: tuple[str, ...] = ()
    """Proposals of this member whose outcome nobody can tell any more."""
    snapshot_wanted: int = 0
    """The log index of a snapshot made here, whose state is wanted by `provide_snapshot`."""

    @property
    def must_save(self) -> bool:
        """Whether the disk is concerned at all."""
        return self.hard_state is not None or self.snapshot is not None or bool(self.entries)
