"""`python -m gate [--short] [--only NAME] [--write]`, the command behind `make raft-search`.

Searches one scope after the other and prints, for each, its bounds, how many states it saw and
whether there are no others; with `--write` puts these rows into docs/consensus.md. Ends with status
1 if a state broke a promise.
"""

from __future__ import annotations

import argparse
import sys

from gate import page
from gate.bounds import Bounds
from gate.scopes import LONG, SHORT
from gate.search import Report, Search

COMMAND = "make raft-search"
SCOPES = SHORT | LONG
HEAD = (
    "| scope | bounds | states | steps | deepest | exhausted | seconds |\n"
    "|---|---|---|---|---|---|---|\n"
)


def row(name: str, bounds: Bounds, report: Report) -> str:
    """One line of the table in docs/consensus.md."""
    told = (
        name,
        bounds.told(),
        f"{report.states:,}",
        f"{report.steps:,}",
        str(report.depth),
        "yes" if report.exhausted else "no",
        f"{report.seconds:.0f}",
    )
    return f"| {' | '.join(told)} |"


def merged(text: str, rows: dict[str, str]) -> str:
    """The table in `text` with these rows in the place of older ones, in the order of scopes."""
    lines = (line for line in text.splitlines() if line.startswith("| "))
    known = {line.split("|")[1].strip(): line for line in lines} | rows
    return HEAD + "\n".join(known[name] for name in SCOPES if name in known)


def say(line: str) -> None:
    """Print at once: a long search is watched through a file."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Search what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m gate", description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="only what runs within `make test`")
    parser.add_argument("--only", choices=SCOPES, metavar="NAME", help="only this scope")
    parser.add_argument("--write", action="store_true", help="put the rows into the docs")
    arguments = parser.parse_args()
    scopes = SHORT if arguments.short else SCOPES
    say(HEAD.rstrip())
    rows: dict[str, str] = {}
    for name, bounds in scopes.items():
        if arguments.only not in {None, name}:
            continue
        report = Search(bounds).run()
        rows[name] = row(name, bounds, report)
        say(rows[name])
        if report.found is not None:
            say(report.found.told())
            return 1
    if arguments.write:
        page.write(COMMAND, merged(page.read(COMMAND), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
