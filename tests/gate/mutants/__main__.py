"""`python -m gate.mutants [NAME ...]`, the command behind `make raft-mutants`.

Plants one fault after the other in a copy of the tree and runs the gate there, one catcher
after the other, until one fails. Prints who caught what and how long it took; with `--write`
puts the table into docs/consensus.md. Ends with status 1 if a fault survived.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from gate import page
from gate.mutants.faults import Fault, all_faults

ROOT = Path(__file__).parents[3]
COMMAND = "make raft-mutants"
CATCHERS = {
    "scenarios": (
        "tests/cluster/consensus",
        "--ignore=tests/cluster/consensus/test_conversations.py",
    ),
    "conversations": ("tests/cluster/consensus/test_conversations.py",),
    "log files": ("tests/storage/test_wal.py", "tests/storage/test_compaction.py"),
    "simulation": ("tests/properties/test_consensus.py",),
    "search": ("tests/gate/test_search.py",),
    "members": (
        "tests/agent/test_members.py",
        "tests/agent/test_answers_after_saves.py",
        "tests/agent/test_member_snapshots.py",
        "tests/agent/test_full_disk.py",
    ),
    "processes": ("tests/agent/test_members_processes.py",),
}
FOR_THE_CORE = ("scenarios", "conversations", "simulation", "search", "members")
FOR_THE_DISK = ("log files", "members", "processes")
"""Which of them run the code that a fault is in."""


class Verdict(msgspec.Struct, frozen=True):
    """What became of one fault; `catcher` is empty if it survived."""

    fault: Fault
    catcher: str
    test: str
    seconds: float

    @property
    def row(self) -> str:
        by = f"{self.catcher}: {self.test}" if self.catcher else NOBODY
        blind = "yes" if self.fault.blind else "no"
        return f"| {self.fault.name} | {self.fault.rule} | {by} | {blind} | {self.seconds:.0f} |"


NOBODY = "**nobody**"
HEAD = (
    "| fault | rule that it breaks | caught by | written blind | seconds |\n|---|---|---|---|---|\n"
)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def copied(folder: Path) -> None:
    """Everything that the gate needs."""
    for name in ("pyproject.toml", "ARCHITECTURE.md"):
        shutil.copy(ROOT / name, folder / name)
    left_out = shutil.ignore_patterns("labextension", "__pycache__")
    for name in ("notebookos_ext", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=left_out)


def failing_test(folder: Path, catcher: str, limit_s: float) -> str:
    """The first test of this catcher that fails in `folder`; empty: none does."""
    # Without the plugins that the gate does not need, of which some take seconds to load.
    plugins = ("-p", "pytest_timeout", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", *plugins]
    environment = os.environ | {
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [*command, "--no-header", *CATCHERS[catcher]],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
            return f"not done within {limit_s:.0f} s"
        output.seek(0)
        text = output.read()
    if status == 0:
        return ""
    found = re.search(
        r"^(?:FAILED|ERROR) \S*?([^/\s]+)\.py(?:::(.+?))?(?: - .*)?$", text, re.MULTILINE
    )
    if found is None:
        raise RuntimeError(f"{catcher} could not be run:\n{text[-2000:]}")
    return (found.group(2) or found.group(1)).replace("|", "/")


def judged(fault: Fault, tree: Path, limits_s: dict[str, float]) -> Iterator[tuple[str, str]]:
    """Each catcher of these that notices the fault, and the test by which it does."""
    with tempfile.TemporaryDirectory(prefix="raft-mutant-") as name:
        folder = Path(name) / "tree"
        shutil.copytree(tree, folder)
        fault.plant(folder / "notebookos_ext")
        for catcher, limit_s in limits_s.items():
            test = failing_test(folder, catcher, limit_s)
            if test:
                yield catcher, test


def verdict(fault: Fault, tree: Path, limits_s: dict[str, float]) -> Verdict:
    """Plant one fault and see who catches it first."""
    begun = time.perf_counter()
    concerned = FOR_THE_CORE if fault.file.startswith("cluster/") else FOR_THE_DISK
    asked = {catcher: limits_s[catcher] for catcher in concerned if catcher in limits_s}
    catcher, test = next(judged(fault, tree, asked), ("", ""))
    return Verdict(fault, catcher, test, time.perf_counter() - begun)


def usual_limits(tree: Path, catchers: list[str]) -> dict[str, float]:
    """How long each catcher may take: several times what it takes without any fault.

    Raises:
        RuntimeError: one of them fails without any fault.
    """
    limits_s = {}
    for catcher in catchers:
        begun = time.perf_counter()
        test = failing_test(tree, catcher, limit_s=1_200)
        if test:
            raise RuntimeError(f"without any fault {catcher} fails: {test}; mend that first")
        limits_s[catcher] = 60 + 4 * (time.perf_counter() - begun)
    return limits_s


def merged(text: str, verdicts: list[Verdict], faults: list[Fault]) -> str:
    """The table in `text` with these verdicts in the place of older ones; survivors last."""
    lines = (line for line in text.splitlines() if line.startswith("| "))
    rows = {line.split("|")[1].strip(): line for line in lines}
    rows |= {verdict.fault.name: verdict.row for verdict in verdicts}
    judged_ones = [fault for fault in faults if fault.name in rows]
    survivors = [fault for fault in judged_ones if NOBODY in rows[fault.name]]
    caught = [fault for fault in judged_ones if fault not in survivors]
    blind = sum(fault.blind for fault in judged_ones)
    return (
        f"{len(judged_ones)} faults, {blind} of them by somebody who had not seen the tests; "
        f"{len(caught)} caught, {len(survivors)} survived.\n\n{HEAD}"
        + "\n".join(rows[fault.name] for fault in (*caught, *survivors))
    )


def main() -> int:
    """Plant what was asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m gate.mutants", description=__doc__.splitlines()[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these faults")
    parser.add_argument("--with", dest="catchers", action="append", choices=CATCHERS)
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    arguments = parser.parse_args()
    faults = all_faults()
    unknown = set(arguments.names) - {fault.name for fault in faults}
    if unknown:
        parser.error(f"there is no fault {', '.join(sorted(unknown))}")
    chosen = [fault for fault in faults if fault.name in arguments.names or not arguments.names]
    catchers = arguments.catchers or list(CATCHERS)
    with tempfile.TemporaryDirectory(prefix="raft-mutants-") as name:
        # From here on the work may go on in the tree itself.
        tree = Path(name)
        copied(tree)
        limits_s = usual_limits(tree, catchers)
        say(HEAD.rstrip())
        verdicts = []
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for found in pool.map(lambda fault: verdict(fault, tree, limits_s), chosen):
                verdicts.append(found)
                say(found.row)
    survivors = [v.fault.name for v in verdicts if not v.catcher]
    say(f"{len(verdicts) - len(survivors)} of {len(verdicts)} faults were caught")
    if survivors:
        say(f"survived: {', '.join(survivors)}")
    if arguments.write:
        page.write(COMMAND, merged(page.read(COMMAND), verdicts, faults))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
