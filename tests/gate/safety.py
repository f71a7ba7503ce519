"""What must hold in every state of a searched group, checked by what was seen so far.

Election safety, leader completeness, log matching, state-machine safety (Raft paper, figure 3);
and that everything committed is on the disks of a majority, from the moment it is committed on, and
that a read sees all that was committed before it began.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gate.member import Member

from notebookos_ext.cluster.consensus.quorum import majority
from notebookos_ext.cluster.consensus.ready import Role


class Committed(NamedTuple):
    """An entry that some member has called committed, and in which term it led to that."""

    term: int
    proposal_id: str
    by_term: int


class Ghost(NamedTuple):
    """What no member knows, but every member must agree with.

    `leaders` are pairs of a term and the place of the member that led in it; `reads` are pairs of a
    read's id and what must be applied before it is answered.
    """

    leaders: tuple[tuple[int, int], ...] = ()
    committed: tuple[Committed, ...] = ()
    reads: tuple[tuple[str, int], ...] = ()

    def renamed(self, order: Sequence[int]) -> Ghost:
        """The same after the members have changed places."""
        leaders = tuple((term, order[place]) for term, place in self.leaders)
        return self._replace(leaders=leaders)


class Safety:
    """Checks states of a group whose members' states are numbered."""

    def __init__(self, members: list[Member], names: tuple[str, ...]) -> None:
        self._members = members
        self._majority = majority(len(names))
        self._held: dict[tuple[int, tuple[Committed, ...]], tuple[int, str]] = {}
        self._matching: dict[tuple[Any, Any], bool] = {}
        self._logs: dict[int, tuple[tuple[int, str], ...]] = {}

    def after(
        self, ghost: Ghost, members: tuple[int, ...], event: Any, place: int, reads: Any
    ) -> tuple[Ghost, str]:
        """The memory after `event` at `place`, and which promise is broken, if any."""
        changed = self._members[members[place]]
        node = changed.node
        if event[0] == "read":
            ghost = ghost._replace(reads=(*ghost.reads, (event[1], len(ghost.committed))))
        for read in reads:
            needed = dict(ghost.reads)[read.read_id]
            if read.index < needed:
                return ghost, f"stale read: it saw {read.index}, but {needed} were committed before"
        if node.role is Role.LEADER and (node.term, place) not in ghost.leaders:
            other = dict(ghost.leaders).get(node.term)
            if other is not None:
                return ghost, f"election safety: two leaders in term {node.term}"
            ghost = ghost._replace(leaders=tuple(sorted((*ghost.leaders, (node.term, place)))))
        if node.log.commit_index > len(ghost.committed):
            log = self._log(members[place])
            new = log[len(ghost.committed) : node.log.commit_index]
            added = tuple(Committed(term, name, node.term) for term, name in new)
            ghost = ghost._replace(committed=ghost.committed + added)
        return ghost, self._broken(ghost, members, place)

    def _broken(self, ghost: Ghost, members: tuple[int, ...], place: int) -> str:
        on_disks = []
        for number in members:
            on_disk, broken = self._holds(number, ghost.committed)
            if broken:
                return broken
            on_disks.append(on_disk)
        kept = sorted(on_disks, reverse=True)[self._majority - 1]
        if kept < len(ghost.committed):
            return f"durability: entry {kept + 1} is committed, but not on a majority of disks"
        own = self._log(members[place])
        for number in members:
            other = self._log(number)
            if not self._match(own, other):
                return f"log matching: {own} and {other}"
        return ""

    def _holds(self, number: int, committed: tuple[Committed, ...]) -> tuple[int, str]:
        """How much of what is committed is on this member's disk; what it contradicts itself."""
        key = (number, committed)
        if key in self._held:
            return self._held[key]
        member = self._members[number]
        node, log = member.node, self._log(number)
        wanted = [(entry.term, entry.proposal_id) for entry in committed]
        broken = ""
        upto = node.log.commit_index
        if list(log[:upto]) != wanted[:upto]:
            broken = f"state-machine safety: {member.name} commits {log[:upto]}, others {wanted}"
        if node.role is Role.LEADER:
            for position, entry in enumerate(committed):
                if entry.by_term < node.term and log[position : position + 1] != (entry[:2],):
                    broken = (
                        f"leader completeness: {member.name} leads in term {node.term} without "
                        f"entry {position + 1} of term {entry.term}"
                    )
        on_disk = 0
        for entry, (term, name) in zip(member.disk.entries, wanted, strict=False):
            if (entry.term, entry.proposal_id) != (term, name):
                break
            on_disk += 1
        self._held[key] = (on_disk, broken)
        return self._held[key]

    def _log(self, number: int) -> tuple[tuple[int, str], ...]:
        log = self._logs.get(number)
        if log is None:
            node_log = self._members[number].node.log
            entries = node_log.entries(1, node_log.last_index)
            log = self._logs[number] = tuple((e.term, e.proposal_id) for e in entries)
        return log

    def _match(self, one: Any, other: Any) -> bool:
        known = self._matching.get((one, other))
        if known is None:
            same_at = [i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x[0] == y[0]]
            until = same_at[-1] + 1 if same_at else 0
            known = self._matching[one, other] = one[:until] == other[:until]
        return known
