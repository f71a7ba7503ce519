"""The cases cover every kind, scenario and user case; docs/state.md says what becomes of each."""

from __future__ import annotations

import os
from pathlib import Path

from namespace_cases import read_cases
from namespace_lists import KINDS, SCENARIOS, TREATMENTS, USER_CASES, ids, treatment
from namespace_page import page

CASES = read_cases()
PAGE = Path(__file__).parents[3] / "docs" / "state.md"


def test_there_are_enough_cases_and_each_has_a_name_of_its_own() -> None:
    names = [case.name for case in CASES]
    assert len(names) >= 180
    assert sorted(names) == sorted(set(names))


def test_everything_in_the_lists_is_covered() -> None:
    assert (len(KINDS), len(SCENARIOS), len(USER_CASES)) == (102, 50, 30)
    covered = {each for case in CASES for each in case.covers}
    assert covered == set(ids())


def test_what_the_lists_call_held_is_held_and_nothing_else() -> None:
    assert sorted(kind for kinds in TREATMENTS.values() for kind in kinds) == sorted(KINDS)
    for kind in KINDS:
        cases = [case for case in CASES if f"kind {kind}" in case.covers]
        held = any(case.holds for case in cases)
        assert held == (treatment(kind) == "held"), (kind, KINDS[kind])


def test_each_case_that_holds_a_kernel_says_what_to_do() -> None:
    assert [case.name for case in CASES if case.holds and not case.do] == []


def test_the_page_tells_what_the_cases_tell() -> None:
    if os.environ.get("REWRITE_GOLDENS"):
        PAGE.write_text(page(CASES), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page(CASES), "REWRITE_GOLDENS=1 writes it anew"
