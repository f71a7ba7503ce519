"""How far a search goes."""

from __future__ import annotations

import msgspec


class Bounds(msgspec.Struct, frozen=True):
    """How far a search goes. `depth`: steps from the start, or as many as there are."""

    names: str = "abc"
    terms: int = 2
    commands: int = 2
    repeats: int = 0
    """How often a command is proposed again, to anyone."""
    crashes: int = 1
    duplicates: int = 1
    in_flight: int = 3
    beats: int = 0
    """Ticks of a leader: heartbeats, and the end of its leadership if nobody answers."""
    reads: int = 0
    transfers: int = 0
    compactions: int = 0
    """A member makes a snapshot of all it has delivered, and forgets the entries."""
    changes: int = 0
    """Of the membership: any member is added as a learner, promoted or removed."""
    founders: int | None = None
    """How many of `names` are members at first; None: all."""
    identities: int = 4
    """How many forgotten proposals a log remembers."""
    begun: bool = False
    """It begins with the first member leading in term 1, and the others up to date."""
    forwards: bool = False
    """Commands are proposed to followers too, which forward them."""
    slow_disks: bool = False
    """A save ends some time later, and other events come between."""
    asks_first: bool = False
    """Elections begin with pre-votes; else they begin whenever the search wants it."""
    one_entry_each: bool = False
    """Every Append carries at most one entry, as if entries were large."""
    symmetric: bool = True
    """States that differ only by the members' names are one."""
    depth: int | None = None
    states: int | None = None

    def told(self) -> str:
        """In words, for reports."""
        counts = (
            (len(self.names), "member", "members"),
            (self.terms, "term", "terms"),
            (self.commands, "command", "commands"),
            (self.repeats, "repeat", "repeats"),
            (self.crashes, "crash", "crashes"),
            (self.duplicates, "duplicate", "duplicates"),
            (self.beats, "tick of a leader", "ticks of a leader"),
            (self.reads, "read", "reads"),
            (self.transfers, "handover", "handovers"),
            (self.compactions, "snapshot", "snapshots"),
            (self.changes, "change of membership", "changes of membership"),
            (self.founders, "founder", "founders"),
            (self.in_flight, "message in flight", "messages in flight"),
        )
        words = [f"{n} {one if n == 1 else many}" for n, one, many in counts if n]
        words += ["begun with a leader"] if self.begun else []
        words += ["slow disks"] if self.slow_disks else []
        words += ["pre-votes"] if self.asks_first else []
        words += ["proposals from followers"] if self.forwards else []
        words += ["one entry a message"] if self.one_entry_each else []
        words += [f"at most {self.depth} steps"] if self.depth is not None else []
        words += [f"at most {self.states:,} states"] if self.states is not None else []
        return ", ".join(words)


BUDGETS = (
    "commands",
    "repeats",
    "crashes",
    "duplicates",
    "beats",
    "reads",
    "transfers",
    "compactions",
    "changes",
)
(
    COMMANDS,
    REPEATS,
    CRASHES,
    DUPLICATES,
    BEATS,
    READS,
    TRANSFERS,
    COMPACTIONS,
    CHANGES,
) = range(len(BUDGETS))


def less(left: tuple[int, ...], budget: int) -> tuple[int, ...]:
    """What is left of all budgets after one more of `budget`."""
    return (*left[:budget], left[budget] - 1, *left[budget + 1 :])
