"""One notebook of the harness: its kernel, a browser's connection, its program, what is right."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import random
import time
from collections.abc import Callable

import websocket
from chaos.program import CRASHES, KERNEL_SETUP, LINES, Array, Cell, Lost, Model, Program
from chaos.world import World
from server_rig import Message, Tab, _unpacked

PATIENCE_S = 120.0
"""A cell that has no outcome after so long has none."""
LOST = "ExecutorLost"
GONE = (websocket.WebSocketException, OSError)


class NoOutcome(AssertionError):
    """A cell got neither a reply nor an error."""


@dataclasses.dataclass
class Outcome:
    """How one cell ended: `ok`, `error` (its own), the name of a loss, or `server gone`."""

    how: str
    seconds: float
    text: str = ""
    notices: str = ""
    sentence: str = ""


@dataclasses.dataclass
class Heard:
    """What came of one cell so far."""

    stdout: str = ""
    stderr: str = ""
    reply: Message | None = None
    idle: bool = False

    def take(self, message: Message) -> None:
        """One message about it."""
        kind, content = message["header"]["msg_type"], message["content"]
        if kind == "stream" and content["name"] == "stdout":
            self.stdout += content["text"]
        elif kind == "stream":
            self.stderr += content["text"]
        elif kind == "execute_reply":
            self.reply = content
        elif kind == "status":
            self.idle = content["execution_state"] == "idle"

    def outcome(self, seconds: float) -> Outcome:
        """In words."""
        assert self.reply is not None
        how, sentence = self.reply["status"], ""
        if how == "error":
            sentence = f"{self.reply['ename']}: {self.reply['evalue']}"
            how = "error" if "planned" in sentence else self.reply["ename"]
        return Outcome(how, seconds, self.stdout, self.stderr, sentence)


class Notebook:
    """Used by one thread at a time."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world = world
        self.kernel = world.server.start_kernel()
        self.program = Program(rng)
        self.model = Model()
        self.array = Array()
        self.array_losses: collections.Counter[str] = collections.Counter()
        self.replies: collections.Counter[str] = collections.Counter()
        self._unread: collections.deque[Message] = collections.deque()
        self.tab = Tab(world.server, self.kernel)

    def set_up(self) -> None:
        """The first cell."""
        self.tab.run(KERNEL_SETUP)

    def reopen(self, session: str = "") -> None:
        """The browser comes back, to this server or the next."""
        self.close()
        self.tab = Tab(self.world.server, self.kernel, session)

    def leave(self) -> None:
        """The browser goes away in mid-cell and comes back with the same session.

        It reads what the server had sent before it knew: what is on the wire when a connection
        breaks is lost to a browser, which no server can mend.
        """
        heard: list[Message] = []
        self.tab.socket.send_close()
        while True:
            opcode, data = self.tab.socket.recv_data(control_frame=True)
            if opcode == websocket.ABNF.OPCODE_CLOSE:
                break
            if opcode == websocket.ABNF.OPCODE_BINARY:
                heard.append(_unpacked(data)[1])
        self.reopen(self.tab.session)
        self._unread += heard

    def close(self) -> None:
        """The browser's tab is closed; its server may be gone."""
        with contextlib.suppress(*GONE):
            self.tab.close()
        self.tab.socket.shutdown()

    def run(
        self,
        cell: Cell,
        *,
        at_begin: Callable[[], None] = lambda: None,
        at_reply: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Run a cell to its end, whatever that is. Raises NoOutcome."""
        began = time.monotonic()
        pending = [at_begin, at_reply]
        try:
            return self._run(cell, began, pending)
        except GONE as error:
            return Outcome("server gone", time.monotonic() - began, sentence=str(error))
        finally:
            # A cell that never began does not spare its kernel the fault.
            for act in pending:
                act()

    def _run(self, cell: Cell, began: float, pending: list[Callable[[], None]]) -> Outcome:
        number = self.tab.execute(cell.code)
        heard = Heard()
        while heard.reply is None or not heard.idle:
            try:
                message = self._read(began, cell)
            except GONE:
                if heard.reply is None:
                    raise
                # It was replied to; that the server ended right afterwards takes nothing back.
                break
            parent = message["parent_header"].get("msg_id")
            if message["header"]["msg_type"] == "execute_reply":
                self.replies[parent] += 1
            if parent == number:
                heard.take(message)
            if len(pending) == 2 and "@begin" in heard.stdout:
                pending.pop(0)()
            while pending and heard.reply is not None:
                pending.pop(0)()
        return heard.outcome(time.monotonic() - began)

    def _read(self, began: float, cell: Cell) -> Message:
        while time.monotonic() - began < PATIENCE_S:
            if self._unread:
                return self._unread.popleft()
            try:
                return _unpacked(self.tab.socket.recv())[1]
            except websocket.WebSocketTimeoutException:
                continue
        raise NoOutcome(f"cell {cell.number} ({cell.kind}) of {self.kernel} got no outcome")

    def judge(self, cell: Cell, outcome: Outcome) -> Lost | None:
        """Compare with what is right; replied cells whose effect is lost. Raises AssertionError."""
        self.array.noticed(outcome.notices)
        replied = outcome.how in ("ok", "error")
        assert replied == (outcome.how not in (LOST, "server gone")), (cell, outcome)
        if cell.kind in CRASHES:
            assert not replied, (
                f"cell {cell.number} ended its process and was replied to: {outcome}"
            )
        lost = None
        if replied:
            assert (outcome.how == "error") == (cell.kind == "raise"), (cell, outcome)
            lost = self.model.replied(cell, outcome.text, outcome.notices)
        else:
            self.model.lost(cell)
        if cell.kind in ("fill", "rewrite"):
            self.array.written(cell, replied=replied)
        elif cell.kind == "look" and replied:
            self.array_losses[self.array.looked(cell, outcome.text)] += 1
        elif cell.kind == "lines" and replied and outcome.how == "ok":
            shown = sum(line.startswith("line ") for line in outcome.text.splitlines())
            assert shown == LINES, f"cell {cell.number} showed {shown} of its {LINES} lines"
        return lost
