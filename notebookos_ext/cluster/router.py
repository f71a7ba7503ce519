"""How several replicas look like one ordinary Jupyter kernel: messages in, outputs and events out.

One `KernelRouter` per kernel. It knows no socket, clock or key: `live/router_thread.py` verifies
what comes in, and signs and sends what goes out. Each method returns what to do, in order.

The rules:
- Requests on the main shell keep their order, as in ipykernel. Cells wait here, one at a time,
  until the controller names the executor; what a client sends behind a waiting cell waits too,
  except where the order cannot matter, or where the scheduler said that only the cell must wait.
- Each request gets one busy, reply and idle, each cell one execute_input, whoever says them.
- A replica is heard only about requests given to it; only the executor may publish beside them.
- A lost replica's pure requests are asked again elsewhere; its other requests end with an error,
  and its cell ends by `fail_cell`, when the controller knows why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from notebookos_ext.cluster.channels import SHELL, STDIN, Made, Message
from notebookos_ext.cluster.model import CellId, KernelId, ReplicaId
from notebookos_ext.cluster.requests import (
    COMM,
    UNORDERED,
    CellRequest,
    Prompt,
    Request,
    error_content,
    read_cell,
    reply_status,
)
from notebookos_ext.cluster.resting import Rest
from notebookos_ext.cluster.routing import (
    Activity,
    Announce,
    CellArrived,
    CellReplied,
    InputWaiting,
    InterruptAsked,
    Output,
    PrepareReplica,
    Probe,
    Publish,
    ReplicaNeeded,
    RouterEvent,
    ShutdownAsked,
    ToClient,
)
from notebookos_ext.errors import ProtocolError

__all__ = [
    "Activity",
    "CellArrived",
    "CellReplied",
    "InputWaiting",
    "InterruptAsked",
    "KernelRouter",
    "RouterEvent",
    "ShutdownAsked",
]

REMEMBERED = 1024
"""How many ended requests, seen signatures and half-open requests are remembered at most."""

NOT_BESIDE = frozenset({"status", "execute_input", "shutdown_reply", "iopub_welcome"})
"""What no replica may publish outside an open request: the router says it for the whole kernel."""

T = TypeVar("T")


class KernelRouter:
    """The decisions for one kernel. Not thread-safe: the router thread owns it."""

    def __init__(self, kernel: KernelId) -> None:
        self.kernel = kernel
        self._replicas: dict[ReplicaId, None] = {}
        self._executor: ReplicaId | None = None
        self._attached: ReplicaId | None = None
        self._held_back = False
        self._started = False
        self._rest = Rest(kernel)
        self._queue: deque[Request] = deque()
        """Main-shell requests in order; after each method its first, if any, is a cell."""
        self._running: CellRequest | None = None
        self._open: dict[str, Request] = {}
        self._stranded: list[Request] = []
        self._prompts: dict[bytes, Prompt] = {}
        self._probes: dict[str, tuple[ReplicaId, list[Request]]] = {}
        self._probe_count = 0
        self._ended: dict[str, None] = {}
        self._signatures: dict[bytes, None] = {}
        self._execution_count = 0
        self._out: list[Output | RouterEvent] = []

    # ---- from the sockets ------------------------------------------------------------------------

    def from_client(self, channel: str, message: Message) -> list[Output | RouterEvent]:
        """A client's message on shell, control or stdin, its signature checked.

        Raises ProtocolError when its content cannot be read.
        """
        if message.signature and message.signature in self._signatures:
            # A replica drops frames that it has seen without a word: the cell would hang.
            return []
        _remember(self._signatures, message.signature)
        request = Request(channel, message)
        if channel == STDIN:
            self._input_reply(request)
        elif request.is_lifecycle:
            self._lifecycle(request)
        elif request.id not in self._open and self._find_cell(request.id) is None:
            if channel == SHELL and request.type != "kernel_info_request":
                self._out.append(Activity(self.kernel))
            self._request(request)
        return self._take()

    def from_replica(
        self, replica: ReplicaId, channel: str, identity: bytes, message: Message
    ) -> list[Output | RouterEvent]:
        """A replica's message to one client, on shell, control or stdin."""
        parent = message.parent_id
        if parent in self._probes:
            self._probe_answered(parent)
            return self._take()
        request = self._open.get(parent)
        passing = ToClient(channel, (identity, *message.frames))
        if request is None:
            if parent not in self._ended and replica == self._speaker():
                self._out.append(passing)
        elif request.replica == replica:
            if channel == STDIN:
                self._out.append(passing)
                self._prompts[identity] = Prompt(replica, request)
                if isinstance(request, CellRequest):
                    self._out.append(InputWaiting(self.kernel, CellId(request.id), waiting=True))
            elif not request.replied:
                request.replied = True
                self._out.append(passing)
                self._out += self._rest.learn(request, message)
                if isinstance(request, CellRequest):
                    self._cell_replied(request, message)
                self._settle(request)
        return self._take()

    def from_iopub(self, replica: ReplicaId, message: Message) -> list[Output | RouterEvent]:
        """What a replica publishes."""
        request = self._open.get(message.parent_id)
        if request is None:
            if (
                message.header.msg_type not in NOT_BESIDE
                and message.parent_id not in self._ended
                and replica == self._speaker()
            ):
                self._out.append(Publish(message.frames))
        elif request.replica == replica and request.admits(message):
            self._out.append(Publish(message.frames))
            if isinstance(request, CellRequest) and request.execution_count:
                self._execution_count = request.execution_count
            self._settle(request)
        return self._take()

    # ---- from the controller ---------------------------------------------------------------------

    def replica_ready(self, replica: ReplicaId) -> list[Output | RouterEvent]:
        """The replica's channels are connected and nothing that it publishes can be missed."""
        if not self._started:
            self._started = True
            self._out.append(Announce(Made("status", {"execution_state": "starting"})))
        self._replicas[replica] = None
        self._rest.end()
        if (running := self._running) and running.replica == replica and not running.sent:
            self._give(running, replica)
        self._forward_stranded()
        self._pump()
        return self._take()

    def replica_gone(self, replica: ReplicaId) -> list[Output | RouterEvent]:
        """The replica's process is gone, or its host: finish or move what was open there."""
        self._replicas.pop(replica, None)
        self._probes = {p: at for p, at in self._probes.items() if at[0] != replica}
        self._end_prompts(lambda prompt: prompt.replica == replica)
        again = []
        for request in [r for r in self._open.values() if r.replica == replica]:
            if isinstance(request, CellRequest):
                if request.replied:
                    self._end(request, request.finish(None))
            elif request.may_be_asked_again:
                del self._open[request.id]
                again.append(request)
            else:
                sentence = f"the replica that handled this {request.type} is gone; send it again"
                self._end(request, request.finish(error_content("ReplicaLost", sentence)))
        for request in again:
            self._forward(request)
        self._pump()
        return self._take()

    def set_executor(self, replica: ReplicaId | None) -> list[Output | RouterEvent]:
        """Where requests that are not cells go from now on; None holds them back."""
        self._held_back = replica is None
        if replica is not None:
            self._executor = replica
        self._forward_stranded()
        return self._take()

    def hold_back(self) -> list[Output | RouterEvent]:
        """The kernel is about to rest: what is no cell waits until that is done or given up."""
        self._held_back = True
        return self._take()

    @property
    def is_quiet(self) -> bool:
        """Whether no replica works for a client."""
        return self._running is None and all(request.half_open for request in self._open.values())

    def rest(self, description: Mapping[str, Any] | None) -> list[Output | RouterEvent]:
        """No replica runs any more, or none yet; see `Rest.begin`. What waits is looked at."""
        self._rest.begin(description)
        self._held_back = False
        self._forward_stranded()
        return self._take()

    def cell_waits(self, cell: CellId) -> list[Output | RouterEvent]:
        """The scheduler lets the cell wait: what is behind it and not a cell need not wait too."""
        head = self._head()
        if head is not None and head.id == cell and head.arrived and not head.waits:
            head.waits = True
            behind = [r for r in self._queue if not isinstance(r, CellRequest)]
            self._queue = deque(r for r in self._queue if isinstance(r, CellRequest))
            for request in behind:
                self._forward(request)
        return self._take()

    def start_cell(
        self, cell: CellId, attempt: int, replica: ReplicaId
    ) -> list[Output | RouterEvent]:
        """`replica` is the executor of the cell at the head: it gets it, and what was held back."""
        head = self._head()
        if head is not None and head.id == cell and head.arrived and self._running is None:
            self._queue.popleft()
            self._running = self._open[head.id] = head
            head.attempt, head.replica = attempt, replica
            self._executor, self._held_back = replica, False
            self._attached = None
            if replica in self._replicas:
                self._give(head, replica)
            self._forward_stranded()
            self._pump()
        return self._take()

    def tell_cell(self, cell: CellId, text: str) -> list[Output | RouterEvent]:
        """Say something in a cell's output that has not ended, in the router's own words."""
        request = self._find_cell(cell)
        if request is not None and not request.silent and not request.replied:
            self._out += request.begin()
            self._out.append(request.announce("stream", {"name": "stderr", "text": text}))
        return self._take()

    def fail_cell(
        self, cell: CellId, *, ename: str, evalue: str, hint: str = ""
    ) -> list[Output | RouterEvent]:
        """End a cell with an error, running or waiting; cells behind it abort as in ipykernel."""
        request = self._find_cell(cell)
        if request is not None:
            if not request.replied:
                self._flag_queue(request)
            content = error_content(ename, evalue, hint)
            self._end(request, request.fail(content, self._execution_count + 1))
            self._pump()
        return self._take()

    def restart(self) -> list[Output | RouterEvent]:
        """The user's restart: cells abort, replicas are forgotten, pure requests stay open."""
        self._end_prompts(lambda _: True)
        old = [*self._open.values(), *self._queue, *self._stranded]
        self._open, self._queue, self._stranded = {}, deque(), []
        for request in old:
            if request.may_be_asked_again:
                request.taken_back()
                self._stranded.append(request)
            else:
                self._end(request, request.finish({"status": "aborted"}))
        self._replicas.clear()
        self._probes.clear()
        self._executor = self._attached = None
        self._held_back = self._started = False
        self._execution_count = 0
        return self._take()

    def busy_connections(self) -> set[tuple[ReplicaId, bytes]]:
        """(replica, client) pairs that still exchange messages and must stay connected."""
        open_ones = (r for r in self._open.values() if not r.half_open)
        return {(r.replica, r.identity) for r in open_ones if r.replica is not None}

    # ---- requests --------------------------------------------------------------------------------

    def _take(self) -> list[Output | RouterEvent]:
        out, self._out = self._out, []
        return out

    def _request(self, request: Request) -> None:
        if not request.on_main_shell or request.type in UNORDERED:
            self._forward(request)
        elif request.type == "execute_request":
            try:
                self._queue.append(read_cell(request.channel, request.message))
            except ProtocolError as error:
                self._out += request.finish(error_content("ProtocolError", error.message))
            self._pump()
        elif (head := self._head()) is None or head.waits:
            self._forward(request)
        else:
            self._queue.append(request)

    def _forward(self, request: Request) -> None:
        """Give a request that is not a cell to the replica that answers for the kernel."""
        replica = None if self._held_back else self._speaker()
        if replica is None:
            self._keep_waiting(request)
            return
        self._open[request.id] = request
        self._give(request, replica)
        if len(self._open) > REMEMBERED:
            stale = next((r.id for r in self._open.values() if r.half_open), None)
            self._open.pop(stale or "", None)

    def _keep_waiting(self, request: Request) -> None:
        answer = self._rest.answer(request)
        if answer is not None:
            self._end(request, answer)
            return
        request.taken_back()
        self._stranded.append(request)
        if self._rest.stored and not self._rest.needed:
            self._rest.needed = True
            self._out.append(ReplicaNeeded(self.kernel))

    def _give(self, request: Request, replica: ReplicaId) -> None:
        if request.type == "execute_request":
            # ipykernel drops an input_request for which no stdin is connected: connect it first.
            self._out.append(PrepareReplica(replica, request.identity))
        elif request.attaches:
            self._attached = replica
        self._out.append(request.sent_to(replica))

    def _forward_stranded(self) -> None:
        waiting, self._stranded = self._stranded, []
        for request in waiting:
            self._forward(request)

    def _speaker(self) -> ReplicaId | None:
        """Who answers for the kernel: the (last) executor, else the first replica that is ready."""
        if self._executor in self._replicas:
            return self._executor
        return next(iter(self._replicas), None)

    def _lifecycle(self, request: Request) -> None:
        if request.type == "interrupt_request":
            self._out.append(InterruptAsked(self.kernel))
            self._out += request.finish({"status": "ok"})
            return
        restart = request.message.content().get("restart") is True
        content = {"status": "ok", "restart": restart}
        self._out.append(ShutdownAsked(self.kernel, restart))
        self._out += request.finish(content)
        self._out.append(request.announce("shutdown_reply", content))

    def _settle(self, request: Request) -> None:
        """Forget a request whose client has everything; the next in order has its turn."""
        if request.closed:
            del self._open[request.id]
            if request is self._running:
                self._running = None
            self._pump()

    def _end(self, request: Request, words: list[Output]) -> None:
        """End a request in the router's own words; what a replica still says of it is dropped."""
        self._end_prompts(lambda prompt: prompt.request is request)
        self._out += words
        self._open.pop(request.id, None)
        if request in self._queue:
            self._queue.remove(request)
        if request is self._running:
            self._running = None
        _remember(self._ended, request.id)

    # ---- cells -----------------------------------------------------------------------------------

    def _head(self) -> CellRequest | None:
        head = self._queue[0] if self._queue else None
        return head if isinstance(head, CellRequest) else None

    def _find_cell(self, cell: str) -> CellRequest | None:
        if self._running is not None and self._running.id == cell:
            return self._running
        return next((r for r in self._queue if isinstance(r, CellRequest) and r.id == cell), None)

    def _pump(self) -> None:
        """Forward what has its turn; say CellArrived when that is a cell and nothing runs."""
        while self._queue:
            head = self._head()
            if head is None:
                self._forward(self._queue.popleft())
            elif self._running is not None or head.arrived:
                return
            elif head.abort:
                self._end(head, head.finish({"status": "aborted"}))
            elif self._comms_open():
                return
            else:
                self._out += head.begin()
                if self._executor in self._replicas:
                    self._out.append(PrepareReplica(self._executor, head.identity))
                self._out.append(head.arrival(self.kernel, self._near()))
                return

    def _near(self) -> ReplicaId | None:
        """Where a subshell works now, else where something was attached since the last cell."""
        at_work = (r.replica for r in self._open.values() if r.in_subshell and not r.half_open)
        near = next(at_work, self._attached)
        return near if near in self._replicas else None

    def _comms_open(self) -> bool:
        """Whether comm messages sent before this cell may still change the namespace.

        Their idle says that they are done. One that ipykernel handles beside an async cell gets
        none, so each replica that has any is asked for its kernel_info, which queues behind them.
        """
        open_comms: dict[ReplicaId, list[Request]] = {}
        for request in self._open.values():
            waiting = request.type in COMM and request.on_main_shell and not request.fenced
            if waiting and request.replica is not None:
                open_comms.setdefault(request.replica, []).append(request)
        for replica, requests in open_comms.items():
            if all(where != replica for where, _ in self._probes.values()):
                self._probe_count += 1
                probe = f"{self.kernel}-probe-{self._probe_count}"
                self._probes[probe] = (replica, requests)
                self._out.append(Probe(replica, probe))
        return bool(open_comms)

    def _probe_answered(self, probe: str) -> None:
        _, requests = self._probes.pop(probe)
        for request in requests:
            request.fenced = True
        self._pump()

    def _cell_replied(self, cell: CellRequest, reply: Message) -> None:
        self._end_prompts(lambda prompt: prompt.request is cell)
        status = reply_status(reply)
        self._out.append(CellReplied(self.kernel, CellId(cell.id), cell.attempt, status))
        if status == "error":
            self._flag_queue(cell)

    def _flag_queue(self, failed: CellRequest) -> None:
        """As ipykernel, abort what is queued when the reply goes out, not what comes after it."""
        if failed.stop_on_error and not failed.silent:
            for request in self._queue:
                if isinstance(request, CellRequest) and request is not failed:
                    request.abort = True

    # ---- input() ---------------------------------------------------------------------------------

    def _input_reply(self, reply: Request) -> None:
        prompt = self._prompts.get(reply.identity)
        if prompt is not None:
            self._out.append(reply.sent_to(prompt.replica))
            self._end_prompts(lambda other: other is prompt)

    def _end_prompts(self, ends: Callable[[Prompt], bool]) -> None:
        for identity, prompt in list(self._prompts.items()):
            if ends(prompt):
                del self._prompts[identity]
                if isinstance(prompt.request, CellRequest):
                    self._out.append(
                        InputWaiting(self.kernel, CellId(prompt.request.id), waiting=False)
                    )


def _remember(memory: dict[T, None], item: T) -> None:
    """Add to a bounded memory that forgets its oldest first."""
    memory[item] = None
    if len(memory) > REMEMBERED:
        del memory[next(iter(memory))]
