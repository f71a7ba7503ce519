"""The kernel of a replica: ipykernel's, which runs a cell only when its agent made it the executor.

Everything that ipykernel can do stays: subshells, the debugger, comms, completion, `input()`,
interrupts by signal and by message. What is added: fencing of cells, collecting and committing what
user code changed before the reply goes out (and after comm messages, debugger evaluations and in an
idle sweep), and interrupts that reach user code only.
"""

# mypy: disable-error-code="no-untyped-call"
# ipykernel's methods carry no annotations.

from __future__ import annotations

import asyncio
import contextvars
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from inspect import isawaitable
from typing import Any

from ipykernel.ipkernel import IPythonKernel

from notebookos_ext.cluster.messages.replica import Lead
from notebookos_ext.cluster.model import HeldName, Outcome
from notebookos_ext.kernel.agent_requests import AgentRequests
from notebookos_ext.kernel.cell_sources import CellSources
from notebookos_ext.kernel.replicator import Publish, Replicator
from notebookos_ext.kernel.subshells import Subshells

IDLE_SWEEP_S = 2.0
"""After this long without a message, what threads and callbacks changed is looked for."""
BACKGROUND_SWEEP_S = 10.0
"""And again this often while threads or tasks of the user run."""
LOOK_S = 0.02
"""How often a subshell that waits for its commit looks whether a cell has begun."""
CHANGING = frozenset({"initialize", "disconnect", "evaluate", "setExpression", "setVariable"})
"""Debugger commands that run user code, change variables, or hold the kernel here."""
DEBUGGER = HeldName("(debugger)", "Debugger", "a debugger is attached to this process")
SUBSHELL = HeldName("(subshell)", "Subshell", "a subshell of this process runs code")
COMM_MESSAGES = ("comm_open", "comm_msg", "comm_close")
STREAM_TOPIC = b"stream.stderr"


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore SIGINT; for our own work on the main thread between the user's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class ReplicaKernel(IPythonKernel):
    """One replica's kernel; `attach` connects it to its agent before the first message."""

    implementation = "ipython"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # Output has gone out while the reply waited for its commit: no need to sleep for it.
        self._execute_sleep = 0.0
        self._running: Lead | None = None
        self._noted_interrupt = False
        """Whether SIGINT came since this cell's message was taken up, before its code began."""
        self._sweep: object | None = None
        self._cells_context = contextvars.copy_context()
        """Where cells run. numpy's and decimal's options are context variables: what other replicas
        set is set here, and what changed is looked for here."""
        self._own_threads: set[threading.Thread] = set()
        self._in_subshells: set[str] = set()
        """Ids of the requests that subshells work on."""
        for kind in COMM_MESSAGES:
            self.shell_handlers[kind] = self._then_commit(self.shell_handlers[kind])

    def attach(self, requests: AgentRequests, replicator: Replicator, sources: CellSources) -> None:
        """Take the agent's side in; called once, before `start`."""
        self._requests = requests
        self._replicator = replicator
        self._sources = sources

    def start(self) -> None:
        """Start; threads that exist now are not the user's."""
        if self.shell_channel_thread is not None:
            Subshells(self.shell_channel_thread)
        super().start()
        # With any handler of its own the loop wakes up for each signal. Without, an interrupt of a
        # cell that awaits something is noticed only when something else happens.
        asyncio.get_event_loop().add_signal_handler(signal.SIGURG, lambda: None)
        self._own_threads = set(threading.enumerate())

    def call_on_main(self, work: Callable[[], None]) -> None:
        """Run `work` on the main thread's loop soon, in the cells' context; from any thread."""
        self.io_loop.add_callback(self._in_cells_context, work)

    def _in_cells_context(self, work: Callable[[], None]) -> None:
        if self._running is None:
            self._cells_context.run(work)
        else:
            # A cell that runs a loop of its own is inside the context, which is entered only once.
            work()

    async def shell_main(self, subshell_id: str | None, msg: Any) -> None:
        """Handle one shell message; those of the main shell all in one context."""
        handling = super().shell_main(subshell_id, msg)
        if subshell_id is None:
            await asyncio.create_task(handling, context=self._cells_context)
        else:
            await handling

    # ---- cells ----------------------------------------------------------------------------------

    async def execute_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Run a cell if this replica leads it; a subshell's code runs without a Lead."""
        if self._is_own_request(parent):
            await super().execute_request(stream, ident, parent)
            return
        if parent["header"].get("subshell_id"):
            async with self._beside_cells(parent):
                await super().execute_request(stream, ident, parent)
            return
        cell = parent["header"]["msg_id"]
        lead = self._requests.claim(cell)
        if lead is None:
            self._refuse(stream, ident, parent)
            return
        self._running = lead
        publish = self._publisher(parent)
        for problem in self._requests.take_problems():
            publish(f"NotebookOS: {problem}\n")
        try:
            await super().execute_request(stream, ident, parent)
        finally:
            # Still set when the request was malformed and no code ran: the attempt must be closed.
            if self._running is not None:
                self._close(Outcome.FAILED, parent)

    def _is_own_request(self, parent: Any) -> bool:
        """Whether ipykernel's debugger sent this to its own kernel, to start debugpy."""
        return (
            self.session is not None
            and parent["header"]["session"] == self.session.session
            and str(parent["content"].get("code", "")).startswith("import debugpy;")
        )

    def held_here(self) -> tuple[HeldName, ...]:
        """What holds the kernel to this process besides its variables."""
        debugger = getattr(self, "debugger", None)
        found = [DEBUGGER] if debugger is not None and debugger.is_started else []
        # Another replica could run the next cell, but what this one still does would be lost.
        return (*found, SUBSHELL) if self._in_subshells else tuple(found)

    async def do_execute(
        self,
        code: str,
        silent: bool,
        store_history: bool = True,
        user_expressions: dict[str, str] | None = None,
        allow_stdin: bool = False,
        *,
        cell_meta: dict[str, Any] | None = None,
        cell_id: str | None = None,
    ) -> dict[str, Any]:
        """Run the code, then commit what it changed before the reply is returned."""

        def run() -> Awaitable[dict[str, Any]]:
            code_runs: Awaitable[dict[str, Any]] = super(ReplicaKernel, self).do_execute(
                code,
                silent,
                store_history,
                user_expressions,
                allow_stdin,
                cell_meta=cell_meta,
                cell_id=cell_id,
            )
            return code_runs

        if self._running is None or threading.current_thread() is not threading.main_thread():
            return await run()
        told = self._requests.was_interrupted(self._running.cell)
        try:
            # From here on the signal itself interrupts; what came before it is known by now.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if told or self._noted_interrupt:
                raise KeyboardInterrupt
            reply = await run()
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        except KeyboardInterrupt:
            # Before the user's code, or in the instant after it. post_handler_hook restores.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            reply = self._interrupted()
        self._close(
            Outcome.DONE if reply["status"] == "ok" else Outcome.FAILED, self.get_parent("shell")
        )
        return reply

    def _close(self, outcome: Outcome, parent: Any) -> None:
        lead, self._running = self._running, None
        assert lead is not None  # noqa: S101 — both callers looked
        self._sources.note()
        with uninterrupted():
            self._replicator.close_attempt(lead, outcome, self._publisher(parent))

    def _interrupted(self) -> dict[str, Any]:
        error = {"ename": "KeyboardInterrupt", "evalue": "", "traceback": ["KeyboardInterrupt"]}
        parent = self.get_parent("shell")
        self._send(self.iopub_socket, "error", error, parent, ident=self._topic("error"))
        return {
            **error,
            "status": "error",
            "execution_count": self.execution_count - 1,
            "user_expressions": {},
            "payload": [],
        }

    def _refuse(self, stream: Any, ident: Any, parent: Any) -> None:
        why = (
            "This replica was not made the executor of this cell; its code did not run. "
            "Run the cell again."
        )
        error = {"ename": "Refused", "evalue": why, "traceback": [f"Refused: {why}"]}
        self._send(self.iopub_socket, "error", error, parent, ident=self._topic("error"))
        content = {
            **error,
            "status": "error",
            "execution_count": self.execution_count,
            "user_expressions": {},
            "payload": [],
        }
        metadata = self.finish_metadata(parent, self.init_metadata(parent), content)
        self._send(stream, "execute_reply", content, parent, metadata=metadata, ident=ident)

    def _send(
        self, stream: Any, kind: str, content: dict[str, Any], parent: Any, **more: Any
    ) -> None:
        if self.session is not None:
            self.session.send(stream, kind, content, parent, **more)

    def _publisher(self, parent: Any) -> Publish:
        def publish(text: str) -> None:
            # What the user's code printed comes first.
            sys.stdout.flush()
            sys.stderr.flush()
            content = {"name": "stderr", "text": text}
            self._send(self.iopub_socket, "stream", content, parent, ident=STREAM_TOPIC)

        return publish

    # ---- changes outside cells ------------------------------------------------------------------

    def _then_commit(self, handler: Callable[..., Any]) -> Callable[..., Awaitable[None]]:
        async def handled(stream: Any, ident: Any, message: Any) -> None:
            result = handler(stream, ident, message)
            if isawaitable(result):
                await result

        async def handle(stream: Any, ident: Any, message: Any) -> None:
            if threading.current_thread() is not threading.main_thread():
                async with self._beside_cells(message):
                    await handled(stream, ident, message)
                return
            try:
                await handled(stream, ident, message)
            finally:
                self._commit_outside_cell(message, wait=True)

        return handle

    @asynccontextmanager
    async def _beside_cells(self, parent: Any) -> AsyncIterator[None]:
        """While a subshell works for `parent`, and then a commit of what it did.

        Until its idle, the router lets cells run here; a cell that comes later finds the changes
        wherever it runs. A cell that runs here now takes them along when it ends.
        """
        request = parent["header"]["msg_id"]
        self._in_subshells.add(request)
        committed: Future[None] = Future()

        def commit() -> None:
            try:
                self._commit_outside_cell(parent, wait=True)
            finally:
                committed.set_result(None)

        try:
            yield
        finally:
            self._in_subshells.discard(request)
            self.call_on_main(commit)
            done = asyncio.wrap_future(committed)
            while self._running is None and not done.done():
                await asyncio.wait([done], timeout=LOOK_S)

    async def debug_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Handle a debugger request (on the control thread); evaluations may change variables."""
        await super().debug_request(stream, ident, parent)
        if parent["content"].get("command") in CHANGING:
            self.call_on_main(lambda: self._commit_outside_cell(parent))

    def _commit_outside_cell(self, parent: Any, *, wait: bool = False) -> None:
        """Commit what changed, when this replica is the executor and no cell runs."""
        if self._running is None and self._requests.is_executor:
            with uninterrupted():
                self._replicator.commit_state(self._publisher(parent), wait=wait)

    def commit_again(self) -> None:
        """The store works again: commit what it did not take, unless a cell will when it ends."""
        self._sweep_after(0.0)

    def pre_handler_hook(self) -> None:
        """Let SIGINT interrupt the handler; that of a cell, from the user's first line on.

        What comes before is our work and ipykernel's, which an exception would tear apart without
        a reply; it is noted, and the cell ends before it begins.
        """
        super().pre_handler_hook()
        if self.get_parent("shell").get("header", {}).get("msg_type") == "execute_request":
            self._noted_interrupt = False
            signal.signal(signal.SIGINT, self._note_interrupt)

    def _note_interrupt(self, *_: object) -> None:
        self._noted_interrupt = True

    def post_handler_hook(self) -> None:
        """After each shell message, start the wait for the idle sweep anew."""
        super().post_handler_hook()
        self._sweep_after(IDLE_SWEEP_S)

    def _sweep_after(self, seconds: float) -> None:
        if self._sweep is not None:
            self.io_loop.remove_timeout(self._sweep)
        self._sweep = self.io_loop.call_later(seconds, self._in_cells_context, self._sweep_now)

    def _sweep_now(self) -> None:
        self._sweep = None
        self._commit_outside_cell(self.get_parent("shell"))
        if self._requests.is_executor and self._user_work_goes_on():
            self._sweep_after(BACKGROUND_SWEEP_S)

    def _user_work_goes_on(self) -> bool:
        foreign = (
            thread
            for thread in threading.enumerate()
            if thread not in self._own_threads
            and not getattr(thread, "is_pydev_daemon_thread", False)
            and not thread.name.startswith("pydevd.")
        )
        return next(foreign, None) is not None or bool(asyncio.all_tasks(asyncio.get_event_loop()))

    # ---- end ------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """End politely: late parts first, then the user's children, then the loops."""
        await self._replicator.shipped()
        await self._at_shutdown()
        for stream in (self.control_stream, self.shell_stream):
            if stream is not None and stream.io_loop is not self.io_loop:
                stream.io_loop.add_callback(stream.io_loop.stop)
        self.io_loop.add_callback(self.io_loop.stop)
