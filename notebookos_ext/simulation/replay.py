"""Replays the journal of a live server: the same figures, the same decisions, or a workload of it.

Each scheduler that a journal tells of is made anew and handed the same events; where it asks for
something else than the live one did, the program has changed in between.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from notebookos_ext.cluster import events as e
from notebookos_ext.cluster.invariants import check
from notebookos_ext.cluster.model import DeviceId, HostId, KernelId
from notebookos_ext.cluster.scheduler import Scheduler
from notebookos_ext.errors import InvalidRequest
from notebookos_ext.simulation.figures import Figures, figures
from notebookos_ext.simulation.measures import CellRecord, Recorder
from notebookos_ext.simulation.workload import (
    HOUR_S,
    Bounds,
    PlannedSession,
    Workload,
    check_workload,
    close_loop,
)
from notebookos_ext.storage.journal import JournalHead, actions_crc, read_journal


@dataclass
class Replayed:
    """The life of one scheduler, from its beginning to the next one's or the journal's end."""

    head: JournalHead
    scheduler: Scheduler
    recorder: Recorder = field(default_factory=Recorder)
    events: int = 0
    length_s: float = 0.0
    differing: list[int] = field(default_factory=list)
    """Numbers of the events (from 1) where it asks for something else than the live one did."""
    spans: dict[KernelId, tuple[float, float | None, int]] = field(default_factory=dict)
    """When each kernel was there, and how many GPUs its cells ask for."""
    devices: dict[HostId, tuple[DeviceId, ...]] = field(default_factory=dict)
    listed: Counter[DeviceId] = field(default_factory=Counter)

    def figures(self) -> Figures:
        """The figures of this life; what reservation would have held is taken from its kernels."""
        reserved = self.recorder.subscribed.integral(self.length_s) / HOUR_S
        used = self.recorder.running.integral(self.length_s) / HOUR_S
        open_cells = len(self.recorder.open_cells)
        return figures(
            self.recorder, Bounds(reserved, used), self.length_s, unfinished_cells=open_cells
        )

    def workload(self, name: str) -> Workload:
        """What its users did, to be run again under another policy. Raises InvalidRequest.

        Cells that never ran are left out, and interrupted ones count as long as they ran.
        """
        cells: dict[KernelId, list[CellRecord]] = defaultdict(list)
        for record in self.recorder.cells:
            cells[record.kernel].append(record)
        sessions = tuple(
            PlannedSession(
                kernel,
                start_s,
                self.length_s if end_s is None else end_s,
                gpus,
                close_loop(
                    [
                        (c.submitted_s, c.ended_s - c.started_s, c.gpus)
                        for c in cells[kernel]
                        if c.ended_s is not None
                        and c.started_s is not None
                        and c.ended_s > c.started_s
                    ]
                ),
            )
            for kernel, (start_s, end_s, gpus) in self.spans.items()
        )
        if not sessions:
            raise InvalidRequest(f"no kernel was started in {name}; there is nothing to run again")
        return check_workload(Workload(name, self.length_s, sessions, f"the journal {name}"))


def replay(path: Path, *, check_all: bool = False) -> list[Replayed]:
    """Every life in the journal, at least one.

    Raises what `read_journal` does, InvalidRequest for none, and Defect for a broken rule.
    """
    lives: list[Replayed] = []
    for record in read_journal(path):
        if isinstance(record, JournalHead):
            scheduler = Scheduler(record.policy, max_hosts=record.max_hosts, options=record.options)
            lives.append(Replayed(record, scheduler))
            continue
        life, event = lives[-1], record.event
        actions = life.scheduler.handle(event)
        if check_all:
            check(life.scheduler.state)
        life.events += 1
        if actions_crc(actions) != record.actions_crc:
            life.differing.append(life.events)
        shifted = msgspec.structs.replace(event, at=event.at - life.head.started_at)
        life.length_s = max(life.length_s, shifted.at)
        _note(life, shifted)
        life.recorder.observe(shifted, actions)
    if not lives:
        raise InvalidRequest(f"the journal {path} is empty; there is nothing to replay")
    return lives


def _note(life: Replayed, event: e.Event) -> None:
    """What a recorder is not told by events alone: who was there."""
    match event:
        case e.HostJoined():
            _list_devices(life, event.spec.host, (), event.at)
            devices = tuple(spec.device for spec in event.spec.devices)
            _list_devices(life, event.spec.host, devices, event.at)
        case e.HostLost():
            _list_devices(life, event.host, (), event.at)
        case e.KernelRequested():
            gpus = event.spec.gpus_per_cell
            life.spans.setdefault(event.spec.kernel, (event.at, None, gpus))
        case e.KernelStopped() if event.kernel in life.spans:
            start_s, _, gpus = life.spans[event.kernel]
            life.spans[event.kernel] = (start_s, event.at, gpus)
        case _:
            pass


def _list_devices(life: Replayed, host: HostId, devices: tuple[DeviceId, ...], at_s: float) -> None:
    """Virtual hosts may list the same device: it counts once."""
    before = len(+life.listed)
    life.listed.subtract(life.devices.get(host, ()))
    life.listed.update(devices)
    life.devices[host] = devices
    life.recorder.provisioned.add(at_s, len(+life.listed) - before)
