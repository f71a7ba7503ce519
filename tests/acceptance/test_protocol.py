"""Jupyter's messaging protocol, request by request: our kernel says what plain ipykernel says.

Both kernels live as long as the module; ours runs each cell on another replica than the one before
where nothing holds it. Its own notes to the user (they begin with `NotebookOS: `) are left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from two_kernels import Both, Message, Talker, side

CELLS = {
    "a print": "print('one'); print('two')",
    "both streams": "import sys; print('err', file=sys.stderr); print('out')",
    "a result": "{'a': 1}",
    "nothing": "",
    "blanks": "  \n ",
    "a comment": "# nothing",
    "an error": "def f():\n    1/0\nf()",
    "an error in a function of an earlier cell": "f()",
    "chained errors": "try:\n    1/0\nexcept Exception as e:\n    raise RuntimeError('r') from e",
    "an exception group": "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])",
    "a base exception": "class B(BaseException): pass\nraise B('x')",
    "an interrupt of its own": "raise KeyboardInterrupt",
    "an exit": "import sys; sys.exit(3)",
    "a syntax error": "x = = 1",
    "a bad repr": "class R:\n    def __repr__(self): raise ValueError('bad')\nR()",
    "displays": "from IPython.display import HTML; display(HTML('<b>x</b>'), 2, metadata={'a': 1})",
    "an update": "h = display('a', display_id='d'); h.update('b')",
    "clear_output": "from IPython.display import clear_output\nprint('x'); clear_output(wait=True)",
    "a bundle": "class M:\n    def _repr_mimebundle_(self, **_): return {'text/plain': 'm'}\nM()",
    "an image": "class P:\n    def _repr_png_(self): return b'\\x89PNG\\r\\n'\nP()",
    "JSON": "from IPython.display import JSON; JSON({'a': [1]})",
    "the latest results": "_, __, ___",
    "history names": "_i, _ii, In[-1], sorted(Out)[:3]",
    "the pager": "open?",
    "the next input": "get_ipython().set_next_input('more')",
    "await": "import asyncio\nawait asyncio.sleep(0.01)\nprint('awaited')\n5",
    "a shell command": "!echo hello; echo err >&2",
    "a cell magic": "%%bash\necho from bash",
    "a capture": "%%capture seen\nprint('q')\n5",
    "what was captured": "seen.show(); seen.stdout",
    "unknown magics": "%nosuch",
    "an environment variable": "%env NOTEBOOKOS_PROTOCOL=1",
    "a logger": "import logging; logging.getLogger('mine').warning('careful')",
    "a warning": "import warnings; warnings.warn('hm')",
    "a carriage return": "print('a\\rb', end='')",
    "many lines": "for i in range(3000): print(i)",
    "a big output": "print('x' * 3_000_000)",
    "a thread": "import threading\nt = threading.Thread(target=print); t.start(); t.join(); del t",
    "a hook": "def post(*a): print('post')\nget_ipython().events.register('post_run_cell', post)",
    "a cell under the hook": "print('cell')",
    "no hook": "get_ipython().events.unregister('post_run_cell', post)",
    "user names": "sorted(name for name in globals() if not name.startswith('_'))",
}  # fmt: skip


@pytest.fixture(scope="module")
def kernels() -> Iterator[Both]:
    """Plain ipykernel, and ours with an executor that moves, under one hash seed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONHASHSEED", "0")
        patch.setenv("NOTEBOOKOS_EXECUTOR", "rotate")
        with side("python3") as plain, side("notebookos") as ours:
            yield Both(plain, ours)


@pytest.fixture
def both(kernels: Both) -> Both:
    """The same two, at the same execution count."""
    kernels.align()
    return kernels


# ---- cells


def test_cells(kernels: Both) -> None:
    """One after the other, as a notebook: what a cell prints, shows, raises and replies."""
    for name, code in CELLS.items():

        def run(it: Talker, code: str = code) -> Any:
            return it.run(code)

        try:
            kernels.compare(run)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


def silent(it: Talker) -> Any:
    return [it.run("print('x'); 5", silent=True), it.run("1/0", silent=True), it.run("1")]


def no_history(it: Talker) -> Any:
    kept = [it.run("1", store_history=False), it.run("In[-1]"), it.run("3", store_history=False)]
    return [*kept, it.run("4")]


def user_expressions(it: Talker) -> Any:
    asked = {"x": "a + 1", "bad": "1/0", "syntax": "="}
    return [it.run("a = 5", user_expressions=asked), it.run("1/0", user_expressions=asked)]


def run_all(it: Talker) -> Any:
    ids = [it.execute(code) for code in ("print(1)", "1/0", "print(2)", "3")]
    return [it.hear(each) for each in ids]


def run_all_regardless(it: Talker) -> Any:
    codes = ("print(1)", "1/0", "print(2)", "3")
    ids = [it.execute(code, stop_on_error=False) for code in codes]
    return [it.hear(each) for each in ids]


def a_silent_error_stops_nothing(it: Talker) -> Any:
    ids = [it.execute("1/0", silent=True), it.execute("print('on')")]
    return [it.hear(each) for each in ids]


def updates_of_earlier_cells(it: Talker) -> Any:
    return [
        it.run("shown = display(1, display_id='moved')"),
        it.run("shown.update(2)"),
        it.run("from IPython.display import update_display\nupdate_display(3, display_id='moved')"),
    ]


def output_after_the_cell(it: Talker) -> Any:
    cell = it.execute(
        "import asyncio\n"
        "async def later():\n    await asyncio.sleep(0.3); print('late'); display('d')\n"
        "task = asyncio.ensure_future(later())"
    )
    heard = it.hear(cell)
    late = [it.published(cell, "stream", "late"), it.published(cell, "display_data")]
    it.run("await task\ndel task")
    return [heard, [message["content"] for message in late]]


# ---- input()


def answers(it: Talker) -> Any:
    return it.run("[input('name: '), input()]", answers=("Ada", "ü"))


def a_password(it: Talker) -> Any:
    return it.run("import getpass; getpass.getpass('word')", answers=("secret",))


def end_of_input(it: Talker) -> Any:
    return it.run("input()", answers=("\x04",))


def no_input(it: Talker) -> Any:
    return it.run("input()", allow_stdin=False)


def a_debugger_in_the_cell(it: Talker) -> Any:
    return [it.run("def f():\n    z = 1\n    1/0\nf()"), it.run("%pdb off")]


# ---- questions


def completion(it: Talker) -> Any:
    it.run("import os; abcdef = 1; keyed = {'key1': 1}")
    asked = ["os.pat", "abc", "keyed['k", "abcdef = 1\nabcd"]
    replies = [
        it.request("complete_request", {"code": c, "cursor_pos": len(c)}).reply for c in asked
    ]
    # Types are a guess of a library that looks for a limited time only.
    return [{**reply, "metadata": None} for reply in replies]


def inspection(it: Talker) -> Any:
    it.run("def documented():\n    'Says what it does.'\nabcdef = 1")
    return [
        it.request("inspect_request", {"code": code, "cursor_pos": len(code), "detail_level": d})
        for code in ("len", "documented", "nothing_here", "abcdef", "")
        for d in (0, 1)
    ]


def completeness(it: Talker) -> Any:
    codes = ("1", "def f():", "x = (", "1 +", "%%time\nx", "a = ", "")
    return [it.request("is_complete_request", {"code": code}) for code in codes]


def history(it: Talker) -> Any:
    last = it.run("'asked for'").reply["execution_count"]
    asked = {"hist_access_type": "range", "session": 0, "start": last - 4, "stop": last + 1}
    return [it.request("history_request", {**asked, "output": False, "raw": raw}) for raw in (0, 1)]


def who_it_is(it: Talker) -> Any:
    reply = it.request("kernel_info_request", {}).reply
    return {**reply, "banner": reply["banner"].split("Tip:")[0]}


def who_it_is_while_busy(it: Talker) -> Any:
    cell = it.execute("print('on', flush=True)\ninput()")
    it.published(cell, "stream", "on")
    control = it.request("kernel_info_request", {}, on="control")
    queued = it.ask("kernel_info_request", {})
    heard = it.hear(cell, answers=("x",))
    return [control.kinds, heard, it.hear(queued).kinds]


# ---- comms


TARGET = """
got = []
def opened(comm, message):
    def on_message(m):
        got.append((m['content']['data'], [bytes(b) for b in m['buffers']]))
        comm.send({'echo': m['content']['data']}, buffers=[b'back'])
    comm.on_msg(on_message)
    comm.on_close(lambda m: got.append('closed'))
    comm.send({'hello': 1})
get_ipython().kernel.comm_manager.register_target('target', opened)
"""


def comms(it: Talker) -> Any:
    heard: list[Any] = [it.run(TARGET)]

    def tell(kind: str, **content: Any) -> None:
        heard.append(it.hear(it.ask(kind, {"comm_id": "c", **content}), reply=False))

    def who(**content: str) -> None:
        heard.append(it.request("comm_info_request", content))

    tell("comm_open", target_name="target", data={"z": 1})
    who()
    who(target_name="target")
    who(target_name="another")
    message = it.client.session.msg("comm_msg", {"comm_id": "c", "data": {"n": 1}})
    message["buffers"] = [b"abc"]
    it.client.shell_channel.send(message)
    heard.append(it.hear(message["header"]["msg_id"], reply=False))
    tell("comm_close", data={})
    who()
    heard.append(it.run("got"))
    return heard


def a_comm_to_nobody(it: Talker) -> Any:
    return it.hear(
        it.ask("comm_open", {"comm_id": "x", "target_name": "nobody", "data": {}}), reply=False
    )


def a_comm_of_the_kernel(it: Talker) -> Any:
    it.run("from comm import create_comm")
    return it.run("c = create_comm(target_name='t', data={'a': 1})\nc.send(2)\nc.close()\ndel c")


# ---- subshells and interrupts


def subshells(it: Talker) -> Any:
    made = it.request("create_subshell_request", {}, on="control")
    there = {"subshell_id": made.reply["subshell_id"]}
    cell = it.execute("input('goes on')")
    it.until(lambda _, m: m["msg_type"] == "input_request", "the main shell waits")
    beside = [
        it.run("beside = 5; print('beside'); 7", header=there),
        it.run("1/0", header=there),
        it.request("complete_request", {"code": "besi", "cursor_pos": 4}, **there).reply["matches"],
        len(it.request("list_subshell_request", {}, on="control").reply["subshell_id"]),
    ]
    it.client.input("done")
    after = [it.hear(cell), it.run("beside"), it.run("beside = 6; print(beside)", header=there)]
    gone = [it.request("delete_subshell_request", there, on="control") for _ in range(2)]
    return [made, *beside, *after, it.run("beside"), *gone]


def interrupts(it: Talker) -> Any:
    it.run("import subprocess, time\ndef on(): print('on', flush=True)")
    heard = []
    for code in (
        "on(); time.sleep(600)",
        "try:\n    on(); time.sleep(600)\nexcept KeyboardInterrupt: print('caught')\n8",
        "on(); subprocess.run(['sleep', '600'])",
        "on(); eval('[' * 9 + 'time.sleep(600)' + ']' * 9)",
    ):
        cell = it.execute(code)
        it.published(cell, "stream", "on")
        it.request("interrupt_request", {}, on="control")
        heard.append(ended(it, cell))
    return [*heard, it.run("print('on')")]


def ended(it: Talker, cell: str) -> Any:
    """How a cell ended, without where in a library the interrupt met it."""
    outcome = it.hear(cell)
    # How much of what is printed travels in one message depends on when stdout is flushed.
    kinds = [
        kind
        for before, kind in itertools.pairwise(("", *outcome.kinds))
        if not before == kind == "stream"
    ]
    return [kinds, outcome.reply["status"], outcome.reply.get("ename")]


def an_interrupt_of_input(it: Talker) -> Any:
    cell = it.execute("input('never')")
    it.until(lambda _, m: m["msg_type"] == "input_request", "the prompt")
    it.request("interrupt_request", {}, on="control")
    return [ended(it, cell), it.run("input()", answers=("next",))]


def an_interrupt_stops_run_all(it: Talker) -> Any:
    ids = [it.execute("input('never')"), it.execute("print('second')"), it.execute("3")]
    it.until(lambda _, m: m["msg_type"] == "input_request", "the prompt")
    it.request("interrupt_request", {}, on="control")
    return [ended(it, ids[0]), *(it.hear(each) for each in ids[1:])]


def a_stranger(it: Talker) -> Any:
    key, it.client.session.key = it.client.session.key, b"guessed"
    it.execute("print('let me in')")
    it.client.session.key = key
    return it.run("print('only this')")


def what_nobody_knows(it: Talker) -> Any:
    asked = it.ask("no_such_request", {})
    heard = it.run("1")
    about: list[Message] = [m for _, m in it.inbox if m["parent_header"].get("msg_id") == asked]
    return [heard, [(m["msg_type"], m["content"]) for m in about]]


@pytest.mark.parametrize(
    "act",
    [
        silent, no_history, user_expressions, run_all, run_all_regardless,
        a_silent_error_stops_nothing, updates_of_earlier_cells, output_after_the_cell, answers,
        a_password, end_of_input, no_input, a_debugger_in_the_cell, completion, inspection,
        completeness, history, who_it_is, who_it_is_while_busy, comms, a_comm_to_nobody,
        a_comm_of_the_kernel, subshells, interrupts, an_interrupt_of_input,
        an_interrupt_stops_run_all, a_stranger, what_nobody_knows,
    ],
    ids=lambda act: act.__name__,
)  # fmt: skip
def test_as_plain_ipykernel(both: Both, act: Any) -> None:
    """The same requests get the same answers."""
    both.compare(act)


class Debugger:
    """The debug adapter protocol over a client's control channel, as JupyterLab speaks it."""

    def __init__(self, it: Talker) -> None:
        self.it = it
        self.sequence = 0

    def ask(self, command: str, **arguments: Any) -> Message:
        self.sequence += 1
        content = {"type": "request", "seq": self.sequence, "command": command}
        asked = self.it.ask("debug_request", {**content, "arguments": arguments}, on="control")
        reply: Message = self.it.reply_to(asked)["content"]
        assert reply["success"], reply
        return dict(reply.get("body") or {})

    def attach(self) -> None:
        self.ask("initialize", clientID="test", adapterID="", pathFormat="path", locale="en")
        self.ask("attach")

    def break_at(self, code: str, line: int) -> list[bool]:
        source = {"path": self.ask("dumpCell", code=code)["sourcePath"]}
        found = self.ask("setBreakpoints", source=source, breakpoints=[{"line": line}])
        self.ask("configurationDone")
        return [bool(each["verified"]) for each in found["breakpoints"]]

    def stopped_thread(self) -> int:
        event = self.it.until(
            lambda _, m: m["msg_type"] == "debug_event" and m["content"]["event"] == "stopped",
            "a stop at the breakpoint",
        )
        return int(event["content"]["body"]["threadId"])


AREA = "def area(r):\n    square = r * r\n    return 3 * square\narea(2)"


def debugging(it: Talker) -> Any:
    debugger = Debugger(it)
    debugger.attach()
    told: list[Any] = [debugger.break_at(AREA, 3)]
    cell = it.execute(AREA)
    thread = debugger.stopped_thread()
    frame = debugger.ask("stackTrace", threadId=thread)["stackFrames"][0]
    told.append([frame["name"], frame["line"]])
    scope = debugger.ask("scopes", frameId=frame["id"])["scopes"][0]["variablesReference"]
    shown = debugger.ask("variables", variablesReference=scope)["variables"]
    told.append([(each["name"], each["value"]) for each in shown])
    changed = "globals().update(seen=square)"
    debugger.ask("evaluate", expression=changed, frameId=frame["id"], context="repl")
    debugger.ask("continue", threadId=thread)
    told.append([m for m in it.hear(cell).kinds if m != "debug_event"])
    debugger.ask("disconnect", restart=False, terminateDebuggee=False)
    told.append(debugger.ask("debugInfo")["isStarted"])
    return [*told, it.run("seen"), it.run("area(1)").kinds]


def test_a_debugger_attached_in_the_middle(both: Both) -> None:
    """The kernel is held to the replica in which the debugger is, whatever its preference."""
    both.compare(debugging)


def test_a_debugger_attached_before_the_first_cell() -> None:
    """The first cell runs in the replica that the debugger is attached to."""
    with side("python3") as plain, side("notebookos", NOTEBOOKOS_EXECUTOR="rotate") as ours:
        Both(plain, ours).compare(debugging)
