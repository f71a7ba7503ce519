"""Every way in which people reach a kernel, on the real thing; nothing is left running."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pexpect
import pytest
from live_rig import HANG_S, MARK, gone, started_by, until
from nbclient import NotebookClient
from server_rig import Server, Tab, running_server

from notebookos_ext.live import cluster_runtime

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples/train_digits.ipynb"
SCRIPTS = Path(sys.executable).parent
JUPYTER = str(SCRIPTS / "jupyter")
QUIET = {"PYTHONWARNINGS": "ignore", "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the tests that leave it as it was; it leaves nothing behind."""
    with running_server(tmp_path_factory.mktemp("s"), mark="clients") as it:
        yield it
    until(lambda: not started_by("clients"), "no process of the server is left")


@contextmanager
def kernel_of(server: Server) -> Iterator[str]:
    """A kernel of the server that is deleted afterwards, and its processes are gone."""
    kernel = server.start_kernel()
    pids = server.wait_for_replicas(kernel)
    try:
        yield kernel
    finally:
        pids += [int(r["pid"]) for r in server.replicas(kernel) if r["pid"]]
        server.ask("DELETE", f"api/kernels/{kernel}")
        until(lambda: all(gone(pid) for pid in pids), "no replica is left")


@contextmanager
def tab(server: Server, kernel: str, session: str = "") -> Iterator[Tab]:
    opened = Tab(server, kernel, session)
    try:
        yield opened
    finally:
        opened.close()


# ---- a browser


def test_two_tabs_on_one_kernel(server: Server) -> None:
    """Both see all output; replies and prompts go to the one that asked."""
    with kernel_of(server) as kernel, tab(server, kernel) as one, tab(server, kernel) as two:
        mine, yours = one.execute("a = 1; print('mine')"), two.execute("b = 2; print('yours')")
        for it, own, other in ((one, mine, yours), (two, yours, mine)):
            texts = [m["content"].get("text") for cell in (mine, yours) for m in it.published(cell)]
            assert [text for text in texts if text] == ["mine\n", "yours\n"]
            assert it.reply(own)["status"] == "ok"
            assert all(m["parent_header"]["msg_id"] != other for c, m in it.inbox if c == "shell")
        asks = one.execute("print(input('who? '), a + b)")
        prompt = one.until(lambda channel, _: channel == "stdin", "the prompt")
        assert prompt["content"]["prompt"] == "who? "
        one.answer("Ada")
        assert two.output(asks, "Ada 3")
        two.published(asks)
        assert all(channel != "stdin" for channel, _ in two.inbox)
        assert one.reply(asks)["status"] == "ok"
        assert server.shown(kernel)["connections"] == 2


def test_a_tab_that_reloads_in_the_middle_of_a_cell(server: Server, tmp_path: Path) -> None:
    """What came meanwhile is there when it is back, and so are the reply and the idle."""
    waits = "while not os.path.exists({!r}): time.sleep(0.01)".format
    code = (
        f"import os, time\nprint('before', flush=True)\n{waits(str(tmp_path / 'away'))}\n"
        f"print('meanwhile', flush=True)\n{waits(str(tmp_path / 'back'))}\nprint('after')"
    )
    with kernel_of(server) as kernel:
        first = Tab(server, kernel)
        cell = first.execute(code)
        first.output(cell, "before")
        first.close()
        until(lambda: server.shown(kernel)["connections"] == 0, "the tab is away")
        assert server.shown(kernel)["execution_state"] == "busy"
        (tmp_path / "away").touch()
        with tab(server, kernel, first.session) as again:
            again.output(cell, "meanwhile")
            (tmp_path / "back").touch()
            again.output(cell, "after")
            assert again.published(cell)
            assert again.reply(cell)["status"] == "ok"
            assert again.run("print('on')") == "on\n"
        until(lambda: server.shown(kernel)["execution_state"] == "idle", "an idle kernel")


def test_interrupt_and_restart_from_the_toolbar(server: Server) -> None:
    """The WebSocket stays; what waited behind an interrupted cell aborts, as in ipykernel."""
    with kernel_of(server) as kernel, tab(server, kernel) as it:
        cell = it.execute("import time; kept = 1; print('on', flush=True); time.sleep(600)")
        behind = it.execute("print('never')")
        it.output(cell, "on")
        server.ask("POST", f"api/kernels/{kernel}/interrupt", {})
        assert it.reply(cell)["ename"] == "KeyboardInterrupt"
        assert it.reply(behind)["status"] == "aborted"
        assert it.run("print(kept)") == "1\n"

        cell = it.execute("print('on', flush=True); time.sleep(600)")
        behind = it.execute("print('never')")
        it.output(cell, "on")
        server.ask("POST", f"api/kernels/{kernel}/restart", {})
        assert it.reply(cell)["status"] == "aborted"
        assert it.reply(behind)["status"] == "aborted"
        assert it.published(cell)
        assert it.run("print('kept' in globals())") == "False\n"
        with tab(server, kernel) as another:
            assert another.run("print('kept' in globals())") == "False\n"
        server.wait_for_replicas(kernel)


def test_a_lost_executor_is_no_restart(server: Server) -> None:
    """The tab sees one failed cell; the server sees the same living kernel."""
    with kernel_of(server) as kernel, tab(server, kernel) as it:
        it.run("kept = [1]")
        cell = it.execute("import time; kept.append(2); print('on', flush=True); time.sleep(600)")
        it.output(cell, "on")
        lost = server.executor(kernel)
        os.kill(lost, signal.SIGKILL)
        assert it.reply(cell)["ename"] == "ExecutorLost"
        kinds = [m["header"]["msg_type"] for m in it.published(cell)]
        assert kinds[-2:] == ["error", "status"]
        assert it.run("print(kept)") == "[1]\n"
        assert server.executor(kernel) != lost
        assert lost not in server.wait_for_replicas(kernel)
        states = {m["content"].get("execution_state") for _, m in it.inbox}
        assert not states & {"restarting", "dead", "starting"}
        assert server.shown(kernel)["id"] == kernel


@pytest.mark.parametrize("name", ["python3", "notebookos"])
def test_a_client_that_shuts_the_kernel_down(server: Server, name: str) -> None:
    """As `exit` in a console does: the server starts the kernel again, empty, for the same tab."""
    kernel = server.start_kernel(name)
    with tab(server, kernel) as it:
        it.run("kept = 1")
        asked = it.ask("shutdown_request", {"restart": False}, "control")
        reply = it.until(
            lambda channel, m: channel == "control" and m["parent_header"].get("msg_id") == asked,
            "the reply",
        )
        assert reply["content"]["status"] == "ok"
        it.until(lambda _, m: m["content"].get("execution_state") == "restarting", "a restart")
        # The server says so before it does it: what comes in between may be refused.
        # Only replies are looked at: Jupyter itself may drop what a kernel publishes at its start.
        until(lambda: it.reply(it.execute("'kept' in globals()"))["status"] == "ok", "a new kernel")
        assert it.reply(it.execute("assert 'kept' not in globals()"))["status"] == "ok"
    server.ask("DELETE", f"api/kernels/{kernel}")


def test_a_session_with_its_notebook(server: Server) -> None:
    """A notebook's kernel begins in the notebook's folder; deleting the session ends it."""
    folder = server.folder / "work"
    folder.mkdir()
    nbformat.write(nbformat.v4.new_notebook(), folder / "n.ipynb")
    asked = {"path": "work/n.ipynb", "name": "n.ipynb", "type": "notebook"}
    session = server.ask("POST", "api/sessions", {**asked, "kernel": {"name": "notebookos"}})
    kernel = session["kernel"]["id"]
    pids = server.wait_for_replicas(kernel)
    assert server.ask("GET", f"notebookos/api/kernels/{kernel}")["notebook_path"] == "work/n.ipynb"
    with tab(server, kernel) as it:
        assert it.run("import os; print(os.getcwd())") == f"{folder}\n"
        server.ask("DELETE", f"api/sessions/{session['id']}")
        until(lambda: all(gone(pid) for pid in pids), "no replica is left")
        assert server.status_of(f"api/kernels/{kernel}") == 404
        assert server.status_of(f"notebookos/api/kernels/{kernel}") == 404


def test_an_idle_kernel_is_culled_and_a_busy_one_is_not(tmp_path: Path) -> None:
    """The server's own culling: by activity and state, which the router must keep true."""
    culling = ("cull_idle_timeout=1", "cull_interval=1", "cull_connected=True")
    options = [f"--MappingKernelManager.{option}" for option in culling]
    with running_server(tmp_path, "--NotebookOSApp.hosts=3", *options, mark="culled") as server:
        idle, busy = server.start_kernel(), server.start_kernel()
        with tab(server, busy) as it:
            cell = it.execute("input('stay')")
            it.until(lambda channel, _: channel == "stdin", "the prompt")
            until(lambda: server.status_of(f"api/kernels/{idle}") == 404, "the idle one is gone")
            until(lambda: server.status_of(f"notebookos/api/kernels/{idle}") == 404, "all of it")
            assert server.shown(busy)["execution_state"] == "busy"
            it.answer("")
            assert it.reply(cell)["status"] == "ok"
            until(lambda: server.status_of(f"api/kernels/{busy}") == 404, "the other one as well")
    until(lambda: not started_by("culled"), "no process left")


# ---- a terminal


def test_a_console_joins_a_running_kernel_and_leaves_it_running(server: Server) -> None:
    """`jupyter console --existing`: it shares the variables, interrupts, and goes."""
    with kernel_of(server) as kernel, tab(server, kernel) as it:
        it.run("shared = 41")
        connection = server.folder / "runtime" / f"kernel-{kernel}.json"
        console = pexpect.spawn(
            sys.executable,
            ["-m", "jupyter_console", "--existing", str(connection), "--simple-prompt"],
            encoding="utf-8",
            timeout=HANG_S,
            env={**os.environ, **QUIET},
        )
        for line, expected in [
            ("shared += 1; shared", r"Out\[\d+\]: 42"),
            ("1/0", "ZeroDivisionError"),
            ("input('name? ')", r"name\? "),
            ("Ada", "'Ada'"),
        ]:
            console.sendline(line)
            console.expect(expected)
        console.sendline("exit(keep_kernel=True)")
        console.expect(pexpect.EOF)
        console.close()
        assert it.run("print(shared)") == "42\n"


# ---- programs


def test_jupyter_execute_runs_the_demo(tmp_path: Path) -> None:
    """The README's command, on the demo notebook."""
    notebook = nbformat.read(DEMO, as_version=4)
    nbformat.write(notebook, tmp_path / "demo.ipynb")
    ran = subprocess.run(
        [JUPYTER, "execute", "--kernel_name=notebookos", "--inplace", "demo.ipynb"],
        cwd=tmp_path,
        env={**os.environ, **QUIET, MARK: "execute"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    cells = nbformat.read(tmp_path / "demo.ipynb", as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    until(lambda: not started_by("execute"), "no process left")


def test_a_failing_notebook_leaves_nothing_either(tmp_path: Path) -> None:
    """`jupyter execute` stops at the error, says it, and its cluster is gone."""
    cells = ["a = 1", "raise ValueError('on purpose')", "print('never')"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    nbformat.write(notebook, tmp_path / "n.ipynb")
    ran = subprocess.run(
        [JUPYTER, "execute", "--kernel_name=notebookos", "n.ipynb"],
        cwd=tmp_path,
        env={**os.environ, **QUIET, MARK: "fails"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode != 0
    assert "on purpose" in ran.stderr
    until(lambda: not started_by("fails"), "no process left")


def test_two_notebooks_at_once_in_one_event_loop() -> None:
    """The async API of nbclient: one cluster of the process serves both."""

    def client(text: str) -> NotebookClient:
        cells = [f"said = [{text!r}]", "await __import__('asyncio').sleep(0.1); print(*said)"]
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
        return NotebookClient(notebook, kernel_name="notebookos", timeout=int(HANG_S))

    async def both() -> list[str]:
        done = await asyncio.gather(*(client(text).async_execute() for text in ("one", "two")))
        return [str(notebook.cells[-1].outputs[0].text) for notebook in done]

    try:
        for _ in range(2):  # loops come and go
            assert asyncio.run(both()) == ["one\n", "two\n"]
    finally:
        cluster_runtime.stop_private()


def test_nbconvert_makes_a_page_with_what_the_cells_showed(tmp_path: Path) -> None:
    """Rich output and a widget's state reach the page."""
    code = (
        "import ipywidgets\nfrom IPython.display import HTML, display\n"
        "display(HTML('<b>made here</b>'))\nipywidgets.IntSlider(description='Speed')"
    )
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(code)],
        metadata={"kernelspec": {"name": "notebookos", "display_name": "x"}},
    )
    nbformat.write(notebook, tmp_path / "n.ipynb")
    subprocess.run(
        [JUPYTER, "nbconvert", "--execute", "--to", "html", "n.ipynb"],
        cwd=tmp_path,
        env={**os.environ, **QUIET, MARK: "page"},
        check=True,
        capture_output=True,
    )
    page = (tmp_path / "n.html").read_text(encoding="utf-8")
    assert "<b>made here</b>" in page
    state = page.split('<script type="application/vnd.jupyter.widget-state+json">')[1]
    models = json.loads(state.split("</script>")[0])["state"].values()
    assert "Speed" in {model["state"].get("description") for model in models}
    until(lambda: not started_by("page"), "no process left")
