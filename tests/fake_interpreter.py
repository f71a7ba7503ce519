"""An "interpreter" whose replicas run no Python: what they do is spelled out in the cell's id.

It forks like the real template and speaks the real replica protocol, so that the host agent can be
tested without a kernel, and misbehaves on demand. A cell id is words joined by `;`:

    commit NAME [BYTES]   close the attempt with a component of that name (inline)
    store NAME BYTES      the same with a chunk in the store
    claim NAME            the same, naming a chunk that was never stored
    late NAME             a state entry after the attempt
    await-interrupt       wait for SIGINT, then go on with the next words
    kill / exit N / stop  end: by SIGKILL, with a status, by closing the link
    spawn                 start a child process in a session of its own
    spawn-in-session      start one in a process group of its own

What happens is printed as JSON lines into the replica's log. `PLAN` in the environment is a JSON
object: `refuse` (a reason for Prepare), `recycle`, `mute` (do not answer Prepare), `broken` (a name
that cannot be applied), `free` (nothing holds the kernel), `stubborn` (ignore Stop and SIGTERM),
`dead` (last words at its start).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from notebookos_ext.cluster.digests import chunk_digest
from notebookos_ext.cluster.entries import Block, ChunkRef, Component, Delta
from notebookos_ext.cluster.frames import FrameDecoder, encode_frame
from notebookos_ext.cluster.messages.control import LaunchReplica
from notebookos_ext.cluster.messages.replica import (
    Applied,
    Apply,
    CommitAttempt,
    CommitState,
    FetchChunk,
    FromReplica,
    Lead,
    LeadAnswer,
    Park,
    Parked,
    Prepare,
    ReplicaHello,
    ReplicaServing,
    Stop,
    StoreChunk,
    ToReplica,
)
from notebookos_ext.cluster.model import HeldName, Outcome
from notebookos_ext.kernel.template import enter, serve


def write_interpreter(path: Path) -> str:
    """An executable that an agent takes for an interpreter."""
    here = Path(__file__).resolve().parent
    path.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        f"sys.path[:0] = [{str(here)!r}, {str(here.parent)!r}]\n"
        "from fake_interpreter import main\n"
        "main(sys.argv)\n"
    )
    path.chmod(0o700)
    return str(path)


def say(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


class FakeReplica:
    def __init__(self, launch: LaunchReplica, link: int) -> None:
        self.plan: dict[str, Any] = json.loads(os.environ.get("PLAN", "{}"))
        self.connection = socket.socket(fileno=link)
        self.decoder = FrameDecoder(ToReplica)
        self.launch = launch
        self.sequence = 0
        self.attempt = 0
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        if self.plan.get("stubborn"):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def run(self) -> None:
        self.send(0, ReplicaHello(os.getpid(), sys.executable, "none"))
        if "dead" in self.plan:
            sys.exit(str(self.plan["dead"]))
        say(visible=os.environ.get("CUDA_VISIBLE_DEVICES"), seed=os.environ.get("PYTHONHASHSEED"))
        self.send(0, ReplicaServing({"shell": "ipc:///nowhere"}))
        while data := self.connection.recv(1 << 20):
            for message in self.decoder.feed(data):
                self.take(message)

    def send(self, sequence: int, body: Any) -> None:
        self.connection.sendall(encode_frame(FromReplica(sequence, body)))

    def request(self, body: Any) -> None:
        self.sequence += 1
        self.send(self.sequence, body)

    def take(self, message: ToReplica) -> None:
        body = message.body
        match body:
            case Apply():
                self.apply(message.sequence, body)
            case Prepare():
                say(prepared=list(body.devices), visible=body.visible, simulated=body.simulated)
                if not self.plan.get("mute"):
                    self.send(message.sequence, self.answer())
            case Lead():
                self.attempt = body.attempt
                for words in body.cell.split(";"):
                    self.act(body, words.split())
            case Park():
                self.send(message.sequence, Parked(0))
            case Stop():
                if not self.plan.get("stubborn"):
                    os._exit(0)
            case _:
                say(answered=type(body).__name__, error=getattr(body, "error", ""))

    def answer(self) -> LeadAnswer:
        reason = self.plan.get("refuse", "")
        if self.plan.get("broken_now"):
            reason = f"{self.plan['broken']} cannot be loaded here"
        return LeadAnswer(
            accepted=not reason, reason=reason, recycle=bool(self.plan.get("recycle"))
        )

    def apply(self, sequence: int, body: Apply) -> None:
        names = [n for c in body.delta.components for n in c.names] if body.delta else []
        for component in body.delta.components if body.delta else ():
            for block in component.blocks:
                for ref in block.chunks:
                    self.request(FetchChunk(ref.digest))
        say(applied=body.index, names=names, own=body.own, executor=body.executor)
        if self.plan.get("broken") in names:
            self.plan["broken_now"] = True
        if not self.plan.get("broken_now"):
            self.send(sequence, Applied(body.index))

    def act(self, lead: Lead, words: list[str]) -> None:
        match words:
            case ["commit", name]:
                self.commit(lead, Component((name,), b"skeleton", definitions=()))
            case ["commit", name, size]:
                self.commit(lead, Component((name,), os.urandom(int(size)), definitions=()))
            case ["store" | "claim" as how, name, *rest]:
                data = os.urandom(int(rest[0])) if rest else b"never stored"
                digest = chunk_digest(data)
                if how == "store":
                    self.send(0, StoreChunk(digest, data))
                block = Block(len(data), chunks=(ChunkRef(digest, len(data)),))
                self.commit(lead, Component((name,), b"skeleton", (block,), definitions=()))
            case ["late", name]:
                delta = Delta(components=(Component((name,), b"late", definitions=()),))
                self.request(CommitState(lead.attempt, delta))
            case ["await-interrupt"]:
                say(waits=True)
                signal.sigwait({signal.SIGINT})
            case ["kill"]:
                os.kill(os.getpid(), signal.SIGKILL)
            case ["exit", status]:
                os._exit(int(status))
            case ["spawn" | "spawn-in-session" as how]:
                child = subprocess.Popen(
                    ["sleep", "600"],
                    start_new_session=how == "spawn",
                    process_group=0 if how == "spawn-in-session" else None,
                )
                say(child=child.pid)
            case _:
                say(ran=words)

    def commit(self, lead: Lead, component: Component) -> None:
        held = (HeldName("socket_of_mine", "socket", "a test says so"),)
        delta = Delta(components=(component,), held=() if self.plan.get("free") else held)
        self.request(CommitAttempt(lead.cell, lead.attempt, Outcome.DONE, delta))


def main(arguments: list[str]) -> None:
    if os.environ.get("BREAK_TEMPLATE"):
        raise ModuleNotFoundError("No module named 'ipykernel'")
    place = arguments.index("notebookos_ext.kernel.template")
    fork = serve(socket.socket(fileno=int(arguments[place + 1])))
    if fork is None:
        return
    FakeReplica(enter(fork), fork.link).run()
