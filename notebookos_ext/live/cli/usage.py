"""`jupyter notebookos usage`: GPU-hours, waits and savings, by user, notebook or kernel."""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import json
import re
import sys
from collections.abc import Iterable

from notebookos_ext.clock import SystemClock
from notebookos_ext.errors import InvalidRequest
from notebookos_ext.live.cli.asking import Json, add_server_options, ask_servers
from notebookos_ext.live.cli.tables import table

UNITS_S = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
SECONDS = ("gpu_seconds_bound", "gpu_seconds_used", "gpu_seconds_reserved", "gpu_seconds_saved")


def add(command: argparse.ArgumentParser) -> None:
    """The options."""
    command.add_argument(
        "--since", metavar="WHEN", help="from a date (2026-11-30) or for so long (12h, 7d); all"
    )
    command.add_argument("--by", choices=("user", "notebook", "kernel"), default="notebook")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print comma-separated values")
    form.add_argument("--json", action="store_true", help="print the servers' answers as JSON")
    add_server_options(command)
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the sums. Raises InvalidRequest for a time that is none, and as `ask_servers` does."""
    query = {"by": str(arguments.by)}
    if arguments.since:
        query["since"] = repr(since(arguments.since, SystemClock().now()))
    found, problems = ask_servers(arguments, "usage", query)
    if arguments.json:
        print(json.dumps([{"server": url, **usage} for url, usage in found], indent=1))
    elif arguments.csv:
        _print_csv(found)
    else:
        print("\n\n".join("\n".join(_report(url, usage)) for url, usage in found))
    for problem in problems:
        print(problem, file=sys.stderr)
    return 0


def since(text: str, now: float) -> float:
    """`text` as seconds since the epoch: so long before now, or a date of the local time zone.

    0 for what lies before it. Raises InvalidRequest.
    """
    if match := re.fullmatch(r"(\d{1,9})([mhdw])", text):
        return max(0.0, now - int(match[1]) * UNITS_S[match[2]])
    try:
        return max(0.0, dt.datetime.fromisoformat(text).astimezone().timestamp())
    except (ValueError, OverflowError):
        raise InvalidRequest(
            f"--since is {text!r}; give a date such as 2026-11-30 or a duration such as 12h or 7d"
        ) from None


def _print_csv(found: list[tuple[str, Json]]) -> None:
    rows = [{"server": url, **group} for url, usage in found for group in usage["groups"]]
    fields = list(rows[0]) if rows else ["server", "name"]
    writer = csv.DictWriter(sys.stdout, fields, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _report(url: str, usage: Json) -> Iterable[str]:
    begins = usage["since"]
    date = dt.datetime.fromtimestamp(begins).astimezone().isoformat(" ", "minutes")
    yield f"{url}  {f'since {date}' if begins else 'all that is on record'}"
    yield ""
    rows = [_row(group["name"] or "-", group) for group in usage["groups"]]
    yield from table(
        (
            usage["by"].upper(),
            "CELLS",
            "GPU CELLS",
            "GPU-H BOUND",
            "RESERVED",
            "SAVED",
            "AT ONCE",
            "WAIT P50",
            "P99",
        ),
        [*rows, _row("(all)", usage["total"])] if rows else [],
        empty="nothing ran",
    )


def _row(name: str, group: Json) -> tuple[str, ...]:
    bound, _, reserved, saved = (f"{group[key] / 3600:.2f}" for key in SECONDS)
    share = f"{group['at_once'] / group['gpu_cells']:.0%}" if group["gpu_cells"] else "-"
    waits = (_milliseconds(group["wait_ms_p50"]), _milliseconds(group["wait_ms_p99"]))
    counts = (str(group["cells"]), str(group["gpu_cells"]))
    return (name, *counts, bound, reserved, saved, share, *waits)


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"
