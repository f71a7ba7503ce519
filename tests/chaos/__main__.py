"""`python -m chaos --seed N --duration-s S`, the command behind `make chaos`.

Prints every round with `--rounds-shown`, and the accounts in any case. Ends with status 1 when
something that was replied to is missing without a word, a cell got no outcome, or something is
left behind.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from chaos.faults import FAULTS
from chaos.run import drawn_for, run


def main() -> int:
    """Run once."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--duration-s", type=float, default=60.0)
    parser.add_argument("--only", action="append", default=[], choices=FAULTS)
    parser.add_argument("--rounds-shown", action="store_true")
    parser.add_argument(
        "--scheduling",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of the scheduler, such as hints=false or prewarm={}",
    )
    arguments = parser.parse_args()

    def say(line: str) -> None:
        if arguments.rounds_shown:
            print(line, flush=True)

    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        rounds = drawn_for(arguments.seed, arguments.duration_s, tuple(arguments.only))
        report = run(Path(folder), arguments.seed, rounds, say, scheduling=arguments.scheduling)
    print("\n".join(report.lines()))
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
