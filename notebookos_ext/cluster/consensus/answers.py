"""Answers of a follower that need nothing but the message and its log."""

from __future__ import annotations

from notebookos_ext.cluster.consensus.log import Log
from notebookos_ext.cluster.consensus.messages import (
    Append,
    AppendAnswer,
    Heartbeat,
    SnapshotChunk,
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
    entries = append.entries
    if previous < log.base_index:
        # What is forgotten here was committed, so it is what the leader has.
        entries = entries[log.base_index - previous :]
        if not entries:
            return verified_up_to(log.base_index, append, me)
        previous = log.base_index
    elif not log.matches(previous, append.previous_term):
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
    log.merge(entries)
    # Beyond what this message verified the log may still hold another leader's entries.
    verified = previous + len(entries)
    log.commit_to(min(append.commit_index, verified))
    return verified_up_to(verified, append, me)


def needs_snapshot(chunk: SnapshotChunk, log: Log) -> bool:
    """Whether a snapshot has anything for this log; if not, commits what it shows committed."""
    if chunk.index <= log.commit_index:
        return False
    if not log.matches(chunk.index, chunk.last_term):
        return True
    log.commit_to(chunk.index)
    return False


def verified_up_to(index: int, request: Append | SnapshotChunk, me: str) -> AppendAnswer:
    """This log is the leader's up to `index`."""
    return AppendAnswer(sender=me, to=request.sender, term=request.term, accepted=True, index=index)


def refuse_older_term(message: TermMessage, me: str, term: int) -> VoteAnswer | AppendAnswer | None:
    """Tell a candidate or leader of an older term about `term`; None where nobody waits.

    Without this a member that was away with a higher term could never come back: it hears nothing
    from the leader that it would accept, and the leader would not learn why.
    """
    if isinstance(message, VoteRequest):
        return VoteAnswer(me, message.sender, term, pre=message.pre, granted=False)
    if isinstance(message, Append | Heartbeat | SnapshotChunk):
        return AppendAnswer(me, message.sender, term, accepted=False, index=0)
    return None
