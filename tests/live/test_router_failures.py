"""The router when things end: replicas die, kernels restart and close, clients vanish."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import zmq
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.session import Session
from router_rig import HANG_S, KERNEL, KEY, Message, Rig, rig, run, story, text, until_idle

from notebookos_ext.clock import SystemClock, VirtualClock
from notebookos_ext.cluster.model import CellId, KernelId, replica_id
from notebookos_ext.cluster.router import CellArrived
from notebookos_ext.errors import InvalidRequest, Unavailable
from notebookos_ext.live.router_thread import RouterThread

FIRST, SECOND = replica_id(KERNEL, 1), replica_id(KERNEL, 2)


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll what no event announces; the limit only ends hangs."""
    pause = threading.Event()
    for _ in range(HANG_S * 50):
        if condition():
            return
        pause.wait(0.02)
    pytest.fail("it never came true")


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def wait_stream(client: BlockingKernelClient) -> None:
    while client.get_iopub_msg(timeout=HANG_S)["msg_type"] != "stream":
        pass


def test_a_killed_executor_ends_its_cell_and_the_next_one_runs_elsewhere(tmp_path: Path) -> None:
    with rig(tmp_path, replicas=2) as it:
        client = it.client()
        cell = client.execute("print('there', flush=True)\nwhile True: pass")
        behind = client.execute("print('behind')")
        wait_stream(client)
        question = client.kernel_info()
        it.kill_replica(FIRST)
        it.router.fail_cell(
            KERNEL, CellId(cell), ename="ExecutorLost", evalue="it was killed", hint="run it again"
        )
        _, published = until_idle_only(client, cell)
        assert published == ["error", "idle"]
        replies = replies_to(client, cell, behind, question)
        assert replies[cell]["ename"] == "ExecutorLost"
        assert replies[cell]["traceback"] == ["ExecutorLost: it was killed", "run it again"]
        assert replies[behind]["status"] == "aborted"
        assert replies[question]["status"] == "ok"
        it.choose = lambda _: SECOND
        reply, published_next = run(client, "print('on')")
        assert reply["content"]["status"] == "ok"
        assert story(published_next) == ["busy", "execute_input", "stream", "idle"]


def replies_to(client: BlockingKernelClient, *requests: str) -> dict[str, Message]:
    """The replies' contents in their order, past those to the client's own kernel_info requests."""
    replies: dict[str, Message] = {}
    while len(replies) < len(requests):
        reply = client.get_shell_msg(timeout=HANG_S)
        if reply["parent_header"]["msg_id"] in requests:
            replies[reply["parent_header"]["msg_id"]] = reply["content"]
    return replies


def until_idle_only(client: BlockingKernelClient, cell: str) -> tuple[str, list[str]]:
    """What is published for a cell until its idle, without asking for its reply."""
    published = []
    while True:
        message = client.get_iopub_msg(timeout=HANG_S)
        if message["parent_header"].get("msg_id") == cell:
            published.append(message["content"].get("execution_state", message["msg_type"]))
            if published[-1] == "idle":
                return cell, published


def test_a_prompt_ends_with_its_executor(tmp_path: Path) -> None:
    with rig(tmp_path, replicas=2) as it:
        client = it.client()
        cell = client.execute("input('?')")
        client.get_stdin_msg(timeout=HANG_S)
        it.kill_replica(FIRST)
        it.router.fail_cell(KERNEL, CellId(cell), ename="ExecutorLost", evalue="it was killed")
        assert until_idle(client, cell)[0]["content"]["ename"] == "ExecutorLost"
        client.input("too late")
        it.choose = lambda _: SECOND
        again = client.execute("print(input('?'))")
        client.get_stdin_msg(timeout=HANG_S)
        client.input("in time")
        assert text(until_idle(client, again)[1]) == "in time\n"


def test_a_cell_does_not_overtake_the_clients_stdin(tmp_path: Path) -> None:
    # A replica whose shell answers while its stdin cannot be reached yet.
    addresses = {c: f"ipc://{tmp_path}/{c}" for c in ("shell", "control", "stdin", "iopub")}
    session, context = Session(key=KEY), zmq.Context()
    try:
        with rig(tmp_path, replicas=0) as it:
            shell, stdin = context.socket(zmq.ROUTER), context.socket(zmq.ROUTER)
            iopub, tab = context.socket(zmq.XPUB), context.socket(zmq.DEALER)
            shell.bind(addresses["shell"])
            iopub.bind(addresses["iopub"])
            tab.connect(f"tcp://127.0.0.1:{it.info['shell_port']}")
            it.router.replica_ready(KERNEL, FIRST, addresses)
            iopub.recv()
            session.send(iopub, "iopub_welcome", {"subscription": ""}, ident=b"")
            session.send(tab, "execute_request", {"code": "input()"})
            connections = it.router._kernels[KERNEL].sockets._connections

            def held() -> list[int]:
                return [len(c.held or []) for c in list(connections.values())]

            wait_until(lambda: held() == [1])
            question = session.send(tab, "kernel_info_request", {})
            wait_until(lambda: held() == [2])
            assert not shell.poll(0)
            stdin.bind(addresses["stdin"])
            cell, after = (shell.recv_multipart() for _ in range(2))
            assert b"execute_request" in cell[3]
            assert question["msg_id"].encode() in after[3]
            stdin.send_multipart([cell[0], *session.serialize(session.msg("input_request"))])
            it.router.replica_gone(KERNEL, FIRST)
    finally:
        context.destroy(linger=0)


def test_a_restart_keeps_the_ports_and_the_same_client_goes_on(tmp_path: Path) -> None:
    with rig(tmp_path, replicas=2) as it:
        client = it.client()
        cell = client.execute("print('there', flush=True)\nwhile True: pass")
        behind = client.execute("1")
        wait_stream(client)
        it.router.restart_kernel(KERNEL)
        for replica in list(it.replicas):
            it.kill_replica(replica)
        assert until_idle(client, cell)[0]["content"]["status"] == "aborted"
        question = client.kernel_info()
        assert it.router.open_kernel(KERNEL, session_key=KEY) == it.info
        it.add_replica(1)
        replies = replies_to(client, behind, question)
        assert list(replies) == [behind, question]
        it.choose = lambda _: FIRST
        assert text(run(client, "print('there' in dir())")[1]) == "False\n"


def test_a_waiting_cell_is_busy_at_once_and_can_be_aborted(tmp_path: Path) -> None:
    with rig(tmp_path, replicas=1) as it:
        client = it.client()
        it.choose = lambda _: None
        cell = client.execute("print('never')")
        it.wait_event(lambda e: isinstance(e, CellArrived) and e.cell == cell)
        while client.get_iopub_msg(timeout=HANG_S)["parent_header"].get("msg_id") != cell:
            pass
        it.router.cell_waits(KERNEL, CellId(cell))
        reply, _ = until_idle(client, client.complete("prin", 4))
        assert "print" in reply["content"]["matches"]
        it.router.abort_cell(KERNEL, CellId(cell), "interrupted while it waited")
        reply, published = until_idle(client, cell)
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        assert story(published) == ["execute_input", "error", "idle"]
        it.choose = lambda _: FIRST
        assert text(run(client, "print('next')")[1]) == "next\n"


def test_clients_that_vanish_or_rest_lose_their_connections_only(tmp_path: Path) -> None:
    clock = VirtualClock(1e9)
    with rig(tmp_path, replicas=1, clock=clock) as it:
        client = it.client()
        run(client, "x = 1")
        sockets = it.router._kernels[KERNEL].sockets
        assert sockets.connections == 1
        # jupyter_server's probes have no identity of their own and are gone after the answer.
        for _ in range(5):
            probe = client.connect_shell()
            client.session.send(probe, "kernel_info_request")
            assert probe.poll(HANG_S * 1000)
            probe.close(linger=0)
        assert sockets.connections == 6
        router = it.router._kernels[KERNEL].router
        wait_until(lambda: not router.busy_connections())
        clock.advance(10)
        beat(client)
        wait_until(lambda: sockets.connections == 1)
        # A long cell keeps its connections however long it takes.
        cell = client.execute("print('there', flush=True); input()")
        client.get_stdin_msg(timeout=HANG_S)
        clock.advance(3600)
        beat(client)
        beat(client)
        client.input("")
        assert until_idle(client, cell)[0]["content"]["status"] == "ok"
        clock.advance(61)
        beat(client)
        wait_until(lambda: sockets.connections == 0)
        assert text(run(client, "print(x)")[1]) == "1\n"


def beat(client: BlockingKernelClient) -> None:
    """One heartbeat: the router looks for idle connections at the end of each turn."""
    sock = client.connect_hb()
    sock.send(b"beat")
    assert sock.poll(HANG_S * 1000)
    sock.close(linger=0)


def test_a_relaunched_replica_is_heard_at_its_new_address(tmp_path: Path) -> None:
    with rig(tmp_path, replicas=1) as it:
        client = it.client()
        run(client, "x = 1")
        it.kill_replica(FIRST)
        question = client.kernel_info()
        it.attempt += 1
        it.add_replica(1)
        assert until_idle(client, question)[0]["content"]["status"] == "ok"
        assert text(run(client, "print('x' in dir())")[1]) == "False\n"


def test_closing_gives_every_descriptor_and_port_back(tmp_path: Path) -> None:
    with rig(tmp_path, replicas=1) as it:
        client = it.client()
        run(client, "1")
        before = descriptors()
        infos = [
            it.router.open_kernel(KernelId(f"{name}-kernel"), session_key=KEY) for name in range(10)
        ]
        assert descriptors() >= before + 50
        for name in range(10):
            it.router.close_kernel(KernelId(f"{name}-kernel"))
        wait_until(lambda: descriptors() <= before)
        context = zmq.Context()
        with contextlib.closing(context.socket(zmq.ROUTER)) as free:
            wait_until(lambda: can_bind(free, int(infos[0]["shell_port"])))
        context.term()


def can_bind(sock: zmq.Socket[bytes], port: int) -> bool:
    try:
        sock.bind(f"tcp://127.0.0.1:{port}")
    except zmq.ZMQError:
        return False
    return True


def test_stopping_leaves_no_thread_and_no_descriptor(tmp_path: Path) -> None:
    before, threads = descriptors(), threading.active_count()
    it = Rig(tmp_path)
    it.add_replica(1)
    client = it.client()
    run(client, "1")
    it.close()
    wait_until(lambda: descriptors() <= before and threading.active_count() <= threads)
    it.router.stop()
    it.router.set_executor(KERNEL, FIRST)
    with pytest.raises(Unavailable, match="not running"):
        it.router.open_kernel(KERNEL, session_key=KEY)


def test_wrong_wishes_are_refused_with_a_sentence(tmp_path: Path) -> None:
    router = RouterThread(clock=SystemClock(), on_event=lambda _: None)
    router.start()
    try:
        router.open_kernel(KernelId("another"), session_key=KEY)
        before = descriptors()
        with pytest.raises(Unavailable, match=r"no port can be bound on 203\.0\.113\.7"):
            router.open_kernel(KERNEL, session_key=KEY, ip="203.0.113.7")
        with pytest.raises(InvalidRequest, match="'carrier-pigeon' is unknown"):
            router.open_kernel(KERNEL, session_key=KEY, transport="carrier-pigeon")
        with pytest.raises(InvalidRequest, match="'hmac-crc' is unknown"):
            router.open_kernel(KERNEL, session_key=KEY, signature_scheme="hmac-crc")
        with pytest.raises(InvalidRequest, match="needs a folder"):
            router.open_kernel(KERNEL, session_key=KEY, transport="ipc")
        wait_until(lambda: descriptors() <= before)
        info = router.open_kernel(
            KERNEL, session_key=KEY, transport="ipc", ipc_folder=str(tmp_path)
        )
        assert len(list(tmp_path.iterdir())) == 5
        assert str(info["ip"]).startswith(str(tmp_path))
        router.close_kernel(KERNEL)
        wait_until(lambda: not list(tmp_path.iterdir()))
    finally:
        router.stop()
