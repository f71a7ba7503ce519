"""The harness itself: what it must notice, it notices; and a short run of it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from chaos.faults import FAULTS
from chaos.links import BEHIND, Links
from chaos.program import KINDS, Array, Cell, Model, Program, _Life
from chaos.run import Planned, Round, plan, run
from live_rig import HANG_S

MIX = [Cell(number, "mix", 0.0) for number in range(10)]
SEED = 5


def planned(fault: str, moment: str = "begin", kernel: int = 0, hold_s: float = 0.5) -> Planned:
    return Planned(fault, moment, kernel, hold_s, seed=kernel)


SHORT = (
    Round((planned("executor's host killed"), planned("store away", "before")), False, None),
    Round((planned("link one-way", "before", hold_s=1.0),), quiet=False, leaves=1),
    Round((planned("replica stopped"), planned("host cut off", kernel=1)), False, None),
    Round((planned("disk full", "before"), planned("executor killed", "reply")), False, 2),
    Round((planned("machine killed"),), quiet=True, leaves=None),
)
"""One round each: what is broken, when, and whose browser leaves."""


def answers(*cells: Cell) -> list[str]:
    """What a kernel without fault answers."""
    life = _Life(())
    return [life.run(cell) for cell in cells]


def test_right_answers_are_right() -> None:
    model = Model()
    cells = [Cell(n, kind, 0.0) for n, kind in enumerate(KINDS) if kind not in ("exit", "segfault")]
    for cell, said in zip(cells, answers(*cells), strict=True):
        assert model.replied(cell, f"noise\n{said}\n", "") is None


def test_a_cell_that_ran_twice_is_noticed() -> None:
    model = Model()
    model.replied(MIX[1], answers(MIX[1])[0], "")
    with pytest.raises(AssertionError, match="cell 2"):
        model.replied(MIX[2], answers(MIX[1], MIX[1], MIX[2])[-1], "")


def test_a_lost_cell_may_have_had_its_effect_or_not() -> None:
    for had in ((), (MIX[2],)):
        model = Model()
        model.replied(MIX[1], answers(MIX[1])[0], "")
        model.lost(MIX[2])
        assert model.replied(MIX[3], answers(MIX[1], *had, MIX[3])[-1], "") is None
        # Once an answer has told which it was, the other is wrong.
        other = (MIX[2],) if not had else ()
        with pytest.raises(AssertionError):
            Model.replied(model, MIX[4], answers(MIX[1], *other, MIX[3], MIX[4])[-1], "")


@pytest.mark.parametrize("notices", ["", "the newest value of total was lost with its replica"])
def test_a_replied_cell_whose_effect_is_missing_is_a_loss(notices: str) -> None:
    model = Model()
    for cell, said in zip(MIX[1:3], answers(*MIX[1:3]), strict=True):
        model.replied(cell, said, "")
    lost = model.replied(MIX[3], answers(MIX[1], MIX[3])[-1], notices)
    assert lost is not None
    assert lost.cells == [2]
    assert lost.named == bool(notices)


def test_an_array_that_went_back_must_have_been_named() -> None:
    for named in (True, False):
        array = Array()
        array.written(Cell(1, "fill", 0.0), replied=True)
        array.written(Cell(2, "rewrite", 0.0), replied=True)
        if named:
            array.noticed("the newest value of big was lost with its replica")
        found = array.looked(Cell(3, "look", 0.0), "#3 (1, True)\n")
        assert found == ("named" if named else "silent")
        assert array.looked(Cell(4, "look", 0.0), "#4 (1, True)\n") == "right"


def test_a_torn_array_is_noticed() -> None:
    array = Array()
    array.written(Cell(1, "fill", 0.0), replied=True)
    with pytest.raises(AssertionError, match="torn"):
        array.looked(Cell(2, "look", 0.0), "#2 (1, False)\n")


def test_the_same_seed_draws_the_same_cells_and_faults() -> None:
    def drawn() -> list[object]:
        rng, program = random.Random(5), Program(random.Random(5))
        return [(plan(rng), program.next_cell()) for _ in range(50)]

    assert drawn() == drawn()
    named = {fault.fault for one, _ in drawn() for fault in one.faults}  # type: ignore[misc]
    assert len(named) > len(FAULTS) / 2


def test_links_are_cut_held_and_healed(tmp_path: Path) -> None:
    links = Links(tmp_path, ["a", "b"])
    links.start()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(100):
                writer.write(data)
        except ConnectionError:
            return
        finally:
            writer.close()

    async def story() -> None:
        async with asyncio.timeout(HANG_S):
            server = await asyncio.start_unix_server(echo, f"{tmp_path}/b.peer{BEHIND}")
            reader, writer = await asyncio.open_unix_connection(f"{tmp_path}/b.peer")
            writer.write(b"one")
            assert await reader.readexactly(3) == b"one"
            # This process is nobody's agent: its host has no name.
            await asyncio.to_thread(links.hold, "b", "")
            writer.write(b"two")
            held = asyncio.create_task(reader.readexactly(3))
            done, _ = await asyncio.wait({held}, timeout=0.1)
            assert not done
            await asyncio.to_thread(links.heal)
            assert await held == b"two"
            await asyncio.to_thread(links.cut, "", "b")
            assert await reader.read() == b""
            writer.close()
            reader, writer = await asyncio.open_unix_connection(f"{tmp_path}/b.peer")
            assert await reader.read() == b""
            writer.close()
            await asyncio.to_thread(links.heal)
            reader, writer = await asyncio.open_unix_connection(f"{tmp_path}/b.peer")
            writer.write(b"six")
            assert await reader.readexactly(3) == b"six"
            writer.close()
            await writer.wait_closed()
            server.close()
            await server.wait_closed()

    try:
        asyncio.run(story())
    finally:
        links.stop()


@pytest.mark.apart
def test_a_short_run_loses_nothing_without_a_word_and_leaves_nothing(tmp_path: Path) -> None:
    report = run(tmp_path, SEED, SHORT)
    assert report.problems == [], "\n".join(report.lines())
    assert sum(report.outcomes.values()) == (len(SHORT) + 1) * 3
    assert set(report.faults) == {each.fault for one in SHORT for each in one.faults}
