"""Carries out attempts: bind and lead, close what was lost, give devices back.

A cell's way is short: one frame to the agent, one answer, one command to the router. Nothing here
polls; no task is made for an attempt that begins.
"""

from __future__ import annotations

import asyncio
import functools
import logging

from notebookos_ext.cluster import actions, events
from notebookos_ext.cluster.messages import control as messages
from notebookos_ext.cluster.model import CellId, HostId, KernelId, Outcome, ReplicaId
from notebookos_ext.errors import NotebookOSError, Unavailable
from notebookos_ext.live.kernel_records import KernelRecord, OpenAttempt
from notebookos_ext.live.parts import Part

CLOSE_S = 4.0
"""Each host; a leader is there sooner."""
CLOSE_ALL_S = 20.0
"""All hosts together: without a majority the cell's client must not wait for minutes."""
PAUSE_S = 0.5
REPLY_LOST = "the cell had finished and its changes are kept, but its reply was lost"
RUN_AGAIN = "Run the cell again: everything that earlier cells did is still there."
LOOK_FIRST = "Look at your variables before you run the cell again."

log = logging.getLogger(__name__)


class Attempts(Part):
    """One method per action; what comes of it is posted as an event."""

    def call_election(self, action: actions.CallElection) -> None:
        """Ask the agent of each voter for its ballot; what is committed is told by notices."""
        record = self._records[action.kernel]
        for voter in action.voters:
            process = record.processes.get(voter)
            request = messages.CastBallot(
                kernel=action.kernel,
                cell=action.cell,
                attempt=action.attempt,
                replica=voter,
                gpus=action.gpus,
            )
            try:
                if process is None:
                    raise Unavailable(f"replica {voter} is gone")
                answer = self._fleet.agent(process.host).send(request)
            except Unavailable as error:
                self._no_ballot(request, error.message)
            else:
                answer.add_done_callback(functools.partial(self._asked_for_ballot, request))

    def _asked_for_ballot(
        self, request: messages.CastBallot, answer: asyncio.Future[messages.AgentAnswer]
    ) -> None:
        if answer.cancelled():
            return
        error = answer.exception()
        found = None if error else answer.result()
        if isinstance(found, messages.Done):
            return
        if isinstance(found, messages.Failure):
            self._no_ballot(request, found.message)
        else:
            said = f"the host agent answered with {type(found).__name__}"
            self._no_ballot(request, str(error) if error else said)

    def _no_ballot(self, request: messages.CastBallot, reason: str) -> None:
        """Nothing of it is in the log as far as anybody knows: nobody must wait for it.

        Should it be committed after all it counts for nothing; who leads is for LEAD to say.
        """
        log.info("no ballot of %s to attempt %d: %s", request.replica, request.attempt, reason)
        self._outlet.post(
            events.BallotCast(
                kernel=request.kernel,
                cell=request.cell,
                attempt=request.attempt,
                replica=request.replica,
                lead=False,
                devices=(),
                reason=reason,
                at=self._clock.now(),
            )
        )

    def start(self, action: actions.StartAttempt) -> None:
        """Ask the agent to bind and to commit LEAD."""
        record = self._records[action.kernel]
        attempt = OpenAttempt(action.cell, action.attempt, action.replica, action.host)
        record.attempts[action.attempt] = attempt
        request = messages.BeginAttempt(
            kernel=action.kernel,
            cell=action.cell,
            attempt=action.attempt,
            replica=action.replica,
            devices=action.devices,
        )
        try:
            answer = self._fleet.agent(action.host).send(request)
        except Unavailable as error:
            self._refused(record, attempt, messages.AttemptNotBegun(reason=str(error)))
            return
        answer.add_done_callback(lambda done: self._answered(record, attempt, action, done))

    def _answered(
        self,
        record: KernelRecord,
        attempt: OpenAttempt,
        action: actions.StartAttempt,
        answer: asyncio.Future[messages.AgentAnswer],
    ) -> None:
        if answer.cancelled():
            return
        error = answer.exception()
        found = None if error else answer.result()
        if isinstance(found, messages.AttemptBegun):
            self._begun(record, attempt, action)
        elif isinstance(found, messages.AttemptNotBegun):
            self._refused(record, attempt, found)
        elif isinstance(found, messages.Failure):
            self._refused(record, attempt, messages.AttemptNotBegun(reason=found.message))
        else:
            why = str(error) if error else f"the host agent answered with {type(found).__name__}"
            self._refused(record, attempt, messages.AttemptNotBegun(reason=why))

    def _begun(
        self, record: KernelRecord, attempt: OpenAttempt, action: actions.StartAttempt
    ) -> None:
        now = self._clock.now()
        attempt.begun = True
        self._outlet.post(
            events.AttemptStarted(
                kernel=action.kernel, cell=action.cell, attempt=action.attempt, at=now
            )
        )
        # The scheduler may have closed it already: interrupted, restarted or stopped meanwhile.
        if attempt.given_up or record.attempts.get(action.attempt) is not attempt:
            return
        cell = record.cell(action.cell)
        if cell is not None:
            cell.begin(action.attempt, action.replica, action.host, action.devices, now)
        self.lead(record, action.replica)
        if record.notice:
            self._router.tell_cell(action.kernel, action.cell, record.notice)
            record.notice = ""
        self._router.start_cell(action.kernel, action.cell, action.attempt, action.replica)
        self._outlet.changed(action.kernel, "cell")

    def lead(self, record: KernelRecord, replica: ReplicaId | None) -> None:
        """From now on the kernel's requests that are no cells go to this replica."""
        if record.executor != replica:
            record.executor = replica
            self._router.set_executor(record.kernel, replica)

    def _refused(
        self, record: KernelRecord, attempt: OpenAttempt, why: messages.AttemptNotBegun
    ) -> None:
        record.attempts.pop(attempt.attempt, None)
        log.info("attempt %d of %s did not begin: %s", attempt.attempt, record.kernel, why.reason)
        self._outlet.post(
            events.AttemptRefused(
                kernel=record.kernel,
                cell=attempt.cell,
                attempt=attempt.attempt,
                reason=why.reason,
                busy=why.busy,
                recycle=why.recycle,
                at=self._clock.now(),
            )
        )

    def close(self, action: actions.CloseAttempt) -> None:
        """Commit LOST through whoever is left, then end the cell for its client."""
        record = self._records[action.kernel]
        attempt = record.attempts.get(action.attempt)
        if attempt is None:
            self._closed(action.kernel, action.cell, action.attempt)
            return
        attempt.given_up = True
        self._chains.spawn(self._lose(record, attempt, action))

    async def _lose(
        self, record: KernelRecord, attempt: OpenAttempt, action: actions.CloseAttempt
    ) -> None:
        request = messages.LoseAttempt(
            kernel=action.kernel,
            cell=action.cell,
            attempt=action.attempt,
            replica=attempt.replica,
        )
        known = await self._propose(action, request)
        if not known:
            # A member may have the cell's DONE on its disk, and commit it once a majority is back.
            log.warning("attempt %d of %s is lost without a commit", action.attempt, action.kernel)
        self._closed(action.kernel, action.cell, action.attempt)
        if not action.ends_cell:
            return
        committed = attempt.outcome in (Outcome.DONE, Outcome.FAILED)
        cell = record.cell(action.cell)
        if cell is not None and cell.ended is None:
            cell.end("done" if committed else "lost", self._clock.now())
        reason, hint = action.reason, RUN_AGAIN
        if committed:
            reason += f"; {REPLY_LOST}"
            hint = ""
        elif not known:
            reason += "; whether its changes are kept is known only when most of its hosts answer"
            hint = LOOK_FIRST
        self._router.fail_cell(
            action.kernel, action.cell, ename="ExecutorLost", evalue=reason, hint=hint
        )
        self._outlet.changed(action.kernel, "cell")

    def reply_lost(self, record: KernelRecord, replica: ReplicaId, reason: str) -> None:
        """The replica is gone; a cell that it had finished and committed may lack its reply.

        The router hears the replica out first, and does nothing when the reply was among its last
        words.
        """
        cell = record.open_cell
        if cell is None or cell.replica != replica or cell.outcome in (None, Outcome.LOST):
            return
        cell.end("done" if cell.outcome is Outcome.DONE else "failed", self._clock.now())
        self._router.fail_cell(
            record.kernel, cell.cell, ename="ExecutorLost", evalue=f"{reason}; {REPLY_LOST}"
        )
        self._outlet.changed(record.kernel, "cell")

    async def _propose(self, action: actions.CloseAttempt, request: messages.LoseAttempt) -> bool:
        """Whether the attempt's end is in the log, through whichever host it got there."""
        try:
            async with asyncio.timeout(CLOSE_ALL_S):
                while hosts := [host for host in action.members if self._fleet.has(host)]:
                    for host in hosts:
                        if await self._lost_through(host, request):
                            return True
                    await asyncio.sleep(PAUSE_S)
        except TimeoutError:
            log.info("LOST of attempt %d: no host could commit it in time", action.attempt)
        return False

    async def _lost_through(self, host: HostId, request: messages.LoseAttempt) -> bool:
        try:
            await self._fleet.agent(host).request(request, messages.Done, CLOSE_S)
        except NotebookOSError as error:
            log.info("LOST of attempt %d not through %s: %s", request.attempt, host, error)
            return False
        return True

    def _closed(self, kernel: KernelId, cell: CellId, attempt: int) -> None:
        self._outlet.post(
            events.AttemptClosed(
                kernel=kernel,
                cell=cell,
                attempt=attempt,
                outcome=Outcome.LOST,
                at=self._clock.now(),
            )
        )

    def release(self, action: actions.ReleaseGpus) -> None:
        """Give devices back, once their memory is free or known not to be."""
        self._chains.spawn(self._release(action))

    async def _release(self, action: actions.ReleaseGpus) -> None:
        request = messages.ReleaseDevices(
            kernel=action.kernel,
            cell=action.cell,
            attempt=action.attempt,
            replica=action.replica,
            devices=action.devices,
        )
        try:
            agent = self._fleet.agent(action.host)
            released = await agent.request(request, messages.DevicesReleased)
        except NotebookOSError as error:
            # With the host its bindings are gone; else the agent has said what it could not do.
            if self._fleet.has(action.host):
                self._outlet.warn(
                    f"GPUs of {action.replica} were not freed: {error}", action.kernel
                )
        else:
            if released.residual_bytes:
                held = released.residual_bytes // 2**20
                self._outlet.warn(
                    f"{action.replica} still holds {held} MB of GPU memory after its cell",
                    action.kernel,
                )
        self._outlet.post(
            events.GpusReleased(
                kernel=action.kernel,
                cell=action.cell,
                attempt=action.attempt,
                at=self._clock.now(),
            )
        )
        self._outlet.changed(action.kernel, "gpu")
