"""A random program of cells, and what is known to be right after each of them.

Every cell is run here too, by plain Python, so the right answer is not computed by what is tested.
A cell that was lost may or may not have had its effect: both are followed until an answer tells
which it was. Large arrays, whose newest value may be lost if its loss is named, are kept apart.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

LONGEST_DOUBT = 10
"""Cells in a row whose effect is unknown; as many doublings of what may be right."""
FORGOTTEN_MAX = 3
"""How many replied cells may be missing for the harness to recognise which they were."""
BIG_ITEMS = 150_000
"""Items of the large array: 1.2 MB, more than one log entry takes."""

SETUP = """
import os, signal, numpy
{pause}
P = 2**61 - 1
total, done, box = 1, [], {{'inner': {{}}}}
alias = box['inner']
class Tally:
    def __init__(self): self.value = 0
    def add(self, n): self.value = (self.value * 7 + n) % P; return self
tally = Tally(); twin = tally
def mix(n, k=1):
    global total
    total = (total * 31 + n * k) % P; done.append(n); return total
def answer(n):
    same = alias is box['inner'] and twin is tally
    spread = sum(alias.values()) % P
    print(f'@{{n}}', total, len(done), spread, tally.value, mix.__defaults__, same)
"""
KERNEL_SETUP = SETUP.format(pause="from time import sleep as pause")
MODEL_SETUP = SETUP.format(pause="def pause(s): pass").replace(", numpy", "")

LINES = 400
KINDS = {
    "mix": 5,
    "alias": 4,
    "redefine": 2,
    "tally": 4,
    "raise": 2,
    "gpu": 3,
    "lines": 1,
    "fill": 3,
    "rewrite": 2,
    "look": 3,
    "exit": 1,
    "segfault": 1,
}
"""How often each kind of cell comes."""
CRASHES = ("exit", "segfault")
BODIES = {
    "mix": "mix({n})",
    "alias": "alias[{n}] = mix({n})",
    "redefine": (
        "def mix(n, k={n}):\n    global total\n"
        "    total = (total * 31 + n * k) % P; done.append(n); return total\nmix({n})"
    ),
    "tally": "tally.add(mix({n})); keep_{n} = twin",
    "raise": "mix({n})",
    "gpu": "mix({n})",
    "lines": f"mix({{n}})\nfor i in range({LINES}): print('line', i)",
    "fill": "mix({n})",
    "rewrite": "mix({n})",
    "look": "mix({n})",
    "exit": "mix({n})",
    "segfault": "mix({n})",
}
BEFORE = {"gpu": "%%gpu 1\n"}
AFTER = {
    "raise": "raise KeyError('planned {n}')",
    "fill": f"big = numpy.full({BIG_ITEMS}, {{n}}); big_name = 'big'",
    "rewrite": "if 'big' in globals(): big[:] = {n}",
    "look": (
        "b = globals().get('big')\n"
        "print('#{n}', None if b is None else (int(b[0]), bool((b == b[0]).all())))"
    ),
    "exit": "os._exit(3)",
    "segfault": "os.kill(os.getpid(), signal.SIGSEGV)",
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell of one kernel's program. `code` is what the kernel is given."""

    number: int
    kind: str
    pause_s: float

    @property
    def code(self) -> str:
        """For the kernel: it says when it begins, and answers last."""
        head = BEFORE.get(self.kind, "")
        begin = f"print('@begin {self.number}', flush=True); pause({self.pause_s})"
        parts = [begin, self._body(), *self._after(), f"answer({self.number})"]
        if self.kind in ("raise", *CRASHES):
            # Its last act; the answer comes before it.
            parts[-2:] = reversed(parts[-2:])
        return head + "\n".join(parts)

    @property
    def model(self) -> str:
        """For plain Python: the same without what has no effect on the answer."""
        return f"{self._body()}\nanswer({self.number})"

    def _body(self) -> str:
        return BODIES[self.kind].format(n=self.number)

    def _after(self) -> list[str]:
        return [AFTER[self.kind].format(n=self.number)] if self.kind in AFTER else []


class Program:
    """The cells of one kernel, drawn one after the other."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._number = 0

    def next_cell(self) -> Cell:
        """Draw the next cell."""
        self._number += 1
        kind = self._rng.choices(list(KINDS), list(KINDS.values()))[0]
        return Cell(self._number, kind, round(self._rng.choice((0.0, 0.0, 0.05, 0.3)), 2))

    def last_cell(self) -> Cell:
        """A cell that shows everything."""
        self._number += 1
        return Cell(self._number, "look", 0.0)


class _Life:
    """One possible past of the namespace: the cells whose effect is there, run by plain Python."""

    def __init__(self, cells: tuple[Cell, ...]) -> None:
        self.cells: tuple[Cell, ...] = ()
        self.printed = ""
        self._names: dict[str, Any] = {"print": self._print, "__name__": "__main__"}
        exec(MODEL_SETUP, self._names)
        for cell in cells:
            self.run(cell)

    def run(self, cell: Cell) -> str:
        """Its answer."""
        self.printed = ""
        exec(cell.model, self._names)
        self.cells = (*self.cells, cell)
        return self.answer(cell)

    def answer(self, cell: Cell) -> str:
        """The line that begins with its number."""
        return answer_line(cell, self.printed)

    def _print(self, *words: object) -> None:
        self.printed += " ".join(map(str, words)) + "\n"


def answer_line(cell: Cell, text: str) -> str:
    """The answer among what a cell printed; empty if it is not there."""
    start = f"@{cell.number} "
    return next((line for line in text.splitlines() if line.startswith(start)), "")


@dataclasses.dataclass
class Lost:
    """Cells that were replied to and whose effect is missing, and whether that was said."""

    cells: list[int]
    named: bool


class Model:
    """What is right for one kernel."""

    def __init__(self) -> None:
        self._lives = [_Life(())]
        self._replied: set[int] = set()

    def replied(self, cell: Cell, text: str, notices: str) -> Lost | None:
        """A cell was replied to: keep the pasts that give its answer. Raises AssertionError.

        When none does, but one without the last few replied cells would, these were lost: that is
        the answer, with whether a notice of the kernel named it.
        """
        said = answer_line(cell, text)
        matching = [life for life in self._lives if life.run(cell) == said]
        lost = None
        if not matching:
            matching, lost = self._without_some(cell, said, notices)
        assert matching, (
            f"cell {cell.number} ({cell.kind}) answered {said!r} in {text!r}, "
            f"right would be one of {[life.answer(cell) for life in self._lives]}"
        )
        self._lives = matching[:1]
        self._replied.add(cell.number)
        return lost

    def lost(self, cell: Cell) -> None:
        """A cell ended without a reply of its own: its effect may be there."""
        if cell.kind in CRASHES:
            return
        with_it = [_Life((*life.cells, cell)) for life in self._lives]
        self._lives += with_it
        assert len(self._lives) <= 2**LONGEST_DOUBT, (
            "too many lost cells in a row to tell them apart"
        )

    def _without_some(self, cell: Cell, said: str, notices: str) -> tuple[list[_Life], Lost | None]:
        for count in range(1, FORGOTTEN_MAX + 1):
            for life in self._lives:
                cells = life.cells[:-1]
                shorter = _Life(cells[: len(cells) - count])
                if shorter.run(cell) == said:
                    missing = [c.number for c in cells[-count:] if c.number in self._replied]
                    return [shorter], Lost(missing, named="lost" in notices)
        return [], None


class Array:
    """The large array of one kernel: the values that it may have, and those that it once had."""

    def __init__(self) -> None:
        self._right: set[int | None] = {None}
        self._once: set[int | None] = {None}
        self._told = False

    def noticed(self, notices: str) -> None:
        """What the kernel said on stderr beside a cell."""
        self._told = self._told or ("lost" in notices and "big" in notices)

    def written(self, cell: Cell, *, replied: bool) -> None:
        """A cell that gives it a new value ended, replied to or not."""
        self._once.add(cell.number)
        if cell.kind == "rewrite":
            # It rewrites only what is there.
            after = {None if value is None else cell.number for value in self._right}
        else:
            after = {cell.number}
        self._right = after if replied else self._right | after

    def looked(self, cell: Cell, text: str) -> str:
        """Compare with what a look showed: `right`, `named` (its loss was) or `silent`."""
        start = f"#{cell.number} "
        shown = next(line for line in text.splitlines() if line.startswith(start))[len(start) :]
        value = None if shown == "None" else int(shown[1:].partition(",")[0])
        assert shown == "None" or shown.endswith("True)"), f"a torn array: {shown}"
        assert value in self._once, f"the array never had the value {shown}"
        told, self._told = self._told, False
        right, self._right = self._right, {value}
        if value in right:
            return "right"
        return "named" if told else "silent"
