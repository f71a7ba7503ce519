"""Workloads as two CSV files, `NAME_sessions.csv` and `NAME_tasks.csv`; see docs/simulation.md.

Sessions: `session,start_s,end_s,gpus[,…]`. Tasks: `session,submit_s,duration_s,gpus`, with
`think_after_s` where it is known; else it is what lies between a cell's end and the next
submission. Other columns are left alone.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from notebookos_ext.errors import InvalidRequest
from notebookos_ext.simulation.workload import (
    PlannedCell,
    PlannedSession,
    Workload,
    check_workload,
    close_loop,
)

SESSIONS_END, TASKS_END = "_sessions.csv", "_tasks.csv"


def read_csv(path: Path) -> Workload:
    """The workload of either file, or of the name before `_sessions.csv`. Raises InvalidRequest."""
    base = path.name.removesuffix(SESSIONS_END).removesuffix(TASKS_END)
    sessions_path = path.with_name(base + SESSIONS_END)
    tasks_path = path.with_name(base + TASKS_END)
    cells = _read_cells(tasks_path)
    sessions = []
    for line, row in _rows(sessions_path):
        name = _text(sessions_path, line, row, "session")
        sessions.append(
            PlannedSession(
                name,
                _number(sessions_path, line, row, "start_s"),
                _number(sessions_path, line, row, "end_s"),
                _whole(sessions_path, line, row, "gpus"),
                cells.pop(name, ()),
            )
        )
    if cells:
        raise InvalidRequest(
            f"{tasks_path} has tasks of session {next(iter(cells))}, which {sessions_path.name} "
            "does not list; add the session or remove its tasks"
        )
    if not sessions:
        raise InvalidRequest(f"{sessions_path} lists no session; a workload needs at least one")
    sessions.sort(key=lambda session: session.start_s)
    horizon_s = max(session.end_s for session in sessions)
    return check_workload(Workload(base, horizon_s, tuple(sessions), f"{base} (CSV)"))


def write_csv(workload: Workload, folder: Path) -> tuple[Path, Path]:
    """Write both files into the folder, named after the workload; returns their paths."""
    sessions_path = folder / f"{workload.name}{SESSIONS_END}"
    tasks_path = folder / f"{workload.name}{TASKS_END}"
    with sessions_path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("session", "start_s", "end_s", "gpus", "tasks"))
        rows.writerows(
            (s.session, round(s.start_s, 1), round(s.end_s, 1), s.gpus, len(s.cells))
            for s in workload.sessions
        )
    with tasks_path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("session", "seq", "submit_s", "duration_s", "think_after_s", "gpus"))
        for session in workload.sessions:
            last = len(session.cells) - 1
            rows.writerows(
                (
                    session.session,
                    seq,
                    round(cell.submit_s, 1),
                    round(cell.duration_s, 1),
                    -1 if seq == last else round(cell.think_after_s, 1),
                    cell.gpus,
                )
                for seq, cell in enumerate(session.cells)
            )
    return sessions_path, tasks_path


def _read_cells(path: Path) -> dict[str, tuple[PlannedCell, ...]]:
    plain: dict[str, list[tuple[float, float, int]]] = defaultdict(list)
    thinks: dict[str, list[float | None]] = defaultdict(list)
    for line, row in _rows(path):
        name = _text(path, line, row, "session")
        plain[name].append(
            (
                _number(path, line, row, "submit_s"),
                _number(path, line, row, "duration_s"),
                _whole(path, line, row, "gpus"),
            )
        )
        think_s = _number(path, line, row, "think_after_s") if row.get("think_after_s") else None
        thinks[name].append(think_s)
    found = {}
    for name, submitted in plain.items():
        if submitted != sorted(submitted, key=lambda cell: cell[0]):
            raise InvalidRequest(
                f"{path}: the tasks of session {name} are not in the order of submit_s; sort them"
            )
        found[name] = tuple(
            cell
            if think_s is None or think_s < 0
            else PlannedCell(cell.submit_s, cell.duration_s, cell.gpus, think_s)
            for cell, think_s in zip(close_loop(submitted), thinks[name], strict=True)
        )
    return found


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    try:
        # Spreadsheets begin UTF-8 with a mark that is no part of the first column's name.
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield from enumerate(csv.DictReader(file), start=2)
    except OSError as problem:
        raise InvalidRequest(
            f"cannot read {path}: {problem.strerror}; a CSV workload needs "
            f"NAME{SESSIONS_END} and NAME{TASKS_END} side by side"
        ) from problem
    except (UnicodeDecodeError, csv.Error) as problem:
        raise InvalidRequest(
            f"{path} is not a CSV file in UTF-8 ({problem}); save it as one"
        ) from problem


def _text(path: Path, line: int, row: dict[str, str], column: str) -> str:
    value = row.get(column)
    if not value:
        raise InvalidRequest(f"{path}, line {line}: there is nothing in column {column!r}")
    return value


def _number(path: Path, line: int, row: dict[str, str], column: str) -> float:
    value = _text(path, line, row, column)
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidRequest(f"{path}, line {line}: {value!r} in column {column!r} is not a number")
    return number


def _whole(path: Path, line: int, row: dict[str, str], column: str) -> int:
    number = _number(path, line, row, column)
    if not number.is_integer():
        raise InvalidRequest(
            f"{path}, line {line}: {number:g} in column {column!r} must be a whole number"
        )
    return int(number)
