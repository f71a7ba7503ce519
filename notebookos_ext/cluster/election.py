"""Who runs a cell when the scheduler does not say: ballots of the kernel's replicas, in log order.

A replica votes LEAD when its host can bind what the cell needs, else YIELD; its first ballot
counts. The last executor wins if it leads, since its memory is warm; as soon as it cannot, the
first who led does. Who is lost counts as having yielded, so nobody waits out a timer for the dead
(the original waits up to ten seconds for each cell, paper section 1.4). All yield: nobody can, and
a replica must move. The same ballots in the same order have the same result wherever they are read,
and what is decided stays decided.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from notebookos_ext.cluster.model import ReplicaId


class Ballot(enum.StrEnum):
    """What a replica says to one attempt of a cell."""

    LEAD = "lead"
    YIELD = "yield"


class Election:
    """The election of one attempt."""

    def __init__(
        self, attempt: int, voters: Iterable[ReplicaId], last_executor: ReplicaId | None
    ) -> None:
        self.attempt = attempt
        self.voters = tuple(voters)
        self._preferred = last_executor if last_executor in self.voters else None
        self._ballots: dict[ReplicaId, Ballot] = {}

    def cast(self, replica: ReplicaId, ballot: Ballot) -> None:
        """A ballot, in log order; from strangers, and a second one, it counts for nothing."""
        if replica in self.voters:
            self._ballots.setdefault(replica, ballot)

    def lost(self, replica: ReplicaId) -> None:
        """The replica can neither vote nor lead any more."""
        if replica in self.voters:
            self._ballots[replica] = Ballot.YIELD

    def voted(self, replica: ReplicaId) -> bool:
        """Whether nothing more is awaited from it."""
        return replica in self._ballots

    @property
    def executor(self) -> ReplicaId | None:
        """Who is elected; None while that is open, and when nobody can be."""
        if self._preferred is not None:
            ballot = self._ballots.get(self._preferred)
            if ballot is None:
                return None
            if ballot is Ballot.LEAD:
                return self._preferred
        return next((r for r, ballot in self._ballots.items() if ballot is Ballot.LEAD), None)

    @property
    def failed(self) -> bool:
        """All have yielded or are lost."""
        return all(self._ballots.get(voter) is Ballot.YIELD for voter in self.voters)
