"""What a member is, what it is told once, and what it wants done."""

from __future__ import annotations

import enum

import msgspec

from notebookos_ext.cluster.consensus.messages import Entry, HardState, Message
from notebookos_ext.cluster.consensus.reads import ReadResult


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
    entries: tuple[Entry, ...] = ()
    """To be saved; they replace whatever the disk has at their indices and beyond."""
    messages: tuple[Message, ...] = ()
    """May leave only when `hard_state` and `entries` are on disk."""
    committed: tuple[Entry, ...] = ()
    """On disk here and committed, in order, each exactly once per life of this object."""
    reads: tuple[ReadResult, ...] = ()
    refused: tuple[str, ...] = ()
    """Proposals of this member that the supposed leader could not take: propose them again."""

    @property
    def must_save(self) -> bool:
        """Whether the disk is concerned at all."""
        return self.hard_state is not None or bool(self.entries)
