"""The agent's side of one replica process: feeds it the log, keeps its chunks, commits its deltas.

Commits are carried out in the order in which the replica sent them, also after its death: a reply
may already have promised them to the user.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from notebookos_ext.agent.chunks import Chunks
from notebookos_ext.agent.deltas import (
    DELTA_LIMIT_BYTES,
    component_chunks,
    fit,
    log_bytes,
    without_missing,
)
from notebookos_ext.agent.feeds import Feed
from notebookos_ext.agent.history import Generation, History, Verdict
from notebookos_ext.agent.processes import ReplicaProcess
from notebookos_ext.cluster.entries import ClosedEntry, Delta, LogEntry, StateEntry
from notebookos_ext.cluster.messages.control import (
    AgentNotice,
    AgentWarning,
    AttemptEnded,
    LaunchReplica,
    NamespaceReport,
)
from notebookos_ext.cluster.messages.replica import (
    AgentFailure,
    Applied,
    Chunk,
    CommitAttempt,
    CommitState,
    Committed,
    FetchChunk,
    FromReplica,
    ReplicaServing,
    StoreBack,
    StoreChunk,
)
from notebookos_ext.errors import (
    CorruptRecord,
    InvalidRequest,
    NotebookOSError,
    NotFound,
    Refused,
    StorageError,
)

log = logging.getLogger(__name__)

UNWRITTEN_BYTES = 64 << 20
"""Chunks in memory on their way to the store; beyond it the replica's socket is not read."""


class Commit(Protocol):
    """Commits an entry, repeating it under one id while `wanted`. Raises Refused, StorageError."""

    def __call__(  # noqa: D102
        self, entry: LogEntry, proposal_id: str, wanted: Callable[[], bool]
    ) -> Awaitable[Verdict]: ...


class ReplicaSession:
    """One launch of one replica, as its agent sees it."""

    def __init__(
        self,
        launch: LaunchReplica,
        history: History,
        *,
        mark: str,
        chunks: Chunks,
        commit: Commit,
        notify: Callable[[AgentNotice], None],
        on_progress: Callable[[], None],
    ) -> None:
        """`mark` begins the proposal ids of this process and of no other."""
        self.launch = launch
        self.endpoints: dict[str, str] = {}
        self.is_ready = False
        self.end_reason = ""
        """Why the agent itself ended the process, if it did."""
        self.fetched_bytes = 0
        """Of chunks that the process asked for."""
        self.serving = asyncio.Event()
        self._history = history
        self._mark = mark
        self._chunks = chunks
        self._commit = commit
        self._notify = notify
        self._on_progress = on_progress
        self._numbers = itertools.count(1)
        self._unwritten_bytes = 0
        self._unkept = False
        """Whether the store did not take something that the replica still has."""
        self._commits: asyncio.Queue[FromReplica] = asyncio.Queue()
        self._uncommitted: list[Delta] = []
        """Of the commits that are waiting or under way, oldest first."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._process: ReplicaProcess | None = None
        self._feed: Feed | None = None

    @property
    def process(self) -> ReplicaProcess:
        """The process; there is one from `begin` on."""
        assert self._process is not None  # noqa: S101 - a mistake of ours, not of the user
        return self._process

    @property
    def feed(self) -> Feed:
        """The replica's place in the log; there is one from `begin` on."""
        assert self._feed is not None  # noqa: S101 - a mistake of ours, not of the user
        return self._feed

    @property
    def pid(self) -> int:
        """The process's id; 0 before there is one."""
        return self._process.pid if self._process is not None else 0

    @property
    def is_alive(self) -> bool:
        """Whether there is a process that has not ended."""
        return self._process is not None and self._process.is_alive

    def begin(self, process: ReplicaProcess) -> None:
        """The process is there: start to feed and to serve it."""
        self._process = process
        self._feed = Feed(self._history, process.link, epoch=self.launch.epoch, mark=self._mark)
        self._spawn(self._commit_in_order())
        self._feed.pump()

    def receive(self, message: FromReplica) -> None:
        """Take one message of the replica, in order."""
        body = message.body
        match body:
            case StoreChunk():
                self._store(body)
            case CommitAttempt() | CommitState():
                self._uncommitted.append(body.delta)
                self._commits.put_nowait(message)
            case Applied():
                self.feed.applied(body.index)
                self._on_progress()
            case FetchChunk():
                self._spawn(self._fetch(message.sequence, body.digest))
            case ReplicaServing():
                self.endpoints = body.endpoints
                self.serving.set()
            case _:
                log.error("replica %s sent %s", self.launch.replica, type(body).__name__)

    def room(self) -> None:
        """The link can take more."""
        if self._feed is not None:
            self._feed.pump()

    async def settled(self) -> None:
        """Return when every commit that the replica sent has been carried out or refused."""
        await self._commits.join()

    def close(self) -> None:
        """Give up whatever is still on its way."""
        for task in self._tasks:
            task.cancel()
        if self._process is not None:
            self._process.link.close()

    @property
    def busy_with(self) -> tuple[Generation, ...]:
        """Former states of the log of which the replica may still load something."""
        return self._feed.busy_with if self._feed is not None else ()

    def uncommitted_chunks(self) -> set[str]:
        """Digests of the chunks that commits on their way to the log name."""
        return {ref.digest for delta in self._uncommitted for ref in delta.all_chunk_refs()}

    def store_back(self) -> bool:
        """Tell the replica that the store works again; whether it will send something now."""
        if not self.is_alive:
            return False
        self.process.link.send(StoreBack())
        return self._unkept

    # ---- chunks ----------------------------------------------------------------------------------

    def _store(self, chunk: StoreChunk) -> None:
        size = len(chunk.data)
        self._unwritten_bytes += size
        if self._unwritten_bytes > UNWRITTEN_BYTES:
            self.process.link.pause_reading()

        def written() -> None:
            self._unwritten_bytes -= size
            if self._unwritten_bytes <= UNWRITTEN_BYTES:
                self.process.link.resume_reading()

        self._chunks.put(chunk.digest, chunk.data, written)

    async def _fetch(self, sequence: int, digest: str) -> None:
        try:
            data = await self._chunks.fetch(digest)
        except NotebookOSError as error:
            if isinstance(error, NotFound | CorruptRecord):
                await self._tell_lost(digest, error)
            self._fail(sequence, error)
        else:
            self.process.link.answer(sequence, Chunk(digest=digest, data=data))
            self.fetched_bytes += len(data)
            self._on_progress()

    async def _tell_lost(self, digest: str, error: NotebookOSError) -> None:
        """The log names a chunk that the store was given and does not have."""
        names = await asyncio.to_thread(self._history.freeze().names_that_need, digest)
        what = ", ".join(names) or "a function or class"
        self._notify(AgentWarning(kernel=self.launch.kernel, message=f"{what}: {error.message}"))

    # ---- commits ---------------------------------------------------------------------------------

    async def _commit_in_order(self) -> None:
        while True:
            message = await self._commits.get()
            try:
                await self._commit_one(message)
            except StorageError as error:
                # The member here takes no part any more: nothing that runs here can be kept.
                self.give_up(error)
            except NotebookOSError as error:
                log.warning("replica %s: commit refused: %s", self.launch.replica, error)
                self._fail(message.sequence, error)
            except Exception as error:
                # An attempt that nobody closes would hold its kernel up for ever.
                log.exception("replica %s: a commit failed", self.launch.replica)
                self.give_up(StorageError(f"the host agent failed at a commit: {error!r}"))
            finally:
                del self._uncommitted[0]
                self._commits.task_done()

    async def _commit_one(self, message: FromReplica) -> None:
        body = message.body
        assert isinstance(body, CommitAttempt | CommitState)  # noqa: S101 - see `receive`
        wanted = self._lead_is_open(body) if isinstance(body, CommitAttempt) else self._leads(body)
        if not wanted():
            raise Refused(self._fence_words(body))
        delta, failure, names = await self._storable(body.delta)
        try:
            verdict = await self._propose(self._entry(body, delta), wanted)
        except InvalidRequest as error:
            if isinstance(body, CommitState):
                raise
            # So many names that no log takes them. The attempt must be closed all the same.
            verdict = await self._propose(self._entry(body, Delta()), wanted)
            delta, failure, names = _nothing_kept(delta), error, ()
            self._notify(AgentWarning(kernel=self.launch.kernel, message=error.message))
        if not verdict.counts:
            raise Refused(self._fence_words(body))
        if failure is None:
            self._unkept = False
            self.process.link.answer(message.sequence, Committed(verdict.index))
        else:
            self._unkept |= isinstance(failure, StorageError)
            self._fail(message.sequence, failure, names)
        self._chunks.committed(ref.digest for ref in delta.all_chunk_refs())
        self._report(delta)
        if isinstance(body, CommitAttempt):
            self._notify(
                AttemptEnded(
                    kernel=self.launch.kernel,
                    cell=body.cell,
                    attempt=body.attempt,
                    outcome=body.outcome,
                )
            )

    def _propose(self, entry: LogEntry, wanted: Callable[[], bool]) -> Awaitable[Verdict]:
        return self._commit(entry, f"{self._mark}{next(self._numbers)}", wanted)

    def _entry(self, body: CommitAttempt | CommitState, delta: Delta) -> ClosedEntry | StateEntry:
        epoch, replica = self.launch.epoch, self.launch.replica
        if isinstance(body, CommitState):
            return StateEntry(
                epoch=epoch, after_attempt=body.after_attempt, replica=replica, delta=delta
            )
        return ClosedEntry(
            epoch=epoch,
            cell=body.cell,
            attempt=body.attempt,
            replica=replica,
            outcome=body.outcome,
            delta=delta,
        )

    def _lead_is_open(self, body: CommitAttempt) -> Callable[[], bool]:
        def wanted() -> bool:
            lead = self._history.ledger.lead
            return (
                self._same_epoch
                and lead is not None
                and (lead.cell, lead.attempt, lead.replica)
                == (body.cell, body.attempt, self.launch.replica)
            )

        return wanted

    def _leads(self, body: CommitState) -> Callable[[], bool]:
        ledger = self._history.ledger
        return lambda: (
            self._same_epoch
            and ledger.executor == self.launch.replica
            and ledger.last_attempt == body.after_attempt
        )

    @property
    def _same_epoch(self) -> bool:
        return self._history.ledger.epoch == self.launch.epoch

    def _fence_words(self, body: CommitAttempt | CommitState) -> str:
        if not self._same_epoch:
            return "the kernel was restarted meanwhile"
        if isinstance(body, CommitAttempt):
            return "another replica took over while this cell ran, so its changes do not count"
        return "another cell or replica has gone on since"

    async def _storable(
        self, delta: Delta
    ) -> tuple[Delta, NotebookOSError | None, tuple[str, ...]]:
        """The delta without components whose chunks could not be kept, short enough for the log.

        And why, and the names that were left out, if they are all that was not kept.
        """
        needed = [d for component in delta.components for d in component_chunks(component)]
        missing = await self._chunks.failures(needed) if needed else {}
        kept, left_out = without_missing(delta, missing)
        failure = None
        if kept is not delta:
            failure = next(iter(missing.values()))
        try:
            kept = await fit(kept, self._chunks.store)
        except StorageError as error:
            # The attempt must be closed all the same; the replica sends its variables again.
            kept, failure, left_out = _nothing_kept(kept), error, ()
        if log_bytes(kept) > DELTA_LIMIT_BYTES:
            failure = StorageError(
                f"the kernel's environment record has {len(kept.environment)} bytes, which the log "
                "cannot hold; random states, history and settings stay on this replica"
            )
            kept, left_out = msgspec.structs.replace(kept, environment=b""), ()
        if failure is not None:
            what = f"{', '.join(left_out)}: " if left_out else ""
            self._notify(
                AgentWarning(kernel=self.launch.kernel, message=f"{what}{failure.message}")
            )
        return kept, failure, left_out

    def _report(self, delta: Delta) -> None:
        self._notify(
            NamespaceReport(
                kernel=self.launch.kernel,
                replica=self.launch.replica,
                held=delta.held,
                pending=delta.pending,
                gpu_names=delta.gpu_names,
            )
        )

    def end_for(self, reason: str) -> None:
        """End the process, which its kernel is told in these words."""
        self.end_reason = reason
        self.process.kill()

    def give_up(self, error: StorageError) -> None:
        """End the process: this host cannot keep what it does."""
        self.end_reason = error.message
        self._notify(AgentWarning(kernel=self.launch.kernel, message=error.message))
        self.process.kill()

    def _fail(self, sequence: int, error: NotebookOSError, names: tuple[str, ...] = ()) -> None:
        self.process.link.answer(
            sequence,
            AgentFailure(error=type(error).__name__, message=error.message, names=names),
        )

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _nothing_kept(delta: Delta) -> Delta:
    """The delta when none of its components could be kept: their names wait on this replica."""
    names = tuple(name for component in delta.components for name in component.names)
    return msgspec.structs.replace(delta, components=(), pending=(*delta.pending, *names))
