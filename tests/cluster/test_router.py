"""The router's decisions as conversations; testdata/router holds the expected answers."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from notebookos_ext.cluster.channels import DELIMITER, Made, Message, parse
from notebookos_ext.cluster.model import CellId, KernelId, ReplicaId
from notebookos_ext.cluster.router import (
    Activity,
    CellArrived,
    CellReplied,
    InputWaiting,
    InterruptAsked,
    KernelRouter,
    ShutdownAsked,
)
from notebookos_ext.cluster.routing import (
    Announce,
    Answer,
    Described,
    PrepareReplica,
    Probe,
    Publish,
    ReplicaNeeded,
    ToClient,
    ToReplica,
)

FOLDER = Path(__file__).resolve().parent.parent / "testdata" / "router"
CONVERSATIONS = sorted(FOLDER.glob("*.txt"))


class Conversation:
    """Reads commands, asks a KernelRouter and writes what it answers."""

    def __init__(self) -> None:
        self.router = KernelRouter(KernelId("k"))
        self.types: dict[str, str] = {}
        self.signatures = 0

    def message(
        self, first: list[bytes], header: dict[str, Any], parent: str, content: dict[str, Any]
    ) -> Message:
        self.signatures += 1
        parents = {"msg_id": parent} if parent else {}
        bodies = [header, parents, {}, content]
        frames = [json.dumps(body).encode() for body in bodies]
        return parse([*first, DELIMITER, str(self.signatures).encode(), *frames])

    def ask(self, line: str) -> list[Any]:
        verb, *words = shlex.split(line)
        options = dict(word.split("=", 1) for word in words if "=" in word)
        words = [word for word in words if "=" not in word]
        return getattr(self, f"do_{verb}")(*words, **options)

    def do_client(self, who: str, channel: str, kind: str, msg_id: str, **options: str) -> Any:
        header = {"msg_id": msg_id, "msg_type": kind}
        if "subshell" in options:
            header["subshell_id"] = options.pop("subshell")
        content: dict[str, Any] = {k: json.loads(v) for k, v in options.items() if k != "code"}
        if kind == "execute_request":
            content["code"] = options.get("code", "pass")
        self.types[msg_id] = kind
        return self.router.from_client(channel, self.message([who.encode()], header, "", content))

    def do_reply(
        self, replica: str, who: str, parent: str, status: str = "ok", channel: str = "shell"
    ) -> Any:
        kind = self.types.get(parent, "kernel_info_request").replace("_request", "_reply")
        kind = "input_request" if channel == "stdin" else kind
        header = {"msg_id": f"{replica}-{parent}", "msg_type": kind}
        message = self.message([], header, parent, {"status": status})
        return self.router.from_replica(ReplicaId(replica), channel, who.encode(), message)

    def do_publish(self, replica: str, kind: str, parent: str = "", **content: str) -> Any:
        header = {"msg_id": f"{replica}-{kind}", "msg_type": kind}
        values = {k: int(v) if v.isdigit() else v for k, v in content.items()}
        message = self.message([b"topic"], header, parent, values)
        return self.router.from_iopub(ReplicaId(replica), message)

    def do_busy(self, replica: str, parent: str) -> Any:
        return self.do_publish(replica, "status", parent, execution_state="busy")

    def do_idle(self, replica: str, parent: str) -> Any:
        return self.do_publish(replica, "status", parent, execution_state="idle")

    def do_ready(self, replica: str) -> Any:
        return self.router.replica_ready(ReplicaId(replica))

    def do_gone(self, replica: str) -> Any:
        return self.router.replica_gone(ReplicaId(replica))

    def do_executor(self, replica: str = "") -> Any:
        return self.router.set_executor(ReplicaId(replica) if replica else None)

    def do_hold_back(self) -> Any:
        return self.router.hold_back()

    def do_quiet(self) -> Any:
        return [f"quiet: {self.router.is_quiet}"]

    def do_rest(self, banner: str = "") -> Any:
        return self.router.rest({"status": "ok", "banner": banner} if banner else None)

    def do_waits(self, cell: str) -> Any:
        return self.router.cell_waits(CellId(cell))

    def do_start(self, cell: str, attempt: str, replica: str) -> Any:
        return self.router.start_cell(CellId(cell), int(attempt), ReplicaId(replica))

    def do_tell(self, cell: str, text: str) -> Any:
        return self.router.tell_cell(CellId(cell), text)

    def do_fail(self, cell: str, ename: str, evalue: str, hint: str = "") -> Any:
        return self.router.fail_cell(CellId(cell), ename=ename, evalue=evalue, hint=hint)

    def do_restart(self) -> Any:
        return self.router.restart()

    def do_connections(self) -> Any:
        return sorted(self.router.busy_connections())


def made(message: Made) -> str:
    parent = json.loads(message.parent).get("msg_id", "-")
    words = [message.msg_type, parent]
    words += [f"{k}={v}" for k, v in message.content.items() if v not in ({}, [])]
    return " ".join(words)


def passing(frames: tuple[bytes, ...]) -> str:
    message = parse(frames)
    words = [message.header.msg_type, message.parent_id or message.header.msg_id]
    content = message.content()
    words += [f"{k}={v}" for k, v in content.items() if k in ("status", "execution_state")]
    return " ".join(words)


def told(output: Any) -> str:
    """One output as a line; `own` marks what the router says itself."""
    return event(output) or asked(output)


def asked(output: Any) -> str:
    match output:
        case ToReplica(replica, channel, identity, frames):
            return f"{replica} <- {channel} of {identity.decode()}: {passing(frames)}"
        case PrepareReplica(replica, identity):
            return f"{replica} <- connect {identity.decode()}"
        case Probe(replica, msg_id):
            return f"{replica} <- probe {msg_id}"
        case ToClient(channel, frames):
            return f"{frames[0].decode()} <- {channel}: {passing(frames[1:])}"
        case Publish(frames):
            return f"all <- {passing(frames)}"
        case Answer(channel, identities, message):
            return f"{identities[0].decode()} <- {channel}, own: {made(message)}"
        case Announce(message):
            return f"all <- own: {made(message)}"
        case other:
            return str(other)


def event(output: Any) -> str:
    match output:
        case CellArrived(_, cell, code, _, silent, near):
            more = f"{' silent' if silent else ''}{f' near {near}' if near else ''}"
            return f"event: {cell} arrived, code={code!r}{more}"
        case CellReplied(_, cell, attempt, status):
            return f"event: {cell} attempt {attempt} replied {status}"
        case InputWaiting(_, cell, waiting):
            return f"event: {cell} {'asks for input' if waiting else 'no longer asks'}"
        case ShutdownAsked(_, restart):
            return f"event: shutdown asked, restart={restart}"
        case InterruptAsked():
            return "event: interrupt asked"
        case Activity():
            return "event: activity"
        case ReplicaNeeded():
            return "event: a replica is needed"
        case Described(_, content):
            return f"event: described as {content}"
    return ""


def answered(text: str) -> str:
    """The conversation with the answers that the code gives now."""
    conversation, lines = Conversation(), []
    for block in text.strip().split("\n\n"):
        commands = [line for line in block.split("\n----")[0].split("\n") if line]
        lines += commands
        answers = [
            told(output)
            for command in commands
            if not command.startswith("#")
            for output in conversation.ask(command)
        ]
        answers = [line for line in answers if line != "event: activity"]
        if any(not command.startswith("#") for command in commands):
            lines += ["----", *(answers or ["nothing"])]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


@pytest.mark.parametrize("path", CONVERSATIONS, ids=lambda path: path.stem)
def test_conversation(path: Path, rewrite: bool) -> None:
    text = path.read_text(encoding="utf-8")
    answers = answered(text)
    if rewrite:
        path.write_text(answers, encoding="utf-8")
    else:
        assert answers.split("\n") == text.split("\n")


def test_there_are_conversations() -> None:
    assert len(CONVERSATIONS) >= 10


def test_kernel_info_is_no_activity_but_cells_are() -> None:
    talk = Conversation()
    assert talk.ask("client a shell kernel_info_request m1") == []
    assert Activity(KernelId("k")) in talk.ask("client a shell execute_request m2")


def test_frames_that_came_before_are_dropped_as_a_replica_would() -> None:
    talk = Conversation()
    header = {"msg_id": "m1", "msg_type": "execute_request"}
    message = talk.message([b"a"], header, "", {"code": "1"})
    assert talk.router.from_client("shell", message)
    talk.ask("ready r1")
    talk.ask("start m1 1 r1")
    talk.ask("reply r1 a m1")
    talk.ask("idle r1 m1")
    assert talk.router.from_client("shell", message) == []


def test_half_open_requests_are_not_kept_for_ever() -> None:
    talk = Conversation()
    talk.ask("ready r1")
    for number in range(3000):
        talk.ask(f"client a shell unheard_of_request m{number}")
        talk.ask(f"idle r1 m{number}")
    assert len(talk.router._open) <= 1100


@pytest.mark.parametrize("content", [b"[]", b"{", b'{"silent": true}'])
def test_an_unreadable_cell_is_answered_and_does_not_block(content: bytes) -> None:
    talk = Conversation()
    frames = [
        b"a",
        DELIMITER,
        b"s",
        b'{"msg_id": "m", "msg_type": "execute_request"}',
        b"{}",
        b"{}",
    ]
    answers = [told(out) for out in talk.router.from_client("shell", parse([*frames, content]))]
    assert [line.split(" ename")[0] for line in answers] == [
        "event: activity",
        "all <- own: status m execution_state=busy",
        "a <- shell, own: execute_reply m status=error",
        "all <- own: status m execution_state=idle",
    ]
    assert any(isinstance(out, CellArrived) for out in talk.ask("client a shell execute_request n"))
