"""One request of a client: its kind, what its client has received, what it is still owed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from notebookos_ext.cluster.channels import CONTROL, SHELL, Made, Message
from notebookos_ext.cluster.model import CellId, KernelId, ReplicaId
from notebookos_ext.cluster.routing import Announce, Answer, CellArrived, Output, ToReplica
from notebookos_ext.errors import UNREADABLE, ProtocolError

PURE = frozenset(
    {
        "kernel_info_request",
        "connect_request",
        "is_complete_request",
        "complete_request",
        "inspect_request",
        "history_request",
        "comm_info_request",
        "usage_request",
    }
)
"""Requests that change nothing: when their replica dies another one is asked."""

UNORDERED = frozenset({"kernel_info_request", "connect_request", "is_complete_request"})
"""Requests whose answer does not depend on the cells before them: they never queue."""

COMM = frozenset({"comm_open", "comm_msg", "comm_close"})
"""Messages that run the user's code and have no reply, only a busy/idle pair."""

LIFECYCLE = frozenset({"interrupt_request", "shutdown_request"})
"""Requests that the router answers itself: one replica must not decide over the whole kernel."""


class _Status(msgspec.Struct):
    execution_state: str = ""


class _Count(msgspec.Struct):
    execution_count: int | None = None


class _ExecuteContent(msgspec.Struct):
    code: str
    silent: bool = False
    stop_on_error: bool = True


class _DebugContent(msgspec.Struct):
    command: str = ""


class _ReplyContent(msgspec.Struct):
    status: str = ""


Content = TypeVar("Content")

_reply = msgspec.json.Decoder(_ReplyContent)
_debug = msgspec.json.Decoder(_DebugContent)
_status = msgspec.json.Decoder(_Status)
_count = msgspec.json.Decoder(_Count)
_execute = msgspec.json.Decoder(_ExecuteContent)


def error_content(ename: str, evalue: str, hint: str = "") -> dict[str, Any]:
    """The content of an error reply, and of the `error` output that goes with it."""
    lines = [f"{ename}: {evalue}", *([hint] if hint else [])]
    return {"status": "error", "ename": ename, "evalue": evalue, "traceback": lines}


class Request(msgspec.Struct, eq=False):
    """A client's request from its arrival until its reply and its idle have gone out."""

    channel: str
    message: Message
    replica: ReplicaId | None = None
    sent: bool = False
    """Its frames went to `replica`."""
    busy: bool = False
    replied: bool = False
    idle: bool = False
    fenced: bool = False
    """A probe sent after it was answered, so it is worked off, with or without an idle."""

    @property
    def id(self) -> str:
        """The request's `msg_id`; a cell's CellId."""
        return self.message.header.msg_id

    @property
    def type(self) -> str:
        """The request's `msg_type`."""
        return self.message.header.msg_type

    @property
    def identity(self) -> bytes:
        """The client's routing identity."""
        return self.message.frames[0]

    @property
    def on_main_shell(self) -> bool:
        """Whether it takes part in the order of cells: not on control, not in a subshell."""
        return self.channel == SHELL and self.message.header.subshell_id is None

    @property
    def in_subshell(self) -> bool:
        """Whether it runs beside the cells."""
        return self.channel == SHELL and self.message.header.subshell_id is not None

    @property
    def is_lifecycle(self) -> bool:
        """Whether the router answers it itself."""
        return self.channel in (SHELL, CONTROL) and self.type in LIFECYCLE

    @property
    def reply_type(self) -> str | None:
        """The type of its reply; None for comm messages."""
        return f"{self.type.removesuffix('_request')}_reply" if self.type not in COMM else None

    @property
    def attaches(self) -> bool:
        """Whether it makes something in its replica that the next cell is meant to find there."""
        if self.type != "debug_request":
            return self.type == "comm_open"
        try:
            return _debug.decode(self.message.content_frame).command == "initialize"
        except UNREADABLE:
            return False

    @property
    def may_be_asked_again(self) -> bool:
        """Whether another replica can answer it when its own is gone."""
        return self.type in PURE and not self.replied

    @property
    def closed(self) -> bool:
        """Whether the client has everything."""
        return self.idle and (self.replied or self.reply_type is None)

    @property
    def half_open(self) -> bool:
        """Whether it only waits for something that may never come."""
        return self.idle or self.fenced

    def sent_to(self, replica: ReplicaId) -> ToReplica:
        """Give it to a replica."""
        self.replica, self.sent = replica, True
        return ToReplica(replica, self.channel, self.identity, self.message.frames[1:])

    def taken_back(self) -> None:
        """It waits for another replica; what its client has received stays received."""
        self.replica, self.sent = None, False

    def admits(self, message: Message) -> bool:
        """Whether a published message may go on to the clients; busy and idle do so once."""
        if message.header.msg_type == "status":
            state = _read(_status, message.content_frame, _Status()).execution_state
            if state == "busy":
                first, self.busy = not self.busy, True
                return first
            if state == "idle":
                first, self.idle = not self.idle, True
                return first
        return True

    def announce(self, msg_type: str, content: Mapping[str, Any]) -> Announce:
        """A published message of the router's own in this request's name."""
        return Announce(Made(msg_type, content, self.message.header_frame))

    def begin(self) -> list[Output]:
        """The busy that it is owed, if any."""
        if self.busy:
            return []
        self.busy = True
        return [self.announce("status", {"execution_state": "busy"})]

    def finish(self, content: Mapping[str, Any] | None) -> list[Output]:
        """Whatever of busy, reply (with `content`) and idle is still owed."""
        out = self.begin()
        if not self.replied and self.reply_type and content is not None:
            self.replied = True
            status = {} if content["status"] == "ok" else {"status": content["status"]}
            made = Made(self.reply_type, content, self.message.header_frame, status)
            out.append(Answer(self.channel, self.message.identities, made))
        if not self.idle:
            self.idle = True
            out.append(self.announce("status", {"execution_state": "idle"}))
        return out


class CellRequest(Request, eq=False):
    """An execute_request on the main shell."""

    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    code: str = ""
    silent: bool = False
    stop_on_error: bool = True
    arrived: bool = False
    """CellArrived was said."""
    waits: bool = False
    """The scheduler said that it waits (for GPUs, a host, a migration)."""
    abort: bool = False
    """A cell before it failed; it is answered as aborted when its turn comes."""
    attempt: int = 0
    execution_count: int | None = None
    """What its execute_input said."""

    def admits(self, message: Message) -> bool:
        """As for any request; execute_input passes once too."""
        if message.header.msg_type == "execute_input":
            first = self.execution_count is None
            count = _read(_count, message.content_frame, _Count()).execution_count
            self.execution_count = count or 0
            return first
        return super().admits(message)

    def arrival(self, kernel: KernelId, near: ReplicaId | None) -> CellArrived:
        """Tell the controller that it has its turn, and which replica is preferred."""
        self.arrived = True
        return CellArrived(
            kernel=kernel,
            cell=CellId(self.id),
            code=self.code,
            metadata=self.metadata,
            silent=self.silent,
            near=near,
        )

    def fail(self, content: Mapping[str, Any], execution_count: int) -> list[Output]:
        """End it with an error output and reply; `execution_count` is what it would have had."""
        out = self.begin()
        if not self.replied:
            if self.execution_count is None:
                self.execution_count = execution_count
                if not self.silent:
                    shown = {"code": self.code, "execution_count": execution_count}
                    out.append(self.announce("execute_input", shown))
            error = {name: content[name] for name in ("ename", "evalue", "traceback")}
            out.append(self.announce("error", error))
        more = {
            "execution_count": self.execution_count or execution_count,
            "user_expressions": {},
            "payload": [],
        }
        return out + self.finish({**content, **more})


def read_cell(channel: str, message: Message) -> CellRequest:
    """Read an execute_request. Raises ProtocolError when it has no code."""
    try:
        content = _execute.decode(message.content_frame)
    except UNREADABLE as error:
        raise ProtocolError(f"an execute_request could not be read: {error}") from error
    return CellRequest(
        channel,
        message,
        metadata=message.metadata(),
        code=content.code,
        silent=content.silent,
        stop_on_error=content.stop_on_error,
    )


def reply_status(reply: Message) -> str:
    """The status of a replica's reply: ok, error or aborted."""
    return _read(_reply, reply.content_frame, _ReplyContent()).status


def _read(decoder: msgspec.json.Decoder[Content], frame: bytes, otherwise: Content) -> Content:
    """What a replica sent; user code can send anything there, which must not stop the kernel."""
    try:
        return decoder.decode(frame)
    except UNREADABLE:
        return otherwise


class Prompt(msgspec.Struct, frozen=True):
    """An input_request that waits for its client's answer."""

    replica: ReplicaId
    request: Request
