"""Whatever happens to replicas, every request gets one busy, one reply and one idle.

Random clients, replicas that answer in any interleaving of their sockets and die at any moment, and
a controller that starts, lets wait, fails and restarts at random. At the end all is answered.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from notebookos_ext.cluster.channels import DELIMITER, Message, parse
from notebookos_ext.cluster.model import CellId, KernelId, ReplicaId
from notebookos_ext.cluster.router import CellArrived, KernelRouter
from notebookos_ext.cluster.routing import Announce, Answer, Probe, Publish, ToClient, ToReplica

KINDS = (
    "execute_request",
    "execute_request",
    "complete_request",
    "kernel_info_request",
    "comm_msg",
    "debug_request",
)


def message(first: list[bytes], header: dict[str, Any], parent: str, content: Any) -> Message:
    parents = {"msg_id": parent} if parent else {}
    frames = [json.dumps(part).encode() for part in (header, parents, {}, content)]
    return parse([*first, DELIMITER, b"", *frames])


class Replica:
    """Two sockets, each in order, with what is still to come out of them."""

    def __init__(self) -> None:
        self.published: list[tuple[str, dict[str, Any], str]] = []
        self.replies: list[tuple[str, bytes, str, str]] = []

    def take(self, request: ToReplica, chance: random.Random) -> None:
        said = parse(request.frames)
        kind, parent = said.header.msg_type, said.header.msg_id
        self.published.append(("status", {"execution_state": "busy"}, parent))
        if kind == "execute_request":
            self.published.append(("execute_input", {"execution_count": 3}, parent))
        if kind != "comm_msg":
            status = "error" if chance.random() < 0.2 else "ok"
            self.replies.append((request.channel, request.identity, parent, status))
        self.published.append(("status", {"execution_state": "idle"}, parent))


class World:
    """A router, its surroundings, and what the clients have received."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.router = KernelRouter(KernelId("k"))
        self.replicas: dict[ReplicaId, Replica] = {}
        self.arrived: list[CellId] = []
        self.asked: dict[str, str] = {}
        self.received: dict[str, Counter[str]] = defaultdict(Counter)
        self.order: list[str] = []

    def happen(self, outputs: list[Any]) -> None:
        for output in outputs:
            match output:
                case ToReplica(replica) if replica in self.replicas:
                    self.replicas[replica].take(output, self.chance)
                case Probe(replica, msg_id) if replica in self.replicas:
                    self.replicas[replica].replies.append(("shell", b"-", msg_id, "ok"))
                case ToClient(_, frames):
                    self.note(parse(frames).parent_id, "reply")
                case Answer(_, _, made):
                    self.note(json.loads(made.parent)["msg_id"], "reply")
                case Publish(frames):
                    said = parse(frames)
                    self.note(said.parent_id, state_or_type(said.header.msg_type, said.content()))
                case Announce(made):
                    parent = json.loads(made.parent).get("msg_id", "")
                    self.note(parent, state_or_type(made.msg_type, dict(made.content)))
                case CellArrived(_, cell):
                    self.arrived.append(cell)

    def note(self, request: str, what: str) -> None:
        if what == "idle":
            assert self.received[request]["busy"], f"{request} is idle before it was busy"
        self.received[request][what] += 1
        if what == "reply" and self.asked.get(request) == "execute_request":
            self.order.append(request)

    def step(self) -> None:
        getattr(self, self.chance.choice(STEPS))()

    def ask(self) -> None:
        kind = self.chance.choice(KINDS)
        msg_id = f"m{len(self.asked)}"
        self.asked[msg_id] = kind
        header = {"msg_id": msg_id, "msg_type": kind}
        channel = "control" if kind == "debug_request" else "shell"
        who = self.chance.choice([b"a", b"b"])
        content = {"code": "pass"} if kind == "execute_request" else {}
        self.happen(self.router.from_client(channel, message([who], header, "", content)))

    def publish(self) -> None:
        self.speak([r for r in self.replicas if self.replicas[r].published], reply=False)

    def reply(self) -> None:
        self.speak([r for r in self.replicas if self.replicas[r].replies], reply=True)

    def speak(self, ready: list[ReplicaId], *, reply: bool) -> None:
        if not ready:
            return
        replica = self.chance.choice(ready)
        if reply:
            channel, identity, parent, status = self.replicas[replica].replies.pop(0)
            header = {"msg_id": "r", "msg_type": "some_reply"}
            said = message([], header, parent, {"status": status})
            self.happen(self.router.from_replica(replica, channel, identity, said))
        else:
            kind, content, parent = self.replicas[replica].published.pop(0)
            said = message([b"t"], {"msg_id": "p", "msg_type": kind}, parent, content)
            self.happen(self.router.from_iopub(replica, said))

    def forge(self) -> None:
        """A replica speaks of a request that is not its own, as after a partition."""
        request = self.chance.choice([*self.asked, "unknown"])
        known = self.router._open.get(request)
        replica = ReplicaId(f"k:{self.chance.randint(1, 3)}")
        if known is None or known.replica == replica:
            return
        header = {"msg_id": "f", "msg_type": "status"}
        idle = message([b"t"], header, request, {"execution_state": "idle"})
        self.happen(self.router.from_iopub(replica, idle))
        reply = message([], {**header, "msg_type": "some_reply"}, request, {"status": "ok"})
        self.happen(self.router.from_replica(replica, known.channel, known.identity, reply))

    def appear(self) -> None:
        replica = ReplicaId(f"k:{self.chance.randint(1, 3)}")
        if replica not in self.replicas:
            self.replicas[replica] = Replica()
            self.happen(self.router.replica_ready(replica))

    def die(self) -> None:
        if self.replicas:
            replica = self.chance.choice(sorted(self.replicas))
            del self.replicas[replica]
            running = self.router._running
            self.happen(self.router.replica_gone(replica))
            if running is not None and running.replica == replica:
                self.fail(CellId(running.id))

    def start(self) -> None:
        if self.arrived and self.replicas:
            replica = self.chance.choice(sorted(self.replicas))
            self.happen(self.router.start_cell(self.arrived.pop(0), 1, replica))

    def wait(self) -> None:
        if self.arrived:
            self.happen(self.router.cell_waits(self.arrived[0]))

    def refuse(self) -> None:
        if self.arrived:
            self.fail(self.arrived.pop(0))

    def fail(self, cell: CellId) -> None:
        self.happen(self.router.fail_cell(cell, ename="E", evalue="e"))

    def hold_back(self) -> None:
        self.happen(self.router.set_executor(None))

    def point(self) -> None:
        if self.replicas:
            self.happen(self.router.set_executor(self.chance.choice(sorted(self.replicas))))

    def restart(self) -> None:
        if self.chance.random() < 0.1:
            self.replicas.clear()
            self.arrived.clear()
            self.happen(self.router.restart())

    def settle(self) -> None:
        """Peace: replicas live, the controller starts what arrives, all say what they have."""
        for _ in range(100_000):
            if not self.replicas:
                self.appear()
            self.point()
            self.start()
            self.publish()
            self.reply()
            quiet = not any(r.published or r.replies for r in self.replicas.values())
            if quiet and not self.arrived:
                return
        raise AssertionError("it never comes to rest")


STEPS = (
    *("ask",) * 5,
    *("publish",) * 6,
    *("reply",) * 4,
    *("start",) * 4,
    *("appear",) * 2,
    *("forge", "die", "wait", "refuse", "hold_back", "point", "restart"),
)


def state_or_type(kind: str, content: dict[str, Any]) -> str:
    return str(content.get("execution_state", kind))


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 300))
def test_every_request_is_answered_once(seed: int, steps: int) -> None:
    world = World(seed)
    for _ in range(steps):
        world.step()
    world.settle()
    assert not world.router._queue
    assert not world.router._running
    for request, kind in world.asked.items():
        got = world.received[request]
        replies = 0 if kind == "comm_msg" else 1
        story = f"{request} ({kind}) got {dict(got)}"
        assert (got["busy"], got["reply"], got["idle"]) == (1, replies, 1), story
        assert got["execute_input"] <= (kind == "execute_request"), story
    cells = [request for request, kind in world.asked.items() if kind == "execute_request"]
    assert world.order == cells, "cells are answered in the order in which they came"
    assert not world.router._open
    assert not world.router._stranded
