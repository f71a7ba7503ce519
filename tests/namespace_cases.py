"""Cases for the replicated namespace, as data: a few cells each, and what may become of them.

A file of cases is text:

    === name of the case
    :: covers: kind 25, scenario 23, user case 27
    :: holds: g | generator | a generator that has started cannot be copied
    :: do: Run over it in the cell that makes it.
    g = (n for n in range(3))
    ----
    print(next(g))

Cells are separated by `----`. Lines that begin with `::` stand before the first cell:

- `covers`: numbers of the lists in `namespace_lists.py`
- `holds`: name, type and reason of what keeps the kernel on its executor; once per name
- `do`: what a user does about that, for docs/state.md
- `differs`: what is lost on the way, by design; `shows` is what the last cell prints then
- `broken`: what is lost on the way and should not be; the test must fail
- `apart`: names whose object graphs are not compared, and why
- `needs`: libraries without which the case is skipped
- `fresh`: the libraries are loaded by the cells, not beforehand
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from namespace_pairs import LIBRARIES

FOLDER = Path(__file__).parent / "kernel" / "conformance" / "cases"


@dataclass(frozen=True)
class Held:
    """What keeps a kernel on its executor."""

    name: str
    type_name: str
    reason: str

    @property
    def notice(self) -> str:
        """What the user reads."""
        return (
            f"NotebookOS: {self.name} ({self.type_name}) cannot travel to another replica: "
            f"{self.reason}."
        )


@dataclass
class Case:
    """One case."""

    topic: str
    name: str
    cells: list[str] = field(default_factory=list)
    covers: list[str] = field(default_factory=list)
    holds: list[Held] = field(default_factory=list)
    do: str = ""
    differs: str = ""
    shows: str = ""
    broken: str = ""
    apart: set[str] = field(default_factory=set)
    needs: list[str] = field(default_factory=list)
    fresh: bool = False

    @property
    def uses_libraries(self) -> bool:
        """Whether the replicas have the large libraries loaded beforehand."""
        text = "\n".join(self.cells)
        return not self.fresh and any(each.partition(".")[0] in text for each in LIBRARIES)


def read_cases() -> list[Case]:
    """All cases, by topic and in their order."""
    return [
        case
        for file in sorted(FOLDER.glob("*.txt"))
        for case in parse(file.stem, file.read_text(encoding="utf-8"))
    ]


def parse(topic: str, text: str) -> list[Case]:
    """The cases of one file."""
    return [_parse_case(topic, part) for part in ("\n" + text).split("\n=== ")[1:]]


def _parse_case(topic: str, text: str) -> Case:
    name, _, rest = text.partition("\n")
    case = Case(topic, name.strip())
    lines = rest.splitlines()
    while lines and lines[0].startswith("::"):
        key, _, value = lines.pop(0)[2:].partition(":")
        _set(case, key.strip(), value.strip())
    cells = "\n".join(lines).split("\n----\n")
    case.cells = [cell.strip("\n") for cell in cells]
    return case


def _set(case: Case, key: str, value: str) -> None:
    match key:
        case "covers":
            case.covers += [each.strip() for each in value.split(",")]
        case "holds":
            case.holds.append(Held(*(each.strip() for each in value.split("|"))))
        case "apart":
            case.apart |= {each.strip() for each in value.partition("(")[0].split(",")}
        case "needs":
            case.needs += [each.strip() for each in value.split(",")]
        case "shows":
            case.shows = value.replace("\\n", "\n")
        case "do" | "differs" | "broken":
            setattr(case, key, value)
        case "fresh":
            case.fresh = True
        case _:
            raise ValueError(f"{case.topic}, {case.name}: no such line: {key}")
