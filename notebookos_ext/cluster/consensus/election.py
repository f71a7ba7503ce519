"""One attempt of a member to become the leader, real or only asked about (thesis 3.4 and 9.6)."""

from __future__ import annotations

from collections.abc import Sequence

from notebookos_ext.cluster.consensus.messages import VoteRequest
from notebookos_ext.cluster.consensus.quorum import majority


class Election:
    """The votes of `voters` for `me` in `term`; with `pre` nobody is bound by them.

    `transfer`: the leader itself asked for it.
    """

    def __init__(
        self, *, me: str, voters: Sequence[str], term: int, pre: bool, transfer: bool = False
    ) -> None:
        self.term = term
        self.pre = pre
        self._me = me
        self._voters = tuple(voters)
        self._transfer = transfer
        self._votes: dict[str, bool] = {}

    def count(self, voter: str, *, granted: bool) -> None:
        """Take one member's vote; what it says later about the same term changes nothing.

        A member votes whether or not it knows that it may; it counts if this log says so.
        """
        self._votes.setdefault(voter, granted)

    @property
    def is_won(self) -> bool:
        """Whether a majority has voted for it."""
        granted = sum(self._votes.get(voter, False) for voter in self._voters)
        return granted >= majority(len(self._voters))

    def requests(self, last_index: int, last_term: int) -> list[VoteRequest]:
        """Ask whoever has not answered yet; asking twice does no harm."""
        return [
            VoteRequest(
                sender=self._me,
                to=member,
                term=self.term,
                last_index=last_index,
                last_term=last_term,
                pre=self.pre,
                transfer=self._transfer,
            )
            for member in self._voters
            if member != self._me and member not in self._votes
        ]
