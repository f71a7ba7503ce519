"""The debugger on a real replica: our threads go on while user code stands at a breakpoint."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from replica_agent import TIMEOUT_S, Agent, Notebook, notebook, running_agent

from notebookos_ext.cluster.messages.replica import CommitAttempt, CommitState
from notebookos_ext.cluster.model import Outcome

pytest.importorskip("debugpy")

CODE = "def area(r):\n    square = r * r\n    return 3 * square\narea(2)"


class Debugger:
    """Speaks the debug adapter protocol over a notebook's control channel."""

    def __init__(self, book: Notebook) -> None:
        self.book = book
        self._sequence = 0

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        self._sequence += 1
        client = self.book.client
        message = client.session.msg(
            "debug_request",
            {
                "type": "request",
                "seq": self._sequence,
                "command": command,
                "arguments": arguments,
            },
        )
        client.control_channel.send(message)
        while True:
            reply = client.get_control_msg(timeout=TIMEOUT_S)
            if reply["parent_header"]["msg_id"] == message["header"]["msg_id"]:
                content: dict[str, Any] = reply["content"]
                assert content["success"], content
                return content

    def begin(self) -> None:
        self.ask(
            "initialize",
            clientID="test",
            adapterID="",
            pathFormat="path",
            linesStartAt1=True,
            columnsStartAt1=True,
            supportsVariableType=True,
            supportsVariablePaging=True,
            supportsRunInTerminalRequest=True,
            locale="en",
        )
        self.ask("attach")

    def break_at(self, code: str, line: int) -> str:
        path = str(self.ask("dumpCell", code=code)["body"]["sourcePath"])
        source = {"path": path}
        self.ask("setBreakpoints", source=source, breakpoints=[{"line": line}])
        self.ask("configurationDone")
        return path

    def wait_until_stopped(self) -> int:
        while True:
            message = self.book.client.get_iopub_msg(timeout=TIMEOUT_S)
            content = message["content"]
            if message["msg_type"] == "debug_event" and content["event"] == "stopped":
                return int(content["body"]["threadId"])

    def frame(self, thread: int) -> dict[str, Any]:
        frames = self.ask("stackTrace", threadId=thread)["body"]["stackFrames"]
        return dict(frames[0])


@pytest.fixture
def agent() -> Iterator[Agent]:
    with running_agent() as agent:
        yield agent


@pytest.fixture
def stopped(agent: Agent) -> Iterator[tuple[Debugger, str, int]]:
    """A cell that stands at a breakpoint: the debugger, the cell, the thread."""
    with notebook(agent.launch()) as book:
        debugger = Debugger(book)
        debugger.begin()
        debugger.break_at(CODE, 3)
        cell = book.start(CODE)
        yield debugger, cell, debugger.wait_until_stopped()


def test_a_breakpoint_stops_the_cell_and_its_variables_can_be_seen(
    stopped: tuple[Debugger, str, int],
) -> None:
    debugger, cell, thread = stopped
    frame = debugger.frame(thread)
    assert frame["line"] == 3
    value = debugger.ask("evaluate", expression="square", frameId=frame["id"])
    assert value["body"]["result"] == "4"
    debugger.ask("continue", threadId=thread)
    assert debugger.book.reply(cell)["status"] == "ok"
    commit = debugger.book.replica.commit()
    assert isinstance(commit, CommitAttempt)
    assert commit.outcome is Outcome.DONE
    assert "(debugger)" in {held.name for held in commit.delta.held}
    debugger.ask("disconnect", restart=False, terminateDebuggee=False)
    assert "(debugger)" not in {held.name for held in debugger.book.replica.delta().held}


def test_a_variable_changed_in_the_debugger_is_committed(
    stopped: tuple[Debugger, str, int],
) -> None:
    debugger, cell, thread = stopped
    frame = debugger.frame(thread)
    debugger.ask("evaluate", expression="globals().update(made=1)", frameId=frame["id"])
    debugger.ask("continue", threadId=thread)
    debugger.book.reply(cell)
    commits: list[CommitAttempt | CommitState] = [debugger.book.replica.commit()]
    names = {n for c in commits[0].delta.components for n in c.names}
    assert "made" in names


def test_the_agents_end_is_noticed_at_a_breakpoint(
    stopped: tuple[Debugger, str, int],
) -> None:
    replica = stopped[0].book.replica
    replica.hang_up()
    assert os.waitstatus_to_exitcode(replica.wait()) == 1
