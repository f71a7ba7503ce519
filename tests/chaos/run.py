"""One run of the harness: rounds of cells and faults, then the accounts."""

from __future__ import annotations

import collections
import dataclasses
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chaos.faults import FAULTS
from chaos.notebooks import NoOutcome, Notebook, Outcome
from chaos.program import Cell
from chaos.world import Heal, World

MOMENTS = ("before", "begin", "reply")
HOLDS_S = (0.3, 1.5, 4.0, 8.0)
KERNELS = 3
ONE_MORE = 0.25
"""How often a round has a second fault."""
QUIET = 0.6
"""How often the next round waits until all is repaired."""
LEAVES = 0.15
"""How often a browser leaves in mid-cell."""

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Planned:
    """One fault of one round. `seed` draws its target among what there is when it comes."""

    fault: str
    moment: str
    kernel: int
    hold_s: float
    seed: int


@dataclasses.dataclass(frozen=True)
class Round:
    """What is done to one round of cells."""

    faults: tuple[Planned, ...]
    quiet: bool
    leaves: int | None


def plan(rng: random.Random, only: tuple[str, ...] = ()) -> Round:
    """Draw a round: the same from the same seed, whatever happens meanwhile."""
    names = [name for name in FAULTS if not only or name in only]
    weights = [FAULTS[name].weight for name in names]
    faults: list[Planned] = []
    for _ in range(2 if rng.random() < ONE_MORE else 1):
        drawn = Planned(
            fault=rng.choices(names, weights)[0],
            moment=rng.choice(MOMENTS),
            kernel=rng.randrange(KERNELS),
            hold_s=rng.choice(HOLDS_S),
            seed=rng.getrandbits(32),
        )
        # What ends the server leaves nothing for another one to be injected into.
        if not any(FAULTS[each.fault].ends_server for each in (*faults, drawn)) or not faults:
            faults.append(drawn)
    leaves = rng.randrange(KERNELS) if rng.random() < LEAVES else None
    if any(FAULTS[each.fault].ends_server for each in faults):
        leaves = None
    return Round(tuple(faults), rng.random() < QUIET, leaves)


def drawn_for(seed: int, duration_s: float, only: tuple[str, ...] = ()) -> Iterator[Round]:
    """Rounds from a seed, until the time is over."""
    rng = random.Random(seed)
    until = time.monotonic() + duration_s
    while time.monotonic() < until:
        yield plan(rng, only)


@dataclasses.dataclass
class Report:
    """The accounts of a run."""

    seed: int
    rounds: int = 0
    outcomes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    faults: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    arrays: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    repairs_s: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    forgotten_named: list[str] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)

    def lines(self) -> list[str]:
        """For people."""
        told = [f"seed {self.seed}: {self.rounds} rounds"]
        told += [f"  cells, {how}: {count}" for how, count in sorted(self.outcomes.items())]
        told.append(f"  effects of replied cells lost, named: {len(self.forgotten_named)}")
        told += [f"  large arrays looked at, {how}: {n}" for how, n in sorted(self.arrays.items())]
        for fault, count in sorted(self.faults.items()):
            times = self.repairs_s.get(fault, [])
            repair = (
                f", all whole {statistics.median(times):.1f} s after its end at the median, "
                f"{max(times):.1f} s at most"
                if times
                else ""
            )
            told.append(f"  {fault}: {count}{repair}")
        told += [f"  PROBLEM: {problem}" for problem in self.problems]
        return told


class Run:
    """One cluster from its start to its end, round by round."""

    def __init__(self, world: World, seed: int, say: Say) -> None:
        self._world = world
        self._say = say
        self.report = Report(seed)
        self._notebooks: list[Notebook] = []
        self._healing: list[threading.Timer] = []
        self._lock = threading.Lock()
        self._server_ended = False
        self._ended_in_round = False
        self._ended_s: float | None = None
        """When the round's fault was over: at once, or when it was healed."""

    def go(self, rounds: Iterable[Round]) -> Report:
        """All of it; what goes wrong is in the report."""
        try:
            self._go(rounds)
        except Exception as error:  # noqa: BLE001 - whatever it is, the accounts are shown
            self.report.problems.append(f"{type(error).__name__}: {error}")
            self.report.problems.append(f"what everything did is in {self._world.dump()}")
        finally:
            for timer in self._healing:
                timer.join()
            for notebook in self._notebooks:
                self.report.arrays += notebook.array_losses
                notebook.close()
            self._world.close()
        return self.report

    def _go(self, rounds: Iterable[Round]) -> None:
        self._world.start()
        for number in range(KERNELS):
            notebook = Notebook(self._world, random.Random(f"{self.report.seed} {number}"))
            self._world.kernels.append(notebook.kernel)
            self._notebooks.append(notebook)
            notebook.set_up()
        self._world.until_whole()
        with ThreadPoolExecutor(KERNELS) as threads:
            for drawn in rounds:
                self._round(threads, drawn)
        self._world.until_whole()
        self._finish()

    # ---- a round --------------------------------------------------------------------------------

    def _round(self, threads: ThreadPoolExecutor, drawn: Round) -> None:
        self.report.rounds += 1
        self._server_ended, self._ended_s = False, None
        self._say(f"round {self.report.rounds}: {drawn}")
        for planned in drawn.faults:
            if planned.moment == "before":
                self._inject(planned)
        self._reopen_if_ended()
        cells = [notebook.program.next_cell() for notebook in self._notebooks]
        jobs = [
            threads.submit(self._cell, number, cell, drawn) for number, cell in enumerate(cells)
        ]
        outcomes = [job.result() for job in jobs]
        self._heal()
        self._reopen_if_ended()
        for notebook, cell, outcome in zip(self._notebooks, cells, outcomes, strict=True):
            self._say(f"  {cell.kind} {cell.number}: {outcome.how} {outcome.sentence}")
            self._account(notebook, cell, outcome)
        if drawn.quiet:
            self._world.until_whole()
            if len(drawn.faults) == 1 and self._ended_s is not None:
                times = self.report.repairs_s.setdefault(drawn.faults[0].fault, [])
                times.append(time.monotonic() - self._ended_s)

    def _cell(self, number: int, cell: Cell, drawn: Round) -> Outcome:
        notebook = self._notebooks[number]

        def act(moment: str) -> None:
            for planned in drawn.faults:
                if planned.moment == moment and planned.kernel == number:
                    self._inject(planned)
            if moment == "begin" and drawn.leaves == number:
                notebook.leave()

        return notebook.run(cell, at_begin=lambda: act("begin"), at_reply=lambda: act("reply"))

    def _account(self, notebook: Notebook, cell: Cell, outcome: Outcome) -> None:
        self.report.outcomes[outcome.how] += 1
        if outcome.how == "server gone":
            assert self._ended_in_round, f"the connection broke while the server lived: {outcome}"
        lost = notebook.judge(cell, outcome)
        if lost is not None:
            told = f"cells {lost.cells} of {notebook.kernel}, seen at cell {cell.number}"
            if lost.named:
                self.report.forgotten_named.append(told)
            else:
                self.report.problems.append(f"effects lost and not named: {told}")
        assert max(notebook.replies.values(), default=1) == 1, "a cell was replied to twice"

    # ---- faults ---------------------------------------------------------------------------------

    def _inject(self, planned: Planned) -> None:
        fault = FAULTS[planned.fault]
        kernel = self._world.kernels[planned.kernel]
        with self._lock:
            if self._server_ended:
                return
            self._server_ended = fault.ends_server
            what, heal = fault.inject(self._world, random.Random(planned.seed), kernel)
            self.report.faults[planned.fault] += 1
            self._ended_s = time.monotonic()
        self._say(f"  {planned.fault}: {what}")
        if heal is not None:
            self._heal_later(planned, heal)

    def _heal_later(self, planned: Planned, heal: Heal) -> None:
        def end() -> None:
            heal()
            self._ended_s = time.monotonic()

        timer = threading.Timer(planned.hold_s, end)
        timer.start()
        self._healing.append(timer)

    def _heal(self) -> None:
        for timer in self._healing:
            timer.join()
        self._healing.clear()

    def _reopen_if_ended(self) -> None:
        self._ended_in_round = self._server_ended
        if self._server_ended:
            self._server_ended = False
            self._world.start_server()
            for notebook in self._notebooks:
                notebook.reopen()

    # ---- the end --------------------------------------------------------------------------------

    def _finish(self) -> None:
        for notebook in self._notebooks:
            cell = notebook.program.last_cell()
            self._account(notebook, cell, notebook.run(cell))
            notebook.close()
        silent = sum(notebook.array_losses["silent"] for notebook in self._notebooks)
        if silent:
            self.report.problems.append(f"{silent} losses of large arrays were not named")
        self.report.problems += self._world.end()


def run(
    folder: Path,
    seed: int,
    rounds: Iterable[Round],
    say: Say = lambda _line: None,
    *,
    scheduling: Sequence[str] = (),
) -> Report:
    """A run in `folder`, which must be empty; `seed` draws the cells. See `World` for the rest."""
    return Run(World(folder, scheduling=scheduling), seed, say).go(rounds)


__all__ = ["NoOutcome", "Report", "run"]
