"""What of a log may be shown to a stranger: sentences of our own, without what was put into them.

A line is known by the sentences in this package's source. What stands in their gaps is shown only
where it is a number, an id or a sentence of ours again; all else may be the user's, so it is left
out. Nothing is recognised by looking like a secret: what is not known to be ours does not pass.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

GAP = "…"
LEAST_LETTERS = 4
"""A sentence with fewer letters of its own would fit anything."""
DEEPEST = 3
"""Sentences within sentences."""
LONGEST = 4000
"""Characters of a line that are looked at."""

_UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_SAFE = re.compile(
    rf"{_UUID}(:\d{{1,4}})?|host-\d{{1,4}}|-?\d{{1,9}}(\.\d{{1,9}})?|SIG[A-Z]{{2,8}}|True|False|None"
)
_DIRECTIVE = re.compile(r"%(?:\(\w+\))?[-+ #0]*\d*(?:\.\d+)?[sdrgfxi]")
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) ([A-Z]{4,8}) ([\w.]+): (.*)", re.DOTALL)
_FRAME = re.compile(r'\s*File "[^"]*(notebookos_ext/[\w/]+\.py)", line (\d{1,6}), in (\w+)')
_RAISED = re.compile(r"([A-Za-z_][\w.]*)(: .*)?")


class Sentences:
    """The sentences in the source of a package."""

    def __init__(self, package: Path) -> None:
        self._own: dict[str, re.Pattern[str]] = {}
        self._literals: list[tuple[str, str]] = []
        for path in sorted(package.rglob("*.py")):
            for parts in _sentences(ast.parse(path.read_text(encoding="utf-8"))):
                self._learn(parts)

    def shown(self, text: str, depth: int = 0) -> str | None:
        """The text with its gaps closed; None when it is no sentence of ours."""
        text = text[:LONGEST]
        if _SAFE.fullmatch(text):
            return text
        best: str | None = None
        for longest, key in self._literals:
            if longest in text and (found := self._own[key].fullmatch(text)):
                filled = self._filled(key, found.groups(), depth)
                if best is None or filled.count(GAP) < best.count(GAP):
                    best = filled
                if GAP not in filled:
                    break
        return best

    def lines(self, log: Iterable[str]) -> Iterator[str]:
        """A log of ours, line by line; how many lines in a row are left out is said."""
        left_out = 0
        for line in log:
            told = self._line(line.rstrip("\n"))
            if told is None:
                left_out += 1
                continue
            if left_out:
                yield f"  ({left_out} left out)"
                left_out = 0
            yield told
        if left_out:
            yield f"  ({left_out} left out)"

    def _line(self, line: str) -> str | None:
        if found := _LINE.fullmatch(line):
            at, level, logger, message = found.groups()
            own = logger if logger.startswith("notebookos_ext") else GAP
            return f"{at} {level} {own}: {self.shown(message) or GAP}"
        if frame := _FRAME.fullmatch(line):
            return f"  {frame[1]}:{frame[2]} in {frame[3]}"
        if (raised := _RAISED.fullmatch(line)) and _is_error(raised[1]):
            said = self.shown(raised[2][2:]) if raised[2] else None
            return f"  {raised[1]}: {said or GAP}"
        return None

    def _learn(self, parts: list[str]) -> None:
        key = GAP.join(parts)
        if key in self._own or sum(map(str.isalpha, "".join(parts))) < LEAST_LETTERS:
            return
        self._own[key] = re.compile("(.*?)".join(map(re.escape, parts)), re.DOTALL)
        self._literals.append((max(parts, key=len), key))

    def _filled(self, key: str, gaps: Iterable[str], depth: int) -> str:
        parts = key.split(GAP)
        filled = parts[0]
        for gap, part in zip(gaps, parts[1:], strict=False):
            inner = self.shown(gap, depth + 1) if depth < DEEPEST else None
            filled += (inner or GAP) + part
        return filled


def _is_error(name: str) -> bool:
    if name.startswith("notebookos_ext.errors."):
        return True
    kind = getattr(builtins, name, None)
    return isinstance(kind, type) and issubclass(kind, BaseException)


def _sentences(tree: ast.AST) -> Iterator[list[str]]:
    """The parts between the gaps, of each text in the source."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [""]
            for value in node.values:
                if isinstance(value, ast.Constant):
                    parts[-1] += str(value.value)
                else:
                    parts.append("")
            yield parts
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield _DIRECTIVE.split(node.value)
