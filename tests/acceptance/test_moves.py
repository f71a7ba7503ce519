"""What a client has open when the executor changes or dies goes on, or ends clearly."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernel_under_test import kernel_view, wait_until
from two_kernels import Side, side

from notebookos_ext.handlers.models import KernelView, ReplicaView


@pytest.fixture(scope="module")
def rotating() -> Iterator[Side]:
    """One kernel for all tests here: no two cells in a row on one replica, if it can be."""
    with side("notebookos", NOTEBOOKOS_EXECUTOR="rotate") as kernel:
        yield kernel


@pytest.fixture
def kernel(rotating: Side) -> Side:
    """The same with all its replicas."""

    def whole() -> bool:
        return all(r.state == "idle" and r.pid for r in view(rotating).replicas)

    try:
        wait_until(whole, "all replicas again")
    except AssertionError as error:
        raise AssertionError(f"{error}: {view(rotating)}") from None
    rotating.inbox.clear()
    return rotating


def view(kernel: Side) -> KernelView:
    return kernel_view(kernel.manager)


def executor(kernel: Side) -> ReplicaView:
    return next(replica for replica in view(kernel).replicas if replica.executor)


def kill_executor(kernel: Side) -> int:
    pid = executor(kernel).pid
    assert pid
    os.kill(pid, signal.SIGKILL)
    return pid


def where(kernel: Side) -> str:
    """Run a cell; the process that ran it."""
    return kernel.run("import os; print(os.getpid())").text.strip()


def test_a_prompt_ends_with_its_executor(kernel: Side) -> None:
    """For the client that was asked and for the one that looks on; the answer goes nowhere."""
    second = kernel.second_client()
    try:
        cell = kernel.execute("print('before'); name = input('name: ')")
        kernel.until(lambda _, m: m["msg_type"] == "input_request", "the prompt")
        lost = kill_executor(kernel)
        heard = kernel.hear(cell)
        assert heard.reply["ename"] == "ExecutorLost"
        assert "SIGKILL" in heard.reply["evalue"]
        assert heard.kinds[-2:] == ["error", "idle"]
        seen = second.hear(cell, reply=False)
        assert seen.kinds[-2:] == ["error", "idle"]
        # The reader types on: nothing takes it for the answer of a later prompt.
        kernel.client.input("too late")
        assert kernel.run("print(input('again: '))", answers=("in time",)).text == "in time\n"
        assert where(second) != str(lost)  # type: ignore[arg-type]
    finally:
        second.close()


def test_a_subshell_goes_on_where_the_executor_is(kernel: Side) -> None:
    """Its client knows it by an id, and uses it on each replica in turn, and after a death."""
    reply = kernel.request("create_subshell_request", {}, on="control").reply
    there = {"subshell_id": reply["subshell_id"]}
    kernel.run("import os; seen = []")
    for number in range(4):
        main = where(kernel)
        heard = kernel.run(f"seen.append({number}); print(os.getpid())", header=there)
        assert heard.text.strip() == main
    lost = kill_executor(kernel)
    wait_until(lambda: executor(kernel).pid not in (None, lost), "another replica answers")
    heard = kernel.run("print(seen)", header=there)
    assert heard.reply["status"] == "ok"
    assert kernel.run("print(seen)").text == "[0, 1, 2, 3]\n"
    for status in ("ok", "error"):
        assert (
            kernel.request("delete_subshell_request", there, on="control").reply["status"] == status
        )
    assert kernel.run("1", header=there).reply["ename"] == "UnknownSubshellError"


def test_cells_run_beside_a_busy_subshell(kernel: Side, tmp_path: Path) -> None:
    """While it works the kernel is held; what it did is everywhere afterwards."""
    reply = kernel.request("create_subshell_request", {}, on="control").reply
    there = {"subshell_id": reply["subshell_id"]}
    first = where(kernel)
    work = f"while not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.01)"
    code = f"import time\nprint('on', flush=True)\n{work}\nmade_beside = [1]"
    beside = kernel.execute(code, header=there)
    kernel.published(beside, "stream", "on")
    assert {where(kernel) for _ in range(3)} == {first}
    assert [held.name for held in view(kernel).held] == ["(subshell)"]
    (tmp_path / "go").touch()
    assert kernel.hear(beside).reply["status"] == "ok"
    wait_until(lambda: not view(kernel).held, "nothing holds the kernel")
    others = {kernel.run("made_beside.append(2); print(os.getpid())").text for _ in range(3)}
    assert len(others) == 3
    assert kernel.run("print(made_beside)").text == "[1, 2, 2, 2]\n"


def test_a_lost_subshell_request_ends_with_an_error(kernel: Side) -> None:
    reply = kernel.request("create_subshell_request", {}, on="control").reply
    where(kernel)
    code = "import time; print('on', flush=True); time.sleep(600)"
    beside = kernel.execute(code, header={"subshell_id": reply["subshell_id"]})
    kernel.published(beside, "stream", "on")
    kill_executor(kernel)
    heard = kernel.hear(beside)
    assert heard.reply["ename"] == "ReplicaLost"
    assert heard.idle


def test_a_comm_of_a_lost_executor_is_gone_and_nothing_hangs(kernel: Side) -> None:
    kernel.run(
        "def opened(comm, message): comm.send({})\n"
        "get_ipython().kernel.comm_manager.register_target('t', opened)"
    )
    opened = kernel.ask("comm_open", {"comm_id": "w", "target_name": "t", "data": {}})
    assert "comm_msg" in kernel.hear(opened, reply=False).kinds
    home = executor(kernel).id
    assert where(kernel)
    assert executor(kernel).id == home
    assert "w" in kernel.request("comm_info_request", {}).reply["comms"]
    kill_executor(kernel)
    told = kernel.ask("comm_msg", {"comm_id": "w", "data": {"late": True}})
    assert kernel.hear(told, reply=False).idle
    assert kernel.request("comm_info_request", {}).reply["comms"] == {}
    assert kernel.run("print('on')").text == "on\n"


def test_a_display_of_a_lost_executor_is_updated_by_the_next(kernel: Side) -> None:
    shown = kernel.run("bar = display('0 %', display_id='bar')").published
    kill_executor(kernel)
    updated = kernel.run("bar.update('50 %')").published
    ids = [
        message["content"]["transient"]["display_id"]
        for message in (*shown, *updated)
        if message["msg_type"].endswith("display_data")
    ]
    assert ids == ["bar", "bar"]


def test_a_lost_debugger_can_be_attached_again(kernel: Side) -> None:
    def ask(command: str) -> dict[str, object]:
        content = {"type": "request", "seq": 1, "command": command, "arguments": {}}
        message = kernel.ask("debug_request", content, on="control")
        return dict(kernel.reply_to(message)["content"])

    where(kernel)
    for _ in range(2):
        assert ask("initialize")["success"]
        where(kernel)
        wait_until(lambda: [h.name for h in view(kernel).held] == ["(debugger)"], "held by it")
        kill_executor(kernel)
        assert kernel.run("print('on')").text == "on\n"
        body = ask("debugInfo")["body"]
        assert isinstance(body, dict)
        assert body["isStarted"] is False


def test_the_latest_error_is_not_an_older_one_of_another_replica(kernel: Side) -> None:
    kernel.run("1/0")
    for _ in range(2):
        kernel.run("raise KeyError('of another replica')")
    text = kernel.run("%tb").text
    assert "ZeroDivisionError" not in text


def test_a_cell_without_code_is_answered(kernel: Side) -> None:
    """Plain ipykernel says nothing to it, and its client waits for ever."""
    heard = kernel.hear(kernel.ask("execute_request", {"silent": False}))
    assert heard.reply["ename"] == "ProtocolError"
    assert kernel.run("print('on')").text == "on\n"


def test_an_awaiting_cell_is_interrupted_at_once(kernel: Side) -> None:
    """Plain ipykernel notices it with the next message only."""
    cell = kernel.execute("import asyncio\nprint('on', flush=True)\nawait asyncio.sleep(6000)")
    kernel.published(cell, "stream", "on")
    kernel.manager.interrupt_kernel()
    assert kernel.hear(cell).reply["status"] == "error"
    assert kernel.run("print('on')").text == "on\n"
