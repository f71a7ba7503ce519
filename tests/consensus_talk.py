"""Conversations with a Raft group: what is said, saved and delivered, one line each.

Commands: `led abc` (a group that a leads, and nothing else on its way) · `group_of abc` ·
`campaign a` · `propose a x` · `read a r1` · `transfer a to=b` · `tick a 3` · `settle` (deliver
all) · `step` (deliver the oldest message) · `crash a` · `start a` · `lost a` · `back a` (told to
all who live) · `cut a` · `heal` · `status` · `log` (what is on disk, as term/payload, after the
snapshot) · `join d` (a new member with an empty disk) · `add-learner a d`, `promote a d`, `remove
a d` (a is asked) · `compact a`. A change of membership is shown as term/<voters+learners>.
"""

from __future__ import annotations

from raft_group import Group

from notebookos_ext.cluster.consensus.membership import ChangeKind
from notebookos_ext.cluster.consensus.messages import (
    Append,
    AppendAnswer,
    ChangeRequest,
    ChunkAnswer,
    Entry,
    Heartbeat,
    HeartbeatAnswer,
    Message,
    Propose,
    ProposeRefused,
    ReadAnswer,
    ReadRequest,
    SnapshotChunk,
    TimeoutNow,
    TransferRequest,
    VoteAnswer,
    VoteRequest,
)


def shown(entry: Entry) -> str:
    if entry.membership is not None:
        learners = "".join(f"+{name}" for name in entry.membership.learners)
        return f"{entry.term}/<{','.join(entry.membership.voters)}{learners}>"
    return f"{entry.term}/{entry.payload.decode() or '-'}"


def said(message: Message) -> str:  # noqa: C901, PLR0912 - one line per kind
    """A message in a few words."""
    match message:
        case VoteRequest():
            kind = "would you vote" if message.pre else "vote"
            handed = ", handed over" if message.transfer else ""
            what = f"{kind}? log ends {message.last_term}/{message.last_index}{handed}"
        case VoteAnswer():
            what = ("would " if message.pre else "") + ("yes" if message.granted else "no")
        case Append():
            entries = " ".join(shown(entry) for entry in message.entries) or "nothing"
            what = (
                f"append {entries} after {message.previous_term}/{message.previous_index}, "
                f"committed {message.commit_index}"
            )
        case AppendAnswer(accepted=True):
            what = f"verified up to {message.index}"
        case AppendAnswer():
            what = f"no {message.index}, at most {message.hint_term}/{message.hint_index}"
        case Heartbeat():
            rest = ", rest" if message.rest else ""
            what = f"heartbeat, committed {message.commit_index}, round {message.read_round}{rest}"
        case HeartbeatAnswer():
            what = f"heard, round {message.read_round}"
        case SnapshotChunk():
            end = message.offset + len(message.data)
            what = (
                f"snapshot up to {message.last_term}/{message.index}, "
                f"bytes {message.offset} to {end} of {message.total_bytes}"
            )
        case ChunkAnswer():
            what = f"has {message.offset} bytes of the snapshot"
        case TimeoutNow():
            what = "your turn"
        case Propose():
            return f"propose {message.proposal_id}"
        case ProposeRefused():
            return f"cannot take {message.proposal_id}" + (", ever" if message.expired else "")
        case ReadRequest():
            return f"read {message.read_id}?"
        case ReadAnswer():
            return f"read {message.read_id} at {message.index}"
        case TransferRequest():
            return f"hand over to {message.target}"
        case ChangeRequest():
            return f"{message.change.kind} {message.change.member}, at {message.of_index}"
    return f"[{message.term}] {what}"


class Conversation:
    """Answers one command after another; each says what happened meanwhile."""

    def __init__(self) -> None:
        self.group = Group("a")
        self.lines: list[str] = []
        self.seen: dict[str, tuple[object, ...]] = {}
        self.delivered: dict[str, int] = {}
        self.restored: dict[str, int] = {}

    def __call__(self, command: str) -> list[str]:
        self.lines = []
        verb, *arguments = command.split()
        if verb in set(ChangeKind):
            self.change(ChangeKind(verb), *arguments)
        else:
            getattr(self, verb)(*arguments)
        self.notice()
        return self.lines or ["nothing happens"]

    def notice(self) -> None:
        """What changed in any member since the last look."""
        for name in self.group.names:
            member = self.group.members[name]
            if member.node is None:
                self.seen.pop(name, None)
                self.delivered[name] = 0
                continue
            node = member.node
            now = (node.role.value, node.term, node.leader, node.resting)
            if self.seen.get(name) != now:
                self.seen[name] = now
                follows = f" of {node.leader}" if node.leader not in {None, name} else ""
                rests = ", rests" if node.resting else ""
                self.lines.append(
                    f"  {name} is {node.role.value}{follows} in term {node.term}{rests}"
                )
            if member.restored_at != self.restored.get(name, 0):
                self.restored[name] = member.restored_at
                self.lines.append(f"  {name} takes over a snapshot up to {member.restored_at}")
            fresh = member.delivered[self.delivered.get(name, 0) :]
            if fresh:
                self.delivered[name] = len(member.delivered)
                self.lines.append(f"  {name} is given {' '.join(shown(entry) for entry in fresh)}")
        for read_id in [r for r in self.group.open_reads if r in self.group.read_results]:
            del self.group.open_reads[read_id]
            self.lines.append(f"  {read_id} may be answered at {self.group.read_results[read_id]}")

    def step(self) -> None:
        message = self.group.network.pop(0)
        self.lines.append(f"{message.sender} to {message.to}: {said(message)}")
        self.group.deliver(message)
        self.notice()

    def settle(self) -> None:
        while self.group.network:
            self.step()

    def group_of(self, names: str) -> None:
        self.group = Group(names)

    def led(self, names: str) -> None:
        self.group = Group(names)
        self.group.elect(names[0])
        self.notice()
        self.lines = [f"{names[0]} leads {' '.join(names)}"]

    def campaign(self, name: str) -> None:
        self.group.campaign(name)

    def propose(self, name: str, text: str) -> None:
        self.lines.append(self.group.propose(name, text).value)

    def read(self, name: str, read_id: str) -> None:
        self.group.read(name, read_id)

    def transfer(self, name: str, to: str) -> None:
        self.group.node(name).transfer(to.removeprefix("to="))
        self.group.pump(name)

    def tick(self, name: str, count: str) -> None:
        self.group.tick(name, int(count))

    def crash(self, name: str) -> None:
        self.group.crash(name)

    def start(self, name: str) -> None:
        self.group.start(name)

    def lost(self, name: str) -> None:
        self.group.lose(name)

    def back(self, name: str) -> None:
        self.group.find(name)

    def cut(self, name: str) -> None:
        self.group.isolate(name)

    def join(self, name: str) -> None:
        self.group.join(name)

    def change(self, kind: ChangeKind, name: str, member: str) -> None:
        self.lines.append(self.group.change(name, kind, member).value)

    def compact(self, name: str) -> None:
        self.group.compact(name)

    def heal(self) -> None:
        self.group.heal()

    def log(self) -> None:
        for name in self.group.names:
            disk = self.group.members[name].disk
            base = [f"[snapshot {disk.meta.term}/{disk.meta.index}]"] if disk.meta else []
            self.lines.append(f"{name}: {' '.join([*base, *map(shown, disk.entries)])}")

    def status(self) -> None:
        for name in self.group.up:
            node = self.group.node(name)
            self.lines.append(
                f"{name}: {node.role.value}, term {node.term}, leader {node.leader}, "
                f"committed {node.log.commit_index} of {node.log.last_index}"
            )
