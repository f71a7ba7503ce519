"""Two answers of a follower that need nothing but the message and its log."""

from __future__ import annotations

from notebookos_ext.cluster.consensus.log import Log
from notebookos_ext.cluster.consensus.messages import (
    Append,
    AppendAnswer,
    Heartbeat,
    TermMessage,
    VoteAnswer,
    VoteRequest,
)


def take_append(append: Append, log: Log, me: str) -> AppendAnswer:
    """Take over what a leader of the present term sent, and say what is verified by it.

    Raises:
        CorruptRecord: it contradicts what is committed.
    """
    previous = append.previous_index
    if not log.matches(previous, append.previous_term):
        meeting = log.last_index_not_after(previous, append.previous_term)
        return AppendAnswer(
            sender=me,
            to=append.sender,
            term=append.term,
            accepted=False,
            index=previous,
            hint_index=meeting,
            hint_term=log.term_at(meeting),
        )
    log.merge(append.entries)
    # Beyond what this message verified the log may still hold another leader's entries.
    verified = previous + len(append.entries)
    log.commit_to(min(append.commit_index, verified))
    return AppendAnswer(
        sender=me, to=append.sender, term=append.term, accepted=True, index=verified
    )


def refuse_older_term(message: TermMessage, me: str, term: int) -> VoteAnswer | AppendAnswer | None:
    """Tell a candidate or leader of an older term about `term`; None where nobody waits.

    Without this a member that was away with a higher term could never come back: it hears nothing
    from the leader that it would accept, and the leader would not learn why.
    """
    if isinstance(message, VoteRequest):
        return VoteAnswer(me, message.sender, term, pre=message.pre, granted=False)
    if isinstance(message, Append | Heartbeat):
        return AppendAnswer(me, message.sender, term, accepted=False, index=0)
    return None
