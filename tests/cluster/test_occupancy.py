"""Stretches of time in which as many GPUs are there and bound."""

from __future__ import annotations

from notebookos_ext.cluster.occupancy import NOTE_S, GpuStretch, Occupancy


def test_a_stretch_ends_when_a_number_changes() -> None:
    gpus = Occupancy()
    assert gpus.note(10.0, provisioned=8, bound=0) == []
    assert gpus.note(11.0, provisioned=8, bound=0) == []
    assert gpus.note(12.0, provisioned=8, bound=2) == [GpuStretch(10.0, 12.0, 8, 0)]
    assert gpus.note(13.0, provisioned=4, bound=2) == [GpuStretch(12.0, 13.0, 8, 2)]
    assert gpus.finish(20.0) == [GpuStretch(13.0, 20.0, 4, 2)]


def test_a_long_stretch_is_written_down_as_it_goes_on() -> None:
    gpus = Occupancy()
    gpus.note(0.0, provisioned=8, bound=1)
    assert gpus.note(NOTE_S, provisioned=8, bound=1) == [GpuStretch(0.0, NOTE_S, 8, 1)]
    assert gpus.note(NOTE_S + 1, provisioned=8, bound=1) == []
    assert gpus.finish(NOTE_S + 2) == [GpuStretch(0.0, NOTE_S + 2, 8, 1)]


def test_what_changes_twice_at_one_time_leaves_no_empty_stretch() -> None:
    gpus = Occupancy()
    gpus.note(5.0, provisioned=8, bound=0)
    assert gpus.note(5.0, provisioned=8, bound=1) == []
    assert gpus.note(6.0, provisioned=8, bound=0) == [GpuStretch(5.0, 6.0, 8, 1)]
    assert Occupancy().finish(1.0) == []
