"""Our kernel and plain ipykernel side by side, each with one client that hears everything."""

from __future__ import annotations

import difflib
import itertools
import os
import pprint
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import zmq
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

HANG_S = 90.0
"""Only ends hangs."""
MOST_LINES = 80
"""Of a difference."""
Message = dict[str, Any]

NORMALISED = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),  # colours
    (re.compile(r"0x[0-9a-f]{6,}"), "0x…"),  # addresses
    (re.compile(r"ipykernel_\d+[/\\]\d+\.py"), "ipykernel_…/….py"),  # cell file names
    (re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "…uuid…"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "…id…"),
)
"""All that may differ between the texts of two kernels that do the same."""


@dataclass
class Heard:
    """Everything that answers one request."""

    published: list[Message] = field(default_factory=list)
    replies: list[Message] = field(default_factory=list)
    prompts: list[Message] = field(default_factory=list)

    @property
    def reply(self) -> Message:
        """The one reply's content."""
        assert len(self.replies) == 1, self.replies
        content: Message = self.replies[0]["content"]
        return content

    @property
    def text(self) -> str:
        """All streams, in order."""
        return "".join(m["content"]["text"] for m in self.published if m["msg_type"] == "stream")

    @property
    def kinds(self) -> list[str]:
        """What was published, in order; the states by their names."""
        return [m["content"].get("execution_state", m["msg_type"]) for m in self.published]

    @property
    def idle(self) -> bool:
        """Whether the end was published."""
        return self.kinds[-1:] == ["idle"]

    @property
    def notes(self) -> str:
        """What our kernel said in its own name; plain ipykernel says nothing."""
        return "".join(m["content"]["text"] for m in self.published if _is_note(m))

    def story(self) -> dict[str, Any]:
        """All of it, without what may differ: to be compared."""
        published = [message for message in self.published if not _is_note(message)]
        return {
            "published": [_told(message) for message in merged(published)],
            "replies": [
                {**_told(message), "status": message["metadata"].get("status")}
                for message in self.replies
            ],
            "prompts": [_told(message) for message in self.prompts],
        }


def merged(published: list[Message]) -> list[Message]:
    """Streams that follow each other as one: where ipykernel cuts them is a matter of time."""
    result: list[Message] = []
    for message in published:
        last = result[-1] if result else None
        if (
            last is not None
            and message["msg_type"] == last["msg_type"] == "stream"
            and message["content"]["name"] == last["content"]["name"]
        ):
            text = last["content"]["text"] + message["content"]["text"]
            result[-1] = {**last, "content": {**last["content"], "text": text}}
        else:
            result.append(message)
    return result


def _is_note(message: Message) -> bool:
    content = message["content"]
    return message["msg_type"] == "stream" and content["text"].startswith("NotebookOS: ")


def _told(message: Message) -> dict[str, Any]:
    return {"type": message["msg_type"], "content": normalised(message["content"])}


def normalised(value: Any) -> Any:
    """Without addresses, ids and colours."""
    if isinstance(value, dict):
        return {key: normalised(item) for key, item in value.items()}
    if isinstance(value, list):
        return [normalised(item) for item in value]
    if isinstance(value, str):
        for pattern, instead in NORMALISED:
            value = pattern.sub(instead, value)
    return value


class Talker:
    """One client of one kernel. Not thread-safe."""

    def __init__(self, client: BlockingKernelClient) -> None:
        self.client = client
        client.start_channels(hb=False)
        self.inbox: list[tuple[str, Message]] = []
        """What came and was not asked for yet."""
        self._channels = {
            "iopub": client.iopub_channel,
            "shell": client.shell_channel,
            "control": client.control_channel,
            "stdin": client.stdin_channel,
        }
        self._poller = zmq.Poller()
        for channel in self._channels.values():
            self._poller.register(channel.socket, zmq.POLLIN)
        client.wait_for_ready(timeout=HANG_S)

    def close(self) -> None:
        """End the client."""
        self.client.stop_channels()

    def ask(self, kind: str, content: Message, *, on: str = "shell", **header: Any) -> str:
        """Send a request; its id. `header` adds header fields."""
        message = self.client.session.msg(kind, content)
        message["header"].update(header)
        self._channels[on].send(message)
        return str(message["header"]["msg_id"])

    def execute(self, code: str, *, header: Message | None = None, **content: Any) -> str:
        """Send an execute_request with Jupyter's defaults; its id."""
        whole = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": True,
            "stop_on_error": True,
            **content,
        }
        return self.ask("execute_request", whole, **(header or {}))

    def pump(self, timeout_s: float) -> bool:
        """Take in what came, waiting for something; whether anything did."""
        came = dict(self._poller.poll(int(timeout_s * 1000)))
        # The order between channels is not known; iopub first, so that a reply is after its idle.
        for name, channel in self._channels.items():
            while channel.socket in came and channel.socket.poll(0):
                self.inbox.append((name, channel.get_msg(timeout=0)))
        return bool(came)

    def until(self, matches: Callable[[str, Message], bool], what: str) -> Message:
        """Wait for a message (channel, message) and take it and nothing else."""
        give_up = time.monotonic() + HANG_S
        looked = 0
        while True:
            for index in range(looked, len(self.inbox)):
                if matches(*self.inbox[index]):
                    return self.inbox.pop(index)[1]
            looked = len(self.inbox)
            assert time.monotonic() < give_up, f"never came: {what}; but {self.inbox}"
            self.pump(1.0)

    def reply_to(self, msg_id: str) -> Message:
        """The reply to a request."""
        return self.until(
            lambda on, m: on in ("shell", "control") and m["parent_header"].get("msg_id") == msg_id,
            f"the reply to {msg_id}",
        )

    def published(self, msg_id: str, kind: str, text: str = "") -> Message:
        """An output of a request, by its type and some of its text."""
        return self.until(
            lambda on, m: (
                on == "iopub"
                and m["parent_header"].get("msg_id") == msg_id
                and m["msg_type"] == kind
                and text in str(m["content"])
            ),
            f"{kind} of {msg_id} with {text!r}",
        )

    def hear(
        self, msg_id: str, *, reply: bool = True, answers: tuple[str, ...] = (), idle: bool = True
    ) -> Heard:
        """Everything about a request, until its idle and its reply; prompts are answered."""
        heard = Heard()
        left = list(answers)

        def take(on: str, message: Message) -> bool:
            return message["parent_header"].get("msg_id") == msg_id

        while (idle and not heard.idle) or (reply and not heard.replies):
            message = self.until(take, f"all about {msg_id}, beyond {heard}")
            if message["msg_type"] == "input_request":
                heard.prompts.append(message)
                self.client.input(left.pop(0))
            elif message["msg_type"].endswith("_reply"):
                heard.replies.append(message)
            else:
                heard.published.append(message)
        return heard

    def run(self, code: str, *, answers: tuple[str, ...] = (), **options: Any) -> Heard:
        """Execute and hear everything."""
        return self.hear(self.execute(code, **options), answers=answers)

    def request(self, kind: str, content: Message, *, on: str = "shell", **header: Any) -> Heard:
        """Ask and hear everything."""
        return self.hear(self.ask(kind, content, on=on, **header))


class Side(Talker):
    """A kernel and its first client."""

    def __init__(self, kernel_name: str, **environment: str) -> None:
        self.manager = KernelManager(kernel_name=kernel_name)
        self.manager.start_kernel(env={**os.environ, **environment})
        try:
            super().__init__(self.manager.client())
        except BaseException:
            self.manager.shutdown_kernel(now=True)
            raise

    def second_client(self) -> Talker:
        """As another browser or a console has it: from the connection file."""
        client = BlockingKernelClient(connection_file=self.manager.connection_file)
        client.load_connection_file()
        return Talker(client)

    def close(self) -> None:
        """End the client and the kernel."""
        super().close()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


@contextmanager
def side(kernel_name: str, **environment: str) -> Iterator[Side]:
    """A kernel for as long as the block runs."""
    opened = Side(kernel_name, **environment)
    try:
        yield opened
    finally:
        opened.close()


@dataclass
class Both:
    """Plain ipykernel and ours."""

    plain: Side
    ours: Side

    def compare(self, act: Callable[[Side], Any]) -> tuple[Any, Any]:
        """Do the same on both, and return both outcomes; they must be equal (`Heard` by its story).

        Raises AssertionError with the difference.
        """
        outcomes = act(self.plain), act(self.ours)
        expected, got = (comparable(outcome) for outcome in outcomes)
        if expected != got:
            lines = (pprint.pformat(each, width=120).splitlines() for each in (expected, got))
            difference = difflib.unified_diff(*lines, "plain", "ours", n=4, lineterm="")
            raise AssertionError("\n".join(itertools.islice(difference, MOST_LINES)))
        return outcomes

    def align(self) -> None:
        """Bring both to the same execution count, whatever an earlier test left behind."""
        while True:
            counts = [side.run("pass").reply["execution_count"] for side in (self.plain, self.ours)]
            for side in (self.plain, self.ours):
                side.inbox.clear()
            if counts[0] == counts[1]:
                return
            behind = self.plain if counts[0] < counts[1] else self.ours
            for _ in range(abs(counts[0] - counts[1])):
                behind.run("pass")


def comparable(value: Any) -> Any:
    """`Heard` anywhere in it as a story."""
    if isinstance(value, Heard):
        return value.story()
    if isinstance(value, list | tuple):
        return [comparable(item) for item in value]
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    return normalised(value)
