"""Many random lives of Raft groups, in pieces: `make raft-soak SEEDS=50000` goes on where it ended.

The totals stand in a file that is named after the code they were reached with: a change of the core
or of what checks it begins anew. A failing seed is printed with the command that repeats it, and
kept in the totals.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
import raft_chaos
from raft_chaos import Chaos

import notebookos_ext.cluster.consensus as core
from notebookos_ext.clock import SystemClock
from notebookos_ext.cluster.digests import chunk_digest

FIRST_SEED = 100_000
"""Below are those of the test run."""
STEPS = (300, 800, 2_000)
SAVE_EVERY_S = 20.0


class Totals(msgspec.Struct):
    """What all seeds so far amount to."""

    seeds: int = 0
    steps: int = 0
    proposals: int = 0
    terms: int = 0
    membership_changes: int = 0
    snapshots: int = 0
    lost_disks: int = 0
    reads: int = 0
    spent_s: float = 0.0
    failed: list[int] = []


def steps_of(seed: int) -> int:
    """How long the life of that seed is."""
    return STEPS[seed % len(STEPS)]


def tested_code() -> str:
    """A name for the core and its checks as they are now."""
    tests = Path(raft_chaos.__file__).parent
    files = [*Path(core.__file__).parent.glob("*.py"), *tests.glob("raft_[cgi]*.py")]
    return chunk_digest(b"".join(path.read_bytes() for path in sorted(files)))[:12]


def live(seed: int, totals: Totals) -> None:
    """One more seed."""
    chaos = Chaos(seed, steps_of(seed))
    try:
        chaos.run()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the soak looks for
        totals.failed.append(seed)
        again = f"PYTHONPATH=.:tests python scripts/raft_soak.py --only {seed}"
        print(f"seed {seed} fails: {error}\n  {again}", flush=True)
    invariants = chaos.group.invariants
    totals.seeds += 1
    totals.steps += chaos.steps
    totals.proposals += len(invariants.index_by_id)
    totals.terms += len(invariants.leader_of_term)
    totals.membership_changes += sum(
        entry.membership is not None for entry in invariants.committed.values()
    )
    totals.snapshots += chaos.compactions
    totals.lost_disks += len(chaos.gone)
    totals.reads += len(chaos.group.read_results)


def main() -> int:
    """Live what is left of the wanted seeds; 1 if any has ever failed."""
    clock = SystemClock()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seeds", type=int, default=10_000, help="how many in all, earlier ones too"
    )
    parser.add_argument("--totals", type=Path, default=Path(".cache/raft-soak"))
    parser.add_argument("--only", type=int, help="live this seed and show how it fails")
    arguments = parser.parse_args()
    if arguments.only is not None:
        Chaos(arguments.only, steps_of(arguments.only)).run()
        return 0
    path = arguments.totals / f"{tested_code()}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    totals = msgspec.json.decode(path.read_bytes(), type=Totals) if path.exists() else Totals()
    saved_at = clock.monotonic()
    while totals.seeds < arguments.seeds:
        live(FIRST_SEED + totals.seeds, totals)
        now = clock.monotonic()
        if now - saved_at > SAVE_EVERY_S or totals.seeds == arguments.seeds:
            totals.spent_s += now - saved_at
            saved_at = now
            path.write_bytes(msgspec.json.encode(totals))
            print(f"{totals.seeds} seeds, {totals.proposals} proposals", flush=True)
    print(f"{path}: {msgspec.json.encode(totals).decode()}")
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(main())
