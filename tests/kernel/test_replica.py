"""A real replica process between a test agent and a real Jupyter client."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from replica_agent import TIMEOUT_S, Agent, Notebook, Replica, notebook, running_agent, text

from notebookos_ext.cluster.messages.replica import (
    AgentFailure,
    Applied,
    CommitAttempt,
    CommitState,
    Committed,
    Interrupt,
    Lead,
    LeadAnswer,
    Park,
    Parked,
    Stop,
)
from notebookos_ext.cluster.model import CellId, Outcome


@pytest.fixture(scope="module")
def agent() -> Iterator[Agent]:
    with running_agent() as agent:
        yield agent


@pytest.fixture
def replica(agent: Agent) -> Iterator[Replica]:
    replica = agent.launch()
    yield replica
    if replica in agent.replicas:
        replica.kill()
        replica.wait()


@pytest.fixture
def book(replica: Replica) -> Iterator[Notebook]:
    with notebook(replica) as book:
        yield book


def names(commit: CommitAttempt | CommitState) -> set[str]:
    return {name for component in commit.delta.components for name in component.names}


# ---- fencing ------------------------------------------------------------------------------------


def test_a_led_cell_runs_and_its_changes_are_committed(book: Notebook) -> None:
    cell = book.start("x = 41\nx + 1")
    reply = book.reply(cell)
    assert (reply["status"], reply["execution_count"]) == ("ok", 1)
    messages = book.output(cell)
    assert [m["msg_type"] for m in messages] == [
        "status",
        "execute_input",
        "execute_result",
        "status",
    ]
    commit = book.replica.commit()
    assert isinstance(commit, CommitAttempt)
    assert (commit.cell, commit.outcome) == (cell, Outcome.DONE)
    assert "x" in names(commit)


def test_a_cell_without_lead_is_refused_and_its_code_does_not_run(book: Notebook) -> None:
    cell = book.start("refused = 1", lead=False)
    reply = book.reply(cell)
    assert (reply["status"], reply["ename"]) == ("error", "Refused")
    kinds = [m["msg_type"] for m in book.output(cell)]
    assert kinds == ["status", "error", "status"]
    assert book.run("print('refused' in globals())")[1] == "False\n"


def test_a_lead_is_for_one_cell_once(book: Notebook) -> None:
    first = book.start("1")
    assert book.reply(first)["status"] == "ok"
    book.replica.commit()
    again = book.client.session.msg("execute_request", {"code": "2", "silent": True})
    again["header"]["msg_id"] = first
    again["msg_id"] = first
    book.client.shell_channel.send(again)
    assert book.reply(first)["ename"] == "Refused"


def test_another_executor_takes_an_unused_lead_away(book: Notebook) -> None:
    message = book.client.session.msg("execute_request", {"code": "1", "silent": True})
    book.replica.lead(message["header"]["msg_id"])
    book.replica.apply(None, 7)
    book.client.shell_channel.send(message)
    assert book.reply(message["header"]["msg_id"])["ename"] == "Refused"


def test_silent_requests_are_fenced_like_any_other(book: Notebook) -> None:
    cell = book.start("quiet = 1", silent=True, store_history=False)
    assert book.reply(cell)["status"] == "ok"
    assert "quiet" in names(book.replica.commit())


def test_a_malformed_request_still_closes_its_attempt(book: Notebook) -> None:
    message = book.client.session.msg("execute_request", {"no code": True})
    cell = message["header"]["msg_id"]
    attempt = book.replica.lead(cell)
    book.client.shell_channel.send(message)
    commit = book.replica.commit()
    assert isinstance(commit, CommitAttempt)
    assert (commit.cell, commit.attempt, commit.outcome) == (cell, attempt, Outcome.FAILED)


def test_an_error_in_the_cell_commits_as_failed_with_its_changes(book: Notebook) -> None:
    reply, _ = book.run("before = 1\n1 / 0\nafter = 2")
    assert (reply["status"], reply["ename"]) == ("error", "ZeroDivisionError")
    commit = book.replica.commit()
    assert isinstance(commit, CommitAttempt)
    assert commit.outcome is Outcome.FAILED
    assert "before" in names(commit)
    assert "after" not in names(commit)


# ---- commit before reply ------------------------------------------------------------------------


def test_the_reply_waits_for_the_commit(agent: Agent) -> None:
    replica = agent.launch(reply_budget_ms=TIMEOUT_S * 1000)
    replica.commit_answer = lambda _: None
    with notebook(replica) as book:
        cell = book.start("x = 1")
        replica.commit()
        assert not book.client.shell_channel.msg_ready()
        sequence = replica.last_commit_sequence
        replica.send(sequence, Committed(1))
        assert book.reply(cell)["status"] == "ok"


def test_beyond_its_budget_the_reply_goes_first(agent: Agent) -> None:
    replica = agent.launch(reply_budget_ms=1)
    replica.commit_answer = lambda _: None
    with notebook(replica) as book:
        cell = book.start("x = 1")
        assert book.reply(cell)["status"] == "ok"
        assert "x" in names(replica.commit())


def test_killed_right_after_the_reply_the_commit_is_in_the_agents_hands(agent: Agent) -> None:
    replica = agent.launch(reply_budget_ms=0)
    replica.pause_reading()
    with notebook(replica) as book:
        message = book.client.session.msg("execute_request", {"code": "kept = 'x' * 100_000"})
        replica.ask(Lead(CellId(message["header"]["msg_id"]), agent.next_attempt()))
        book.client.shell_channel.send(message)
        book.reply(message["header"]["msg_id"])
        replica.kill()
        assert os.WTERMSIG(replica.wait(close=False)) == signal.SIGKILL
    replica.resume_reading()
    assert "kept" in names(replica.commit())
    replica.connection.close()


def test_a_rejected_commit_names_the_variables_in_the_cells_output(book: Notebook) -> None:
    book.replica.commit_answer = lambda _: AgentFailure("Refused", "the attempt is closed")
    cell = book.start("lost_1 = 1; print('printed')")
    book.reply(cell)
    said = text(book.output(cell))
    assert said.startswith("printed\n")
    assert "lost_1" in said
    assert "the attempt is closed" in said
    book.replica.commit()
    # It is shipped again with the next cell.
    book.replica.commit_answer = book.replica.committed
    book.run("other = 2")
    assert {"lost_1", "other"} <= names(book.replica.commit())


# ---- standby ------------------------------------------------------------------------------------


def test_a_second_replica_runs_the_next_cell(agent: Agent, book: Notebook) -> None:
    book.run("import math\nvalues = [1, 2]\nalias = values\ndef f(x):\n    return x + len(values)")
    second = agent.launch(2)
    second.apply(book.replica.delta(), 1, book.replica.launch.replica)
    with notebook(second) as other:
        reply, said = other.run("alias.append(3)\nprint(f(1), math.pi, values is alias)")
        assert (said, reply["execution_count"]) == ("4 3.141592653589793 True\n", 2)
    second.commit()


def test_errors_in_functions_of_other_replicas_show_their_source(
    agent: Agent, book: Notebook
) -> None:
    book.run("def broken(x):\n    return x / 0")
    delta = book.replica.delta()
    here, _ = book.run("broken(1)")
    second = agent.launch(2)
    second.apply(delta, 1)
    with notebook(second) as other:
        there, _ = other.run("broken(1)")
    assert "return x / 0" in _plain("".join(there["traceback"]))
    assert there["traceback"] == here["traceback"]


def test_a_variable_that_cannot_be_loaded_is_named_in_the_next_cell(
    agent: Agent, book: Notebook, tmp_path: Path
) -> None:
    (tmp_path / "only_here.py").write_text("class Thing:\n    pass\n")
    book.run(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom only_here import Thing")
    book.replica.commit()
    book.run("thing, number = Thing(), 5")
    delta = book.replica.delta()
    second = agent.launch(2)
    second.apply(delta, 1)
    with notebook(second) as other:
        _, said = other.run("print(number)")
        assert "thing could not be loaded on this replica" in said
        assert said.endswith("5\n")
        assert other.run("print(number)")[1] == "5\n"


def test_a_delta_whose_chunks_are_away_is_refused_until_they_are_there(
    agent: Agent, book: Notebook
) -> None:
    book.run("big = bytes(1_000_000)")
    delta = book.replica.delta()
    assert delta.chunk_refs()
    kept = {ref.digest: agent.chunks.pop(ref.digest) for ref in delta.chunk_refs()}
    second = agent.launch(2)
    second.ask_apply(delta, 1)
    answer = second.prepare()
    assert not answer.accepted
    assert "entry 1 cannot be loaded here: there is no chunk" in answer.reason
    agent.chunks |= kept
    second.ask_prepare()
    assert second.expect(Applied).index == 1
    assert second.expect(LeadAnswer).accepted
    with notebook(second) as other:
        assert other.run("print(len(big))")[1] == "1000000\n"


def test_own_entries_are_only_acknowledged(book: Notebook) -> None:
    book.run("x = [1]\nsame = id(x)")
    book.replica.acknowledge_own(5)
    assert book.run("print(id(x) == same)")[1] == "True\n"


# ---- interrupts, input, end ---------------------------------------------------------------------


def test_an_interrupt_ends_the_users_code_and_the_attempt(book: Notebook) -> None:
    cell = book.start("import time\nprint('started', flush=True)\ntime.sleep(1000)")
    while "started" not in text([book.client.get_iopub_msg(timeout=TIMEOUT_S)]):
        pass
    os.kill(book.replica.pid, signal.SIGINT)
    assert book.reply(cell)["ename"] == "KeyboardInterrupt"
    commit = book.replica.commit()
    assert isinstance(commit, CommitAttempt)
    assert commit.outcome is Outcome.FAILED
    assert book.run("print('alive')")[1] == "alive\n"


def test_an_interrupt_by_message_works_too(book: Notebook) -> None:
    cell = book.start("import time\nprint('started', flush=True)\ntime.sleep(1000)")
    while "started" not in text([book.client.get_iopub_msg(timeout=TIMEOUT_S)]):
        pass
    request = book.client.session.msg("interrupt_request", {})
    book.client.control_channel.send(request)
    assert book.reply(cell)["ename"] == "KeyboardInterrupt"
    assert book.client.get_control_msg(timeout=TIMEOUT_S)["content"]["status"] == "ok"


def test_an_async_cell_can_be_interrupted(book: Notebook) -> None:
    cell = book.start("import asyncio\nprint('started', flush=True)\nawait asyncio.sleep(1000)")
    while "started" not in text([book.client.get_iopub_msg(timeout=TIMEOUT_S)]):
        pass
    os.kill(book.replica.pid, signal.SIGINT)
    assert book.reply(cell)["status"] == "error"
    assert isinstance(book.replica.commit(), CommitAttempt)


def test_an_interrupt_during_the_commit_reaches_nobody(agent: Agent) -> None:
    replica = agent.launch(reply_budget_ms=TIMEOUT_S * 1000)
    replica.commit_answer = lambda _: None
    with notebook(replica) as book:
        cell = book.start("x = 1")
        replica.commit()
        os.kill(replica.pid, signal.SIGINT)
        replica.send(replica.last_commit_sequence, Committed(1))
        assert book.reply(cell)["status"] == "ok"
        replica.commit_answer = replica.committed
        assert book.run("print(x)")[1] == "1\n"


def test_an_interrupt_of_an_idle_replica_is_ignored(book: Notebook) -> None:
    os.kill(book.replica.pid, signal.SIGINT)
    assert book.run("print('alive')")[1] == "alive\n"


def test_an_interrupt_of_a_cell_on_its_way_ends_it_before_it_begins(book: Notebook) -> None:
    message = book.message("began = True")
    cell = book.lead(message)
    book.replica.ask(Interrupt(CellId(cell)))
    book.client.shell_channel.send(message)
    assert book.reply(cell)["ename"] == "KeyboardInterrupt"
    assert [m["content"]["ename"] for m in book.output(cell) if m["msg_type"] == "error"] == [
        "KeyboardInterrupt"
    ]
    commit = book.replica.commit()
    assert isinstance(commit, CommitAttempt)
    assert commit.outcome is Outcome.FAILED
    assert "began" not in names(commit)
    assert book.run("print('began' in globals())")[1] == "False\n"


@pytest.mark.parametrize("where", ["_publish_execute_input", "init_metadata"])
def test_a_signal_while_a_cell_is_taken_up_is_not_lost(book: Notebook, where: str) -> None:
    # ipykernel's own work between a cell's message and its code, made to meet a signal each time.
    book.run(
        "import os, signal\n"
        "from ipykernel.kernelapp import IPKernelApp\n"
        "_kernel = IPKernelApp.instance().kernel\n"
        f"_inner = _kernel.{where}\n"
        "def _struck(*args):\n"
        f"    _kernel.{where} = _inner\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return _inner(*args)\n"
        f"_kernel.{where} = _struck"
    )
    reply, _ = book.run("began = True")
    assert reply["ename"] == "KeyboardInterrupt"
    assert book.run("print('began' in globals())")[1] == "False\n"


def test_input_asks_the_client(book: Notebook) -> None:
    cell = book.start("name = input('Who? ')\nprint('Hello', name)", allow_stdin=True)
    request = book.client.get_stdin_msg(timeout=TIMEOUT_S)
    assert request["content"] == {"prompt": "Who? ", "password": False}
    book.client.input("Ada")
    assert book.reply(cell)["status"] == "ok"
    assert text(book.output(cell)) == "Hello Ada\n"
    assert "name" in names(book.replica.commit())


def test_stop_ends_it_politely(replica: Replica, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with notebook(replica) as book:
        code = f"import atexit, pathlib\natexit.register(pathlib.Path({str(mark)!r}).touch)"
        book.run(code)
        replica.ask(Stop())
        assert os.waitstatus_to_exitcode(replica.wait()) == 0
    assert mark.exists()
    assert not Path(replica.endpoints["shell"].removeprefix("ipc://")).parent.exists()


def test_without_its_agent_it_ends_at_once(replica: Replica) -> None:
    process = psutil.Process(replica.pid)
    replica.hang_up()
    assert os.waitstatus_to_exitcode(replica.wait()) == 1
    assert not process.is_running()


# ---- changes outside cells ----------------------------------------------------------------------


def test_a_comm_message_commits_what_its_callback_changed(book: Notebook) -> None:
    book.run(
        "from ipykernel.comm import Comm\n"
        "seen = []\n"
        "comm = Comm('target')\n"
        "comm.on_msg(lambda message: seen.append(message['content']['data']))\n"
    )
    attempt = book.replica.commit()
    assert isinstance(attempt, CommitAttempt)
    comm = next(iter(book.comms()))
    message = book.client.session.msg("comm_msg", {"comm_id": comm, "data": 5})
    book.client.shell_channel.send(message)
    state = book.replica.commit()
    assert isinstance(state, CommitState)
    assert state.after_attempt == attempt.attempt
    assert "seen" in names(state)


def test_the_idle_sweep_commits_what_a_thread_changed(book: Notebook) -> None:
    book.run(
        "import threading\n"
        "go = threading.Event()\n"
        "log = []\n"
        "def work():\n"
        "    go.wait()\n"
        "    log.append('done')\n"
        "threading.Thread(target=work).start()\n"
        "threading.Timer(0.2, go.set).start()\n"
    )
    book.replica.commit()
    while "log" not in names(state := book.replica.commit()):
        pass
    assert isinstance(state, CommitState)


def test_a_standby_commits_nothing_outside_cells(book: Notebook) -> None:
    book.run(
        "from ipykernel.comm import Comm\n"
        "seen = []\n"
        "comm = Comm('target')\n"
        "comm.on_msg(lambda message: seen.append(1))\n"
    )
    book.replica.commit()
    book.replica.apply(None, 9)
    comm = next(iter(book.comms()))
    message = book.client.session.msg("comm_msg", {"comm_id": comm, "data": 5})
    book.client.shell_channel.send(message)
    assert text(book.output(message["header"]["msg_id"])) == ""
    assert book.replica.commits.empty()


def test_a_subshell_runs_beside_the_cell_without_a_lead(book: Notebook) -> None:
    client = book.client
    client.control_channel.send(client.session.msg("create_subshell_request", {}))
    subshell = client.get_control_msg(timeout=TIMEOUT_S)["content"]["subshell_id"]
    book.run("import time\nflag = None")
    cell = book.start("while flag is None:\n    time.sleep(0.01)")
    message = client.session.msg("execute_request", {"code": "flag = 1", "silent": False})
    message["header"]["subshell_id"] = subshell
    client.shell_channel.send(message)
    replies = {m["parent_header"]["msg_id"]: m["content"]["status"] for m in book.replies(2)}
    assert replies == {cell: "ok", message["header"]["msg_id"]: "ok"}


def test_the_debugger_works(book: Notebook) -> None:
    client = book.client
    request = client.session.msg(
        "debug_request",
        {"type": "request", "seq": 1, "command": "debugInfo", "arguments": {}},
    )
    client.control_channel.send(request)
    body = client.get_control_msg(timeout=TIMEOUT_S)["content"]["body"]
    assert not body["isStarted"]
    second = book.replica.agent.launch(2)
    with notebook(second) as other:
        other.client.control_channel.send(request)
        theirs = other.client.get_control_msg(timeout=TIMEOUT_S)["content"]["body"]
    # Breakpoints keep their file names when the executor changes.
    assert theirs["tmpFilePrefix"] == body["tmpFilePrefix"]


# ---- devices ------------------------------------------------------------------------------------


def test_simulated_gpus_are_told_to_the_cell(book: Notebook) -> None:
    message = book.client.session.msg("execute_request", {"code": "%%gpu 1\n%gpu"})
    answer = book.replica.prepare(("SIM-host-1-0",))
    assert answer.accepted
    book.replica.lead(message["header"]["msg_id"])
    book.client.shell_channel.send(message)
    said = text(book.output(message["header"]["msg_id"]))
    assert f"replica {book.replica.launch.replica} with the simulated GPUs SIM-host-1-0" in said
    book.replica.ask(Park())
    assert book.replica.expect(Parked) == Parked(0)
    assert "without GPUs" in book.run("%gpu")[1]


def test_gpu_on_the_first_line_leaves_line_numbers_alone(book: Notebook) -> None:
    reply, _ = book.run("%%gpu 1\nx = 1\nx / 0")
    assert "----> 3 x / 0" in _plain("".join(reply["traceback"]))


def _plain(coloured: str) -> str:
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", coloured)
