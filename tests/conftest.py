"""What every test gets: Jupyter's fixtures, `--rewrite` for goldens, and a guard on processes."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Iterator

import hypothesis
import psutil
import pytest

pytest_plugins = ["pytest_jupyter.jupyter_server"]

RUN_MARK = "NOTEBOOKOS_TEST_RUN"
"""In the environment of every process that this run starts, however far it detaches itself."""

# A deadline would make a busy machine fail tests; seeds are kept by Hypothesis's own database.
hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile("full", deadline=None, print_blob=True, max_examples=2_000)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--rewrite`."""
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="rewrite the golden files from what the code answers now; review the difference",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Mark the run and choose Hypothesis's effort."""
    os.environ[RUN_MARK] = uuid.uuid4().hex
    # Kernels of other runs, and of the person at this machine, have their own input history.
    os.environ["IPYTHONDIR"] = tempfile.mkdtemp(prefix="ipython-")
    # At exit rather than with the session: IPython's own last act is to write its history.
    atexit.register(shutil.rmtree, os.environ["IPYTHONDIR"], ignore_errors=True)
    hypothesis.settings.load_profile("full" if os.environ.get("NOTEBOOKOS_FULL") else "default")


@pytest.fixture(scope="session")
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be rewritten instead of compared."""
    return bool(request.config.getoption("--rewrite"))


def _left_over(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(RUN_MARK) == mark:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return [p for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="session", autouse=True)
def nothing_left_running() -> Iterator[None]:
    """Fail the run when a process that a test started is still there at its end."""
    yield
    mark = os.environ[RUN_MARK]
    left = _left_over(mark)
    # Processes that were told to end may still be on their way.
    _, alive = psutil.wait_procs(left, timeout=30)
    if not alive:
        return
    report = []
    for process in alive:
        try:
            report.append(f"{process.pid}: {' '.join(process.cmdline())}")
            process.send_signal(signal.SIGKILL)
        except psutil.Error:
            continue
    pytest.fail("tests left these processes running:\n  " + "\n  ".join(report), pytrace=False)
