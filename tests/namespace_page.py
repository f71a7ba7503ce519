"""Writes docs/state.md: what becomes of a namespace between cells, from the cases that show it."""

from __future__ import annotations

from collections.abc import Iterable

from namespace_cases import Case
from namespace_lists import KINDS, SCENARIOS, USER_CASES, treatment

HEAD = """\
# What travels between replicas, and what does not

<!-- tests/kernel/conformance/test_coverage.py writes this page from the cases beside it, with
     REWRITE_GOLDENS=1, and fails when the two differ. -->

After each cell the other replicas of a kernel get what the cell changed, so that the next cell may
run on any of them. {cases} cases hold that: each is a few cells that run with the executor changing
after every one, and on one plain IPython process. Outputs must be equal, and so must the graph of
all objects that names lead to, with who is who.

## Kinds of objects

- *copied*: as the object itself offers it for pickling
- *rebuilt*: by the replica's own rules, so that it goes on sharing what it shared
- *re-created*: an equal one is made anew (a lock, a pool, a file opened again at the same place)
- *by name*: every replica has its own, and finds it
- *held*: it stays where it is, and the kernel with it; see below
"""

HELD = """
## What holds a kernel

While a name leads to such an object, the kernel stays on the replica that has it, and its cells
run there. The notice is printed below the cell:

    NotebookOS: g (generator) cannot travel to another replica: a generator that has started
    cannot be copied.

The kernel is free as soon as the name is gone. A result that only `Out` has holds it while it is
`_`, `__` or `___`. Everything else in the namespace travels meanwhile: if the replica is lost, the
other names are there, and using the lost one is an error that says what it was. What other
libraries refuse to pickle is held in the same way, with the library's own words as the reason.

"""

DIFFERS = """
## What differs, by design
"""

BROKEN = """
## What does not work yet

Each has a case that fails, and has to be taken off this list when it does not.
"""

SCENARIO = """
## Ways to change a namespace
"""

USERS = """
## What users of other tools met
"""


def page(cases: list[Case]) -> str:
    """The whole page."""
    parts = [HEAD.format(cases=len(cases)), *_kinds(cases), HELD, *_held(cases)]
    parts += [DIFFERS, *(f"- {_sentence(case.differs)}" for case in cases if case.differs)]
    if any(case.broken for case in cases):
        reasons = dict.fromkeys(case.broken for case in cases if case.broken)
        parts += [BROKEN, *(f"- {_sentence(reason)}" for reason in reasons)]
    parts += [SCENARIO, *_numbered("scenario", SCENARIOS, cases)]
    parts += [USERS, *_numbered("user case", USER_CASES, cases)]
    return "\n".join(parts) + "\n"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [_row(*head), "|" + "---|" * len(head), *(_row(*row) for row in rows)]


def _where(covered: str, cases: list[Case]) -> str:
    return "; ".join(f"{case.topic}: {case.name}" for case in cases if covered in case.covers)


def _kinds(cases: list[Case]) -> list[str]:
    rows = (
        (str(number), kind, treatment(number), _where(f"kind {number}", cases))
        for number, kind in KINDS.items()
    )
    return _table(("", "kind", "treatment", "case"), rows)


def _held(cases: list[Case]) -> list[str]:
    rows = []
    for case in cases:
        if case.holds:
            reasons = dict.fromkeys(f"{each.type_name}: {each.reason}" for each in case.holds)
            rows.append((case.name, "; ".join(reasons), case.do))
    return _table(("what", "type and reason in the notice", "what to do"), rows)


def _numbered(word: str, titles: dict[int, str], cases: list[Case]) -> list[str]:
    rows = (
        (str(number), title, _where(f"{word} {number}", cases)) for number, title in titles.items()
    )
    return _table(("", "what", "case"), rows)
