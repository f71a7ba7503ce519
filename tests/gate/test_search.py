"""Every state that a small group can reach within bounds keeps what Raft promises."""

from __future__ import annotations

import sys

import msgspec
import pytest
from gate.bounds import Bounds
from gate.scopes import SHORT
from gate.search import Search, State


@pytest.mark.parametrize("name", SHORT)
def test_no_reachable_state_breaks_a_promise(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    bounds = SHORT[name]
    report = Search(bounds).run()
    with capsys.disabled():
        ended = "there are no others" if report.exhausted else "not all that there are"
        sys.stdout.write(f"\n{name}: {bounds.told()}: {report.states:,} states; {ended}")
    assert report.found is None, report.found.told()
    assert report.exhausted == (bounds.states is None)


def reachable(search: Search) -> set[State]:
    """All states, by a search that is as simple as can be."""
    found, new = {search.start()}, [search.start()]
    while new:
        for state, _, _, error in search.successors(new.pop()):
            assert not error
            if state not in found:
                found.add(state)
                new.append(state)
    return found


def test_renaming_members_loses_no_state() -> None:
    bounds = Bounds(terms=1, commands=1, crashes=1, duplicates=0, in_flight=1, symmetric=False)
    plain = Search(bounds)
    reduced = Search(msgspec.structs.replace(bounds, symmetric=True))
    named = {reduced.canonical(state) for state in reachable(reduced)}
    everything = reachable(plain)
    assert reduced.run().states == len(named)
    assert plain.run().states == len(everything)
    assert len(named) < len(everything) <= 6 * len(named)


def test_a_broken_promise_is_found_with_its_shortest_course(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("notebookos_ext.cluster.consensus.election.majority", lambda _: 1)
    found = Search(Bounds(commands=0, crashes=0, duplicates=0, in_flight=1)).run().found
    assert found is not None
    assert found.what == "election safety: two leaders in term 1"
    assert found.steps == ("a: elect", "b: elect")
