"""The faults that are planted, and how one gets into a copy of the package.

They stand in the text files beside this one. Each is

    == NAME | FILE, relative to notebookos_ext/
    The rule that it breaks, as a sentence about correct behaviour.
    @@
     a line that stays
    -a line that goes
    +a line that comes

with more hunks if need be. The lines that stay or go must occur in the file exactly once, so that a
fault whose place has moved on is noticed. What stands before the first fault of a file says how the
faults came about.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

HERE = Path(__file__).parent
BLIND = ("elections", "replication", "reads", "storage", "membership", "snapshots")
"""Files whose faults were written by somebody who had not seen the tests."""


class FaultMoved(Exception):
    """The source has changed so that a fault does not fit any more; the list must follow it."""


class Fault(msgspec.Struct, frozen=True):
    """One rule broken in one file; `edits` are pairs of old and new text."""

    name: str
    file: str
    rule: str
    edits: tuple[tuple[str, str], ...]
    blind: bool

    def plant(self, package: Path) -> None:
        """Change the copy of the package in the folder `package`.

        Raises:
            FaultMoved: an old text is not there, or is there more than once.
        """
        path = package / self.file
        if not path.exists():
            raise FaultMoved(f"{self.name}: there is no {self.file}")
        text = path.read_text(encoding="utf-8")
        for old, new in self.edits:
            count = text.count(old)
            if count != 1:
                raise FaultMoved(
                    f"{self.name}: {self.file} has this text {count} times, not once:\n{old}"
                )
            text = text.replace(old, new)
        path.write_text(text, encoding="utf-8")


def all_faults() -> list[Fault]:
    """Every fault, in the order of the files."""
    found = [fault for path in sorted(HERE.glob("*.txt")) for fault in parse(path)]
    names = [fault.name for fault in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"two faults have the same name: {', '.join(sorted(twice))}")
    return found


def parse(path: Path) -> Iterator[Fault]:
    """The faults of one file."""
    for block in path.read_text(encoding="utf-8").split("\n== ")[1:]:
        title, _, rest = block.partition("\n")
        name, file = (part.strip() for part in title.split("|"))
        rule, *hunks = rest.split("\n@@\n")
        edits = tuple(_edit(hunk.rstrip("\n").split("\n")) for hunk in hunks)
        yield Fault(name, file, " ".join(rule.split()), edits, path.stem in BLIND)


def _edit(lines: list[str]) -> tuple[str, str]:
    """Old and new text of a hunk; an empty line stands for an empty line that stays."""
    old = "".join(f"{line[1:]}\n" for line in lines if line[:1] in {"", " ", "-"})
    new = "".join(f"{line[1:]}\n" for line in lines if line[:1] in {"", " ", "+"})
    return old, new
