"""What must hold in every state of a searched group, checked by what was seen so far.

Election safety, leader completeness, log matching, state-machine safety (Raft paper, figure 3);
and that everything committed is on the disks of a majority, no proposal is committed twice, and a
read sees all that was committed before it began.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from gate.member import History, Member

from notebookos_ext.cluster.consensus.quorum import majority
from notebookos_ext.cluster.consensus.ready import Role


class Ghost(NamedTuple):
    """What no member knows, but every member must agree with.

    `leaders` are pairs of a term and the place of the member that led in it; `committed` says of
    each entry, and `in_term` in which term it was committed; `asked` are reads and proposals that
    were begun, each with the commit index of that moment.
    """

    leaders: tuple[tuple[int, int], ...] = ()
    committed: History = ()
    in_term: tuple[int, ...] = ()
    asked: tuple[tuple[str, int | None], ...] = ()

    def renamed(self, order: Sequence[int]) -> Ghost:
        """The same after the members have changed places."""
        leaders = tuple((term, order[place]) for term, place in self.leaders)
        return self._replace(leaders=leaders)


class Safety:
    """Checks states of a group whose members' states are numbered.

    `fixed`: the membership never changes, so that what is committed stays on most disks.
    """

    def __init__(self, members: list[Member], names: tuple[str, ...], *, fixed: bool) -> None:
        self._members = members
        self._names = names
        self._majority = majority(len(names))
        self._fixed = fixed
        self._held: dict[tuple[int, History, tuple[int, ...]], tuple[int, str]] = {}
        self._matching: dict[tuple[History, History], bool] = {}
        self._histories: dict[int, History] = {}

    def after(
        self, ghost: Ghost, members: tuple[int, ...], event: Any, place: int, reads: Any
    ) -> tuple[Ghost, str]:
        """The memory after `event` at `place`, and which promise is broken, if any."""
        node = self._members[members[place]].node
        if event[0] == "read":
            ghost = ghost._replace(asked=(*ghost.asked, (event[1], len(ghost.committed))))
        if event[0] == "propose" and event[1] not in dict(ghost.asked):
            ghost = ghost._replace(asked=(*ghost.asked, (event[1], event[2])))
        for read in reads:
            needed = dict(ghost.asked)[read.read_id]
            if read.index < needed:
                return ghost, f"stale read: it saw {read.index}, but {needed} were committed before"
        if node.role is Role.LEADER and (node.term, place) not in ghost.leaders:
            if node.term in dict(ghost.leaders):
                return ghost, f"election safety: two leaders in term {node.term}"
            ghost = ghost._replace(leaders=tuple(sorted((*ghost.leaders, (node.term, place)))))
        broken = ""
        if node.log.commit_index > len(ghost.committed):
            ghost, broken = self._committed(ghost, members, place)
        return ghost, broken or self._broken(ghost, members, place)

    def _committed(self, ghost: Ghost, members: tuple[int, ...], place: int) -> tuple[Ghost, str]:
        node = self._members[members[place]].node
        new = self._history(members[place])[len(ghost.committed) : node.log.commit_index]
        committed = ghost.committed + new
        ghost = ghost._replace(committed=committed, in_term=ghost.in_term + (node.term,) * len(new))
        proposals = [name for _, name in committed if name not in {"", "+"}]
        if len(proposals) != len(set(proposals)):
            return ghost, f"exactly once: committed are {proposals}"
        voters = node.log.membership.voters
        having = sum(
            self._holds(number, ghost)[0] >= len(committed)
            for name, number in zip(self._names, members, strict=True)
            if name in voters
        )
        if having < majority(len(voters)):
            return ghost, (
                f"durability: entry {len(committed)} is committed, but on the disks of only "
                f"{having} of {', '.join(voters)}"
            )
        return ghost, ""

    def _broken(self, ghost: Ghost, members: tuple[int, ...], place: int) -> str:
        on_disks = []
        for number in members:
            on_disk, broken = self._holds(number, ghost)
            if broken:
                return broken
            on_disks.append(on_disk)
        if self._fixed:
            kept = sorted(on_disks, reverse=True)[self._majority - 1]
            if kept < len(ghost.committed):
                return f"durability: entry {kept + 1} is no longer on a majority of disks"
        own = self._history(members[place])
        for number in members:
            other = self._history(number)
            if not self._match(own, other):
                return f"log matching: {own} and {other}"
        return ""

    def _holds(self, number: int, ghost: Ghost) -> tuple[int, str]:
        """How much of what is committed is on this member's disk; what it contradicts itself."""
        key = (number, ghost.committed, ghost.in_term)
        if key in self._held:
            return self._held[key]
        member, committed = self._members[number], ghost.committed
        node, history = member.node, self._history(number)
        broken = ""
        upto = node.log.commit_index
        if history[:upto] != committed[:upto]:
            broken = (
                f"state-machine safety: {member.name} commits {history[:upto]}, "
                f"committed are {committed}"
            )
        if node.role is Role.LEADER:
            for position, term in enumerate(ghost.in_term):
                here = history[position : position + 1]
                if term < node.term and here != (committed[position],):
                    broken = (
                        f"leader completeness: {member.name} leads in term {node.term} without "
                        f"entry {position + 1}, committed in term {term}"
                    )
        on_disk = 0
        for kept, wanted in zip(member.disk.history, committed, strict=False):
            if kept != wanted:
                break
            on_disk += 1
        self._held[key] = (on_disk, broken)
        return self._held[key]

    def _history(self, number: int) -> History:
        history = self._histories.get(number)
        if history is None:
            history = self._histories[number] = self._members[number].history
        return history

    def _match(self, one: History, other: History) -> bool:
        known = self._matching.get((one, other))
        if known is None:
            same_at = [i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x[0] == y[0]]
            until = same_at[-1] + 1 if same_at else 0
            known = self._matching[one, other] = one[:until] == other[:until]
        return known
