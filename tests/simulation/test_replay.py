"""A journal replays to the same figures and decisions, and becomes a workload of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import host_spec

from notebookos_ext.cluster.actions import Action
from notebookos_ext.cluster.events import (
    CellSubmitted,
    Event,
    HostJoined,
    HostLost,
    KernelRequested,
    Ticked,
)
from notebookos_ext.cluster.model import Cell, CellId, HostId, KernelId, KernelSpec
from notebookos_ext.cluster.options import Options
from notebookos_ext.cluster.scheduler import Scheduler
from notebookos_ext.errors import InvalidRequest
from notebookos_ext.simulation.experiment import read_workload, run_plan
from notebookos_ext.simulation.faults import COMMON
from notebookos_ext.simulation.machines import HostShape
from notebookos_ext.simulation.plans import Plan
from notebookos_ext.simulation.replay import replay
from notebookos_ext.simulation.soak import small_workload
from notebookos_ext.storage.journal import VERSION, JournalHead, JournalWriter

PLAN = Plan(shape=HostShape(gpus=4), hosts_min=3, hosts_max=3, faults=COMMON)


def test_a_simulated_day_replays_to_the_same_figures(tmp_path: Path) -> None:
    path = tmp_path / "day.journal"
    outcome = run_plan(small_workload(11), PLAN, journal=path)
    (life,) = replay(path, check_all=True)
    assert life.differing == []
    assert life.events == outcome.run.events
    assert life.recorder.cells == outcome.run.recorder.cells
    assert life.figures().at_once == outcome.figures.at_once
    assert life.recorder.bound.values == outcome.run.recorder.bound.values


def test_a_day_becomes_a_workload_for_other_plans(tmp_path: Path) -> None:
    path = tmp_path / "day.journal"
    planned = small_workload(12)
    run_plan(planned, PLAN, journal=path)
    workload = read_workload(str(path))
    assert workload.cell_count == planned.cell_count
    was = {f"k{s.session}": [c.duration_s for c in s.cells] for s in planned.sessions}
    for session in workload.sessions:
        # What it took includes the commit of the end.
        assert [c.duration_s for c in session.cells] == pytest.approx(was[session.session], abs=0.5)
    again = run_plan(workload, PLAN)
    assert again.run.unfinished_cells == 0


def note(journal: JournalWriter, scheduler: Scheduler, event: Event) -> list[Action]:
    actions = scheduler.handle(event)
    journal.append(event, actions)
    return actions


def test_each_life_begins_anew_and_times_count_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "two.journal"
    for start_s in (1000.0, 5000.0):
        scheduler = Scheduler()
        with JournalWriter(
            path, JournalHead(VERSION, "replicated", 8, Options(), start_s)
        ) as journal:
            note(journal, scheduler, HostJoined(host_spec("host-1", 4), start_s + 10))
            note(journal, scheduler, Ticked(start_s + 3610))
    first, second = replay(path)
    assert first.length_s == second.length_s == 3610
    assert first.figures().provisioned_gpu_h == pytest.approx(4.0)


def test_devices_of_virtual_hosts_count_once(tmp_path: Path) -> None:
    path = tmp_path / "shared.journal"
    scheduler = Scheduler()
    with JournalWriter(path, JournalHead(VERSION, "replicated", 8, Options(), 0.0)) as journal:
        for host in ("host-1", "host-2"):
            note(journal, scheduler, HostJoined(host_spec(host, ["gpu-a", "gpu-b"]), 0.0))
        note(journal, scheduler, HostLost(HostId("host-1"), "first", "gone", 1800.0))
        note(journal, scheduler, HostLost(HostId("host-2"), "first", "gone", 3600.0))
        note(journal, scheduler, Ticked(7200.0))
    (life,) = replay(path)
    assert life.figures().provisioned_gpu_h == pytest.approx(2.0)


def test_a_decision_that_differs_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "other.journal"
    scheduler = Scheduler()
    with JournalWriter(path, JournalHead(VERSION, "replicated", 8, Options(), 0.0)) as journal:
        for number in (1, 2, 3):
            note(journal, scheduler, HostJoined(host_spec(f"host-{number}", 2), 0.0))
        # Another program would have asked for nothing here.
        journal.append(KernelRequested(KernelSpec(KernelId("k")), 1.0), [])
        cell = Cell(KernelId("nobody"), CellId("c"))
        note(journal, scheduler, CellSubmitted(cell, 2.0))
    (life,) = replay(path)
    assert life.differing == [4]


def test_a_journal_without_kernels_is_no_workload(tmp_path: Path) -> None:
    path = tmp_path / "empty.journal"
    with JournalWriter(path, JournalHead(VERSION, "replicated", 8, Options(), 0.0)):
        pass
    with pytest.raises(InvalidRequest, match="no kernel"):
        read_workload(str(path))
