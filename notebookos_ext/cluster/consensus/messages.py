"""What members of one Raft group say to each other, and what they keep on disk.

Every message names its sender and its addressee. `term` is the sender's term, except where a
docstring says otherwise; the requests and answers around proposals, reads, transfers and changes of
membership are outside terms, since a stale one can do no harm.
"""

from __future__ import annotations

import msgspec

from notebookos_ext.cluster.consensus.membership import Change, Membership

PAYLOAD_BYTES_MAX = 1_000_000
"""A larger payload would delay heartbeats; large state belongs in the checkpoint store."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One position of the log.

    `proposal_id` is the proposer's own name for the payload: a log never holds the same one twice.
    It is empty, like the payload, in the entries that no application sees: those that change the
    `membership`, and the one with which a new leader opens its term (thesis 3.6.2).
    """

    term: int
    index: int
    proposal_id: str
    payload: bytes
    membership: Membership | None = None

    @property
    def is_proposal(self) -> bool:
        """Whether it is for the application."""
        return self.proposal_id != ""


class HardState(msgspec.Struct, frozen=True, array_like=True):
    """What a member must never forget: its term, and whom it voted for in it (empty: nobody)."""

    term: int = 0
    vote: str = ""


class VoteRequest(msgspec.Struct, frozen=True, array_like=True, tag="vote?"):
    """A candidate asks for a vote (thesis 3.4), or with `pre` whether it would get one (9.6).

    With `pre`, `term` is the term the candidate would begin. `transfer`: the leader itself asked
    for this election, so that its followers need not defend it (3.10).
    """

    sender: str
    to: str
    term: int
    last_index: int
    last_term: int
    pre: bool
    transfer: bool


class VoteAnswer(msgspec.Struct, frozen=True, array_like=True, tag="vote"):
    """The answer to a VoteRequest; a granted pre-vote repeats the asked term."""

    sender: str
    to: str
    term: int
    pre: bool
    granted: bool


class Append(msgspec.Struct, frozen=True, array_like=True, tag="append"):
    """Entries that follow (`previous_index`, `previous_term`), and how far the leader committed."""

    sender: str
    to: str
    term: int
    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]
    commit_index: int


class AppendAnswer(msgspec.Struct, frozen=True, array_like=True, tag="appended"):
    """What a follower verified.

    Accepted: its log equals the leader's up to `index`, which is the end of the entries that it
    was sent and never the length of its own log. Refused: `index` is the `previous_index` that did
    not match, and the logs can agree only at or below (`hint_index`, `hint_term`).
    """

    sender: str
    to: str
    term: int
    accepted: bool
    index: int
    hint_index: int = 0
    hint_term: int = 0


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    """The leader lives. `commit_index` is no further than what the addressee acknowledged.

    `read_round` is echoed by the answer. `rest`: everybody has everything; sleep until spoken to.
    """

    sender: str
    to: str
    term: int
    commit_index: int
    read_round: int
    rest: bool = False


class HeartbeatAnswer(msgspec.Struct, frozen=True, array_like=True, tag="beaten"):
    """The follower still follows; `read_round` is that of the heartbeat."""

    sender: str
    to: str
    term: int
    read_round: int


class SnapshotChunk(msgspec.Struct, frozen=True, array_like=True, tag="chunk"):
    """A piece of a snapshot, for a follower that lacks entries which the leader has forgotten.

    The snapshot ends with the entry (`index`, `last_term`) and is `total_bytes` long; its
    `snapshot_id` is a digest of all of it, so that pieces of two snapshots never mix.
    """

    sender: str
    to: str
    term: int
    index: int
    last_term: int
    snapshot_id: str
    total_bytes: int
    offset: int
    data: bytes


class ChunkAnswer(msgspec.Struct, frozen=True, array_like=True, tag="chunked"):
    """Of that snapshot the follower has all bytes before `offset`, and wants those from there on.

    Once it has the whole on disk it says so with an AppendAnswer instead.
    """

    sender: str
    to: str
    term: int
    snapshot_id: str
    offset: int


class TimeoutNow(msgspec.Struct, frozen=True, array_like=True, tag="now"):
    """The leader hands over: the addressee has its whole log and begins an election at once."""

    sender: str
    to: str
    term: int


class Propose(msgspec.Struct, frozen=True, array_like=True, tag="propose"):
    """A proposal on its way to the leader; nothing up to `since` can be a former copy of it."""

    sender: str
    to: str
    proposal_id: str
    payload: bytes
    since: int


class ProposeRefused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """The addressee of a Propose cannot take it; it is in no log through that message.

    `expired`: nor can it ever, since a former copy of it may be among the forgotten entries.
    """

    sender: str
    to: str
    proposal_id: str
    expired: bool


class ReadRequest(msgspec.Struct, frozen=True, array_like=True, tag="read?"):
    """A follower asks up to where it must apply before it may answer a read (thesis 6.4)."""

    sender: str
    to: str
    read_id: str


class ReadAnswer(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """Everything acknowledged before the request is at or below `index`."""

    sender: str
    to: str
    read_id: str
    index: int


class TransferRequest(msgspec.Struct, frozen=True, array_like=True, tag="transfer"):
    """A follower asks the leader to hand over to `target`."""

    sender: str
    to: str
    target: str


class ChangeRequest(msgspec.Struct, frozen=True, array_like=True, tag="change"):
    """A follower asks the leader to change the membership that stands at log index `of_index`.

    Where another one is in force meanwhile, the request is stale and nothing happens.
    """

    sender: str
    to: str
    change: Change
    of_index: int


Message = (
    VoteRequest
    | VoteAnswer
    | Append
    | AppendAnswer
    | Heartbeat
    | HeartbeatAnswer
    | SnapshotChunk
    | ChunkAnswer
    | TimeoutNow
    | Propose
    | ProposeRefused
    | ReadRequest
    | ReadAnswer
    | TransferRequest
    | ChangeRequest
)

TermMessage = (
    VoteRequest
    | VoteAnswer
    | Append
    | AppendAnswer
    | Heartbeat
    | HeartbeatAnswer
    | SnapshotChunk
    | ChunkAnswer
    | TimeoutNow
)
"""The messages that only count within their term."""


class Foreign(msgspec.Struct, frozen=True, array_like=True, tag="foreign"):
    """What members of another engine say to each other; nobody else looks into it."""

    sender: str
    to: str
    payload: bytes


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A message with the Raft group it belongs to; agents share one connection per pair.

    `group` names one group and no other, ever: where a kernel goes on without the majority of its
    members, it does so as a new group, in which nothing counts that members of the old one say.
    """

    group: str
    message: Message | Foreign
