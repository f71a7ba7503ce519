"""`python -m gate [--short] [--only NAME]`, the command behind `make raft-search`.

Searches one scope after the other and prints, for each, its bounds, how many states it saw and
whether there are no others. Ends with status 1 if a state broke a promise.
"""

from __future__ import annotations

import argparse
import sys

from gate.bounds import Bounds
from gate.scopes import LONG, SHORT
from gate.search import Report, Search

HEAD = ("scope", "bounds", "states", "steps", "deepest", "exhausted", "seconds")


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


def say(line: str) -> None:
    """Print at once: a long search is watched through a file."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Search what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m gate", description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="only what runs within `make test`")
    parser.add_argument("--only", help="only the scope of this name")
    arguments = parser.parse_args()
    scopes = SHORT if arguments.short else {**SHORT, **LONG}
    chosen = {n: b for n, b in scopes.items() if arguments.only in {None, n}}
    if not chosen:
        parser.error(f"there is no scope {arguments.only!r}; there are {', '.join(scopes)}")
    say(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    broken = 0
    for name, bounds in chosen.items():
        report = Search(bounds).run()
        say(row(name, bounds, report))
        if report.found is not None:
            broken = 1
            say(report.found.told())
    return broken


if __name__ == "__main__":
    sys.exit(main())
