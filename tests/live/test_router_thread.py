"""The router against real ipykernels: one ordinary kernel, wherever its cells run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from jupyter_client.blocking.client import BlockingKernelClient
from router_rig import HANG_S, KERNEL, KEY, Message, Rig, rig, run, story, text, until_idle

from notebookos_ext.cluster.model import CellId, ReplicaId, replica_id
from notebookos_ext.cluster.router import (
    CellArrived,
    CellReplied,
    InputWaiting,
    InterruptAsked,
    ShutdownAsked,
)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with rig(tmp_path_factory.mktemp("r")) as it:
        client = it.client()
        for number in (1, 2, 3):
            on(it, number)
            run(client, "pass")
        yield it


@pytest.fixture
def three(shared: Rig) -> Rig:
    """Three replicas that no test kills; each cell runs on the next one."""
    numbers = itertools.cycle((1, 2, 3))
    shared.choose = lambda _: replica_id(KERNEL, next(numbers))
    shared.events.clear()
    return shared


def on(it: Rig, number: int) -> ReplicaId:
    """Let every cell run on this replica."""
    replica = replica_id(KERNEL, number)
    it.choose = lambda _: replica
    return replica


def control(client: BlockingKernelClient, kind: str, content: Message | None = None) -> Message:
    """Ask on the control channel and wait for the reply."""
    message = client.session.msg(kind, content or {})
    client.control_channel.send(message)
    while True:
        reply: Message = client.get_control_msg(timeout=HANG_S)
        if reply["parent_header"]["msg_id"] == message["header"]["msg_id"]:
            return reply


CELLS = [
    "print('one'); print('two')",
    "import sys; print('to stderr', file=sys.stderr)",
    "1 + 1",
    "",
    "# nothing",
    "raise ValueError('on purpose')",
    "not python",
    "from IPython.display import display; display('a', display_id='d').update('b')",
    "from IPython.display import clear_output; clear_output()",
    "%env NOTEBOOKOS_TEST=1",
]


@pytest.mark.parametrize("code", CELLS)
def test_a_cell_looks_as_on_plain_ipykernel(three: Rig, code: str) -> None:
    plain = BlockingKernelClient()
    first = three.replicas[replica_id(KERNEL, 1)]
    plain.load_connection_file(str(first.file))
    plain.start_channels()
    try:
        plain.wait_for_ready(timeout=HANG_S)
        expected_reply, expected = run(plain, code)
    finally:
        plain.stop_channels()
    on(three, 2)
    reply, published = run(three.client(), code)
    assert story(published) == story(expected)
    assert reply["content"]["status"] == expected_reply["content"]["status"]
    assert reply["content"].keys() == expected_reply["content"].keys()
    assert reply["metadata"].keys() == expected_reply["metadata"].keys()


def test_cells_run_where_the_controller_says_and_questions_follow(three: Rig) -> None:
    client = three.client()
    pids = []
    for number in (1, 2, 3):
        _, published = run(client, f"import os; only_here_{number} = 1; print(os.getpid())")
        pids.append(int(text(published)))
        reply, _ = until_idle(client, client.complete("only_here_", 10))
        assert reply["content"]["matches"] == [f"only_here_{number}"]
    assert pids == [three.replicas[replica_id(KERNEL, n)].popen.pid for n in (1, 2, 3)]


def test_run_all_with_an_error_in_the_middle(three: Rig) -> None:
    client = three.client()
    codes = ["print(1)", "1/0", "print(2)", "print(3)"]
    ids = [client.execute(code) for code in codes]
    replies = [until_idle(client, i)[0]["content"]["status"] for i in ids[:2]]
    aborted = [until_idle(client, i) for i in ids[2:]]
    replies += [reply["content"]["status"] for reply, _ in aborted]
    assert replies == ["ok", "error", "aborted", "aborted"]
    assert [story(published) for _, published in aborted] == [["busy", "idle"]] * 2
    assert [e.code for e in three.events if isinstance(e, CellArrived)] == codes[:2]
    assert text(run(client, "print('on')")[1]) == "on\n"


def test_allow_errors_runs_all(three: Rig) -> None:
    client = three.client()
    ids = [client.execute(code, stop_on_error=False) for code in ("1/0", "1/0", "1")]
    replies = [until_idle(client, i)[0]["content"]["status"] for i in ids]
    assert replies == ["error", "error", "ok"]


def test_two_clients_get_their_own_replies_and_all_output(three: Rig) -> None:
    first, second = three.client(), three.client()
    mine = first.execute("print('mine')")
    yours = second.execute("print('yours')")
    for client, own, other in ((first, mine, yours), (second, yours, mine)):
        published: list[Message] = []
        while sum(m["content"].get("execution_state") == "idle" for m in published) < 2:
            message = client.get_iopub_msg(timeout=HANG_S)
            if message["parent_header"].get("msg_id") in (mine, yours):
                published.append(message)
        assert sorted(text(published).split()) == ["mine", "yours"]
        assert client.get_shell_msg(timeout=HANG_S)["parent_header"]["msg_id"] == own
        assert own != other


@pytest.mark.parametrize("number", [1, 2, 3])
def test_input_goes_to_the_client_that_ran_the_cell(three: Rig, number: int) -> None:
    on(three, number)
    # The client's stdin has never been connected to this replica: the cell must not outrun it.
    client, other = three.client(), three.client()
    cell = client.execute("answer = input('name? '); print(answer)")
    prompt = client.get_stdin_msg(timeout=HANG_S)
    assert prompt["content"]["prompt"] == "name? "
    assert not other.stdin_channel.msg_ready()
    three.wait_event(lambda e: e == InputWaiting(KERNEL, CellId(cell), waiting=True))
    client.input("Ada")
    _, published = until_idle(client, cell)
    assert text(published) == "Ada\n"
    three.wait_event(lambda e: e == InputWaiting(KERNEL, CellId(cell), waiting=False))


def test_interrupt_by_message_reaches_the_controller_and_is_answered(three: Rig) -> None:
    replica = on(three, 2)
    client = three.client()
    cell = client.execute("print('there', flush=True)\nwhile True: pass")
    while client.get_iopub_msg(timeout=HANG_S)["msg_type"] != "stream":
        pass
    assert control(client, "interrupt_request")["content"] == {"status": "ok"}
    three.wait_event(lambda e: e == InterruptAsked(KERNEL))
    three.replicas[replica].interrupt()
    reply, published = until_idle(client, cell)
    assert reply["content"]["ename"] == "KeyboardInterrupt"
    assert story(published)[-1] == "idle"


def test_subshells_answer_while_the_main_shell_is_busy(three: Rig) -> None:
    on(three, 3)
    client = three.client()
    run(client, "import threading; go = threading.Event()")
    subshell = control(client, "create_subshell_request")["content"]["subshell_id"]
    assert subshell in control(client, "list_subshell_request")["content"]["subshell_id"]
    waiting = client.execute("go.wait(); print('main')")
    message = client.session.msg("execute_request", {"code": "print('sub'); go.set()"})
    message["header"]["subshell_id"] = subshell
    client.shell_channel.send(message)
    # Were the subshell's cell behind the main one, neither would ever end.
    replies = [client.get_shell_msg(timeout=HANG_S) for _ in range(2)]
    assert {r["parent_header"]["msg_id"] for r in replies} == {message["msg_id"], waiting}
    assert len([e for e in three.events if isinstance(e, CellArrived)]) == 2
    assert control(client, "delete_subshell_request", {"subshell_id": subshell})["content"] == {
        "status": "ok"
    }


def test_the_debugger_answers_on_control(three: Rig) -> None:
    on(three, 1)
    client = three.client()
    run(client, "1")
    reply = control(
        client,
        "debug_request",
        {"type": "request", "seq": 1, "command": "debugInfo", "arguments": {}},
    )
    assert reply["content"]["success"] is True


def test_comm_messages_come_before_the_cell_behind_them(three: Rig) -> None:
    on(three, 1)
    client = three.client()
    run(
        client,
        "seen = []\n"
        "def opened(comm, message):\n"
        "    comm.on_msg(lambda m: seen.append(m['content']['data']['n']))\n"
        "get_ipython().kernel.comm_manager.register_target('t', opened)",
    )
    comm = {"comm_id": "c", "target_name": "t", "data": {}}
    client.shell_channel.send(client.session.msg("comm_open", comm))
    for number in range(3):
        data = {"comm_id": "c", "data": {"n": number}}
        client.shell_channel.send(client.session.msg("comm_msg", data))
    _, published = run(client, "print(seen)")
    assert text(published) == "[0, 1, 2]\n"


def test_comm_messages_beside_an_async_cell_do_not_block_the_next_one(three: Rig) -> None:
    # ipykernel sends no idle for them.
    on(three, 2)
    client = three.client()
    run(
        client,
        "import asyncio; came = asyncio.Event()\n"
        "def opened(comm, message):\n"
        "    came.set()\n"
        "get_ipython().kernel.comm_manager.register_target('u', opened)",
    )
    cell = client.execute("print('waits', flush=True); await came.wait()")
    while client.get_iopub_msg(timeout=HANG_S)["msg_type"] != "stream":
        pass
    comm = {"comm_id": "d", "target_name": "u", "data": {}}
    client.shell_channel.send(client.session.msg("comm_open", comm))
    assert until_idle(client, cell)[0]["content"]["status"] == "ok"
    assert text(run(client, "print('next')")[1]) == "next\n"


def test_shutdown_is_the_kernels_and_reaches_no_replica(three: Rig) -> None:
    client = three.client()
    reply = control(client, "shutdown_request", {"restart": False})
    assert reply["content"] == {"status": "ok", "restart": False}
    three.wait_event(lambda e: e == ShutdownAsked(KERNEL, restart=False))
    assert text(run(client, "print('alive')")[1]) == "alive\n"


def test_messages_without_the_key_are_dropped(three: Rig) -> None:
    stranger = BlockingKernelClient()
    stranger.load_connection_info({**three.info, "key": b"guessed"})
    stranger.start_channels()
    try:
        stranger.control_channel.send(stranger.session.msg("interrupt_request", {}))
        stranger.execute("print('let me in')")
        # Same sockets, right key: when this is answered the others have been looked at.
        stranger.session.key = KEY
        stranger.control_channel.send(stranger.session.msg("kernel_info_request", {}))
        stranger.kernel_info()
        stranger.get_control_msg(timeout=HANG_S)
        stranger.get_shell_msg(timeout=HANG_S)
    finally:
        stranger.stop_channels()
    assert not [e for e in three.events if isinstance(e, InterruptAsked | CellArrived)]


def test_the_heart_beats_without_any_replica(tmp_path: Path) -> None:
    with rig(tmp_path, replicas=0) as it, zmq.Context() as context:
        heart = context.socket(zmq.REQ)
        heart.connect(f"tcp://127.0.0.1:{it.info['hb_port']}")
        heart.send(b"beat")
        assert heart.poll(HANG_S * 1000)
        assert heart.recv() == b"beat"
        heart.close(linger=0)


def test_each_new_subscriber_is_welcomed(three: Rig) -> None:
    for _ in range(2):
        client = BlockingKernelClient()
        client.load_connection_info(dict(three.info))
        client.start_channels(hb=False)
        try:
            welcome = client.get_iopub_msg(timeout=HANG_S)
            assert welcome["msg_type"] == "iopub_welcome"
            assert welcome["content"] == {"subscription": ""}
            assert welcome["parent_header"] == {}
        finally:
            client.stop_channels()


def test_the_reply_is_reported_with_its_attempt(three: Rig) -> None:
    client = three.client()
    cell = client.execute("1/0")
    until_idle(client, cell)
    said = three.wait_event(lambda e: isinstance(e, CellReplied) and e.cell == cell)
    assert said == CellReplied(KERNEL, CellId(cell), three.attempt, "error")
