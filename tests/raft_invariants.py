"""What must hold in a Raft group at every moment, told apart from who moves it.

`Invariants.check` compares what members believe with what really is on the disks: that has more
teeth than to wait for two members to contradict each other. It is called after every step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from notebookos_ext.cluster.consensus.membership import Membership
from notebookos_ext.cluster.consensus.messages import Entry, HardState, VoteAnswer
from notebookos_ext.cluster.consensus.node import Node
from notebookos_ext.cluster.consensus.quorum import majority
from notebookos_ext.cluster.consensus.ready import Role
from notebookos_ext.cluster.consensus.snapshot import Snapshot


class DiskView(Protocol):
    """What survives a crash of one member; the entries follow the snapshot."""

    hard_state: HardState
    snapshot: Snapshot | None
    entries: list[Entry]


class MemberView(Protocol):
    """One member: its name, its process if it lives, its disk."""

    name: str
    node: Node | None

    @property
    def disk(self) -> DiskView: ...


def holds(disk: DiskView, entry: Entry) -> bool:
    """Whether a disk has an entry, or a snapshot in its place."""
    base = 0 if disk.snapshot is None else disk.snapshot.meta.index
    if entry.index <= base:
        return True
    return disk.entries[entry.index - base - 1 : entry.index - base] == [entry]


class Invariants:
    """What is known of one group so far: every commit, leader and vote there has ever been."""

    def __init__(self) -> None:
        self.committed: dict[int, Entry] = {}
        self.commit_term: dict[int, int] = {}
        self.index_by_id: dict[str, int] = {}
        self.leader_of_term: dict[int, str] = {}
        self.membership: Membership | None = None
        """The newest committed one, None for the founders'."""
        self._votes: dict[tuple[str, int], str] = {}
        self._given: set[tuple[str, int]] = set()
        """Those votes that a candidate may count: answered, or its own and on its disk."""
        self._known: dict[tuple[int, int], tuple[Entry, int]] = {}
        self._seen: dict[str, tuple[object, ...]] = {}

    @property
    def last_committed(self) -> int:
        return len(self.committed)

    # -- what is told ----------------------------------------------------------------------

    def vote_saved(self, name: str, hard_state: HardState) -> None:
        """A vote is on a disk; a member has one per term, whatever happens to its process."""
        if hard_state.vote:
            self._vote(name, hard_state.term, hard_state.vote)
            if hard_state.vote == name:
                self._given.add((name, hard_state.term))

    def answered(self, member: MemberView, answer: VoteAnswer) -> None:
        """A vote leaves: whatever happens now, this disk must keep its member from another one.

        It need not hold the vote itself: with a later term on it, that one is over.
        """
        if answer.granted and not answer.pre:
            kept = member.disk.hard_state
            assert kept.term > answer.term or kept == HardState(answer.term, answer.to), (
                f"{member.name} votes for {answer.to} in term {answer.term}, "
                f"but its disk has {kept}"
            )
            self.vote_given(member.name, answer.term, answer.to)

    def vote_given(self, name: str, term: int, candidate: str) -> None:
        """A candidate may count this vote from now on."""
        self._vote(name, term, candidate)
        self._given.add((name, term))

    def _vote(self, name: str, term: int, candidate: str) -> None:
        first = self._votes.setdefault((name, term), candidate)
        assert first == candidate, f"{name} votes for {first} and {candidate} in term {term}"

    def restarted(self, name: str) -> None:
        self._seen.pop(name, None)

    def delivered(self, member: MemberView, entries: Sequence[Entry]) -> None:
        """An application is given entries: committed ones, that its own disk has."""
        for entry in entries:
            assert self.committed.get(entry.index) == entry, f"{member.name} was given {entry}"
            assert holds(member.disk, entry), f"{entry} is not on the disk of {member.name}"

    def acknowledged(self, proposal_id: str) -> None:
        assert proposal_id in self.index_by_id, f"{proposal_id} is not committed"

    def proposals_up_to(self, index: int) -> list[str]:
        """What an application must have been given, once each, when it is at `index`."""
        return [
            entry.proposal_id
            for at in range(1, index + 1)
            if (entry := self.committed[at]).is_proposal
        ]

    # -- what must hold --------------------------------------------------------------------

    def check(self, members: Iterable[MemberView]) -> None:
        members = list(members)
        for member in members:
            if member.node is not None:
                self._check(member.name, member.node, members)

    def _check(self, name: str, node: Node, members: Sequence[MemberView]) -> None:
        log = node.log
        now = (node.role, node.term, log.base_index, log.last_index, log.last_term)
        seen = (*now, log.commit_index)
        if self._seen.get(name) == seen:
            return
        self._seen[name] = seen
        self._check_log(name, node)
        if node.role is Role.LEADER and self.leader_of_term.get(node.term) != name:
            self._check_election(name, node)
        self._check_commit(name, node, members)

    def _check_election(self, name: str, node: Node) -> None:
        """Election safety and leader completeness, at the moment when a member begins to lead."""
        first = self.leader_of_term.setdefault(node.term, name)
        assert first == name, f"{first} and {name} lead in term {node.term}"
        electors = node.log.membership.voters
        given = [m for m in electors if (m, node.term) in self._given]
        voters = [m for m in given if self._votes[m, node.term] == name]
        assert len(voters) >= majority(len(electors)), (
            f"{name} leads in term {node.term} by the votes of {voters} among {electors}"
        )
        for index, entry in self.committed.items():
            if node.term > self.commit_term[index]:
                self._check_has(name, node, entry)

    def _check_has(self, name: str, node: Node, entry: Entry) -> None:
        has = entry.index < node.log.base_index or node.log.matches(entry.index, entry.term)
        assert has, f"leader {name} of term {node.term} lacks {entry}"

    def _check_log(self, name: str, node: Node) -> None:
        """Log matching: equal places are equal entries after equal entries."""
        log = node.log
        previous_term = log.base_term
        for entry in log.entries(log.first_index, log.last_index):
            known = self._known.setdefault((entry.index, entry.term), (entry, previous_term))
            assert known == (entry, previous_term), f"logs differ at {entry} of {name}"
            previous_term = entry.term
        if committed := self.committed.get(log.base_index):
            assert committed.term == log.base_term, f"{name} has a snapshot of another log"
        assert log.base_index <= len(self.committed), f"{name} forgot what is not committed"

    def _check_commit(self, name: str, node: Node, members: Sequence[MemberView]) -> None:
        voters = node.log.membership.voters
        for index in range(len(self.committed) + 1, node.log.commit_index + 1):
            entry = node.log.entries(index, index)[0]
            holders = [m.name for m in members if m.name in voters and holds(m.disk, entry)]
            assert len(holders) >= majority(len(voters)), (
                f"{name} holds {entry} committed, which of {voters} only {holders} have on disk"
            )
            if entry.is_proposal:
                assert entry.proposal_id not in self.index_by_id, f"{entry} committed twice"
                self.index_by_id[entry.proposal_id] = index
            if entry.membership is not None:
                self._check_membership(entry.membership)
            self.committed[index] = entry
            self.commit_term[index] = node.term
            for other in members:
                if other.node and other.node.role is Role.LEADER and other.node.term > node.term:
                    self._check_has(other.name, other.node, entry)

    def _check_membership(self, after: Membership) -> None:
        before = self.membership
        if before is not None:
            assert len(set(before.voters) ^ set(after.voters)) <= 1, f"{before} to {after}"
        assert after.voters, "nobody decides any more"
        self.membership = after
