"""Kill the executor at the worst moments: what replied cells did is never lost."""

from __future__ import annotations

from jupyter_client.blocking.client import BlockingKernelClient
from kernel_under_test import (
    HANG_S,
    KernelUnderTest,
    running_kernel,
    wait_until,
)


def test_killed_immediately_after_a_reply() -> None:
    """The process gets SIGKILL as soon as the reply is in the client's hands, ten times over."""
    with running_kernel() as kernel:
        kernel.run("done = []")
        for number in range(10):
            executor = kernel.executor()
            message_id = kernel.client.execute(f"done.append({number}); x = {number}")
            while (
                kernel.client.get_shell_msg(timeout=HANG_S)["parent_header"]["msg_id"] != message_id
            ):
                pass
            victim = kernel.executor()
            kernel.kill(victim)
            assert kernel.run("print(done, x)").strip() == f"{list(range(number + 1))} {number}"
            assert executor.pid
        kernel.wait_until_whole()


def test_killed_between_cells() -> None:
    """The next cell runs elsewhere with everything, and the replica count is restored."""
    with running_kernel() as kernel:
        kernel.run(
            "import math\nclass Thing:\n    value = 1\nthing = Thing(); both = [thing, thing]"
        )
        kernel.wait_until_whole()
        victim = kernel.executor()
        kernel.kill(victim)
        assert kernel.run("print(both[0] is thing, type(thing) is Thing, math.pi > 3)") == (
            "True True True\n"
        )
        assert kernel.executor().id != victim.id
        kernel.wait_until_whole(without=victim.pid)
        assert len(kernel.view().replicas) == 3


def test_killed_during_a_cell() -> None:
    """The cell ends with one clear error and an idle kernel; nothing before it is lost."""
    with running_kernel() as kernel:
        kernel.run("before = 'kept'; import os, time")
        victim = kernel.executor()
        message_id = kernel.client.execute(
            "before = 'changed'\nprint('started', flush=True)\ntime.sleep(600)"
        )
        while True:
            message = kernel.client.get_iopub_msg(timeout=HANG_S)
            if message["msg_type"] == "stream" and "started" in message["content"]["text"]:
                break
        kernel.kill(victim)
        reply = kernel.client.get_shell_msg(timeout=HANG_S)
        assert reply["parent_header"]["msg_id"] == message_id
        assert reply["content"]["status"] == "error"
        assert reply["content"]["ename"] == "ExecutorLost"
        assert "SIGKILL" in reply["content"]["evalue"]
        seen = []
        while True:
            message = kernel.client.get_iopub_msg(timeout=HANG_S)
            seen.append(message["msg_type"])
            if message["msg_type"] == "status":
                assert message["content"]["execution_state"] == "idle"
                break
        assert seen == ["error", "status"]
        assert kernel.run("print(before)") == "kept\n"
        kernel.wait_until_whole(without=victim.pid)


def test_a_cell_that_ends_its_own_process() -> None:
    """`os._exit` is a lost executor like any other, and Run All stops there."""
    with running_kernel() as kernel:
        kernel.run("kept = 1")
        first = kernel.client.execute("import os; os._exit(3)")
        second = kernel.client.execute("kept = 2")
        replies = {}
        while len(replies) < 2:
            message = kernel.client.get_shell_msg(timeout=HANG_S)
            replies[message["parent_header"]["msg_id"]] = message["content"]
        assert replies[first]["ename"] == "ExecutorLost"
        assert "3" in str(replies[first]["evalue"])
        assert replies[second]["status"] == "aborted"
        assert kernel.run("print(kept)") == "1\n"


def test_every_replica_is_killed_at_once() -> None:
    """All three processes go; the agents rebuild them from the log."""
    with running_kernel() as kernel:
        kernel.run("rebuilt = {'from': 'the log'}; same = rebuilt")
        kernel.wait_until_whole()
        pids = [replica.pid for replica in kernel.view().replicas]
        for replica in kernel.view().replicas:
            kernel.kill(replica)
        assert kernel.run("print(rebuilt, same is rebuilt)") == "{'from': 'the log'} True\n"
        wait_until(
            lambda: all(r.state == "idle" and r.pid not in pids for r in kernel.view().replicas),
            "three new replicas",
        )


def test_interrupt_and_restart() -> None:
    """Interrupt ends the cell only; a restart empties the namespace and keeps the client."""
    with running_kernel() as kernel:
        kernel.run("import time; kept = 'yes'")
        message_id = kernel.client.execute("print('on', flush=True); time.sleep(600)")
        _wait_for_text(kernel, "on")
        kernel.manager.interrupt_kernel()
        reply = kernel.client.get_shell_msg(timeout=HANG_S)
        assert reply["parent_header"]["msg_id"] == message_id
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        assert kernel.run("print(kept)") == "yes\n"
        kernel.manager.restart_kernel()
        kernel.client.wait_for_ready(timeout=HANG_S)
        assert kernel.run("print('kept' in globals())") == "False\n"
        # A kernel's first epoch is 0: the restart began the next.
        assert kernel.view().epoch == 1


def _wait_for_text(kernel: KernelUnderTest, text: str) -> None:
    while True:
        message = kernel.client.get_iopub_msg(timeout=HANG_S)
        if message["msg_type"] == "stream" and text in message["content"]["text"]:
            return


def test_two_clients_share_one_kernel() -> None:
    """Both see every output; each gets its own reply."""
    with running_kernel() as kernel:
        # As a second browser or a console has it: from the connection file, with its own identity.
        second = BlockingKernelClient(connection_file=kernel.manager.connection_file)
        second.load_connection_file()
        second.start_channels()
        try:
            second.wait_for_ready(timeout=HANG_S)
            other = KernelUnderTest(kernel.manager, second)
            first_id = kernel.client.execute("v0 = 0")
            second_id = other.client.execute("v1 = 1")
            for client, message_id in ((kernel.client, first_id), (other.client, second_id)):
                assert _reply(client, message_id)["status"] == "ok"
            assert other.run("print(v0 + v1)") == "1\n"
        finally:
            second.stop_channels()


def _reply(client: BlockingKernelClient, message_id: str) -> dict[str, object]:
    """The reply to one request, past answers to the `kernel_info` requests of getting ready."""
    while True:
        message = client.get_shell_msg(timeout=HANG_S)
        if message["parent_header"]["msg_id"] == message_id:
            return dict(message["content"])
