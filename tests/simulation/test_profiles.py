"""The built-in profiles draw what was published about the trace (paper, section 8; our fit)."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from notebookos_ext.errors import InvalidRequest
from notebookos_ext.simulation.distributions import Lognormal, percentile
from notebookos_ext.simulation.profiles import Calendar, Growing, read_profile
from notebookos_ext.simulation.workload import bounds

DRAWS = 200_000
DURATIONS_S = {
    "idlt17h5": {0.5: 120, 0.75: 300, 0.9: 957, 0.95: 1838, 0.99: 10560},
    "ninety_day": {0.5: 120, 0.75: 360, 0.9: 1200, 0.95: 2400, 0.99: 13200},
}


@pytest.mark.parametrize("name", DURATIONS_S)
def test_durations_hit_the_published_percentiles(name: str) -> None:
    profile, rng = read_profile(name), random.Random(1)
    drawn = sorted(profile.duration_s.draw(rng) for _ in range(DRAWS))
    for share, expected in DURATIONS_S[name].items():
        assert percentile(drawn, share) == pytest.approx(
            expected, rel=0.06 if share > 0.98 else 0.03
        )


def test_submissions_hit_the_published_intervals() -> None:
    """Median 300 s and never within 240 s, over many seeds of the 17.5 hours."""
    profile = read_profile("idlt17h5")
    gaps = []
    for seed in range(150):
        for session in profile.generate(seed).sessions:
            gaps += [
                after.submit_s - before.submit_s
                for before, after in zip(session.cells, session.cells[1:], strict=False)
            ]
    gaps.sort()
    assert gaps[0] >= 240 - 1e-6
    assert percentile(gaps, 0.5) == pytest.approx(298, rel=0.03)
    assert percentile(gaps, 0.75) == pytest.approx(588, rel=0.03)
    assert percentile(gaps, 0.9) == pytest.approx(1389, rel=0.05)


def test_seventeen_hours_have_the_expected_size() -> None:
    """Means over seeds, from the fit: 104 sessions, 1,429 cells, 2,221 and 536 GPU-hours."""
    profile = read_profile("idlt17h5")
    drawn = [profile.generate(seed) for seed in range(60)]
    limits = [bounds(workload) for workload in drawn]

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    assert mean([len(w.sessions) for w in drawn]) == pytest.approx(104, rel=0.05)
    assert mean([w.cell_count for w in drawn]) == pytest.approx(1429, rel=0.08)
    assert mean([x.reservation_gpu_h for x in limits]) == pytest.approx(2221, rel=0.08)
    assert mean([x.oracle_gpu_h for x in limits]) == pytest.approx(536, rel=0.12)


def test_ninety_days_have_the_expected_size() -> None:
    """Published for 92 days: 3,502 sessions and 140,005 cells, more than 81 % idle."""
    workload = read_profile("ninety_day").generate(3)
    limits = bounds(workload)
    assert 3_200 < len(workload.sessions) < 3_700
    assert 125_000 < workload.cell_count < 165_000
    assert 0.78 < 1 - limits.oracle_gpu_h / limits.reservation_gpu_h < 0.90


def test_a_seed_repeats_itself_and_another_does_not() -> None:
    profile = read_profile("idlt17h5")
    assert profile.generate(5) == profile.generate(5)
    assert profile.generate(5).sessions != profile.generate(6).sessions


def test_sessions_that_never_train() -> None:
    profile = msgspec.structs.replace(read_profile("idlt17h5"), never_trains_share=1.0)
    assert profile.generate(1).cell_count == 0


def test_values_outside_are_moved_or_drawn_again() -> None:
    rng = random.Random(1)
    moved = [Lognormal(0.0, 1.0, min=1.0).draw(rng) for _ in range(500)]
    again = [Lognormal(0.0, 1.0, min=1.0, redraw=True).draw(rng) for _ in range(500)]
    assert min(moved) == 1.0
    assert moved.count(1.0) > 100
    assert min(again) > 1.0
    with pytest.raises(InvalidRequest, match="hardly any value"):
        Lognormal(0.0, 0.1, min=1e9, redraw=True).draw(rng)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ('"horizon_s": 63000', '"horizon_s": 0'),
        ('{ "1": 0.7, "4": 0.145, "8": 0.155 }', '{"many": 1}'),
        ('"name"', '"surname"'),
    ],
)
def test_a_bad_profile_is_named(tmp_path: Path, change: str, says: str) -> None:
    text = Path(read_profile.__globals__["FOLDER"] / "idlt17h5.json").read_text()
    assert change in text
    path = tmp_path / "p.json"
    path.write_text(text.replace(change, says))
    with pytest.raises(InvalidRequest, match="profile"):
        read_profile(str(path))


@pytest.mark.parametrize(
    ("change", "to", "says"),
    [
        ('{ "1": 0.7, "4": 0.145, "8": 0.155 }', '{"1": 0}', "gpus must give a weight"),
        ('{ "1": 0.7, "4": 0.145, "8": 0.155 }', '{"²": 1}', "gpus must give a weight"),
        ('"horizon_s": 63000', '"horizon_s": 1e300', "horizon_s must be"),
        ('"mean": 208800', '"mean": 0', "mean of an exponential is 0"),
        ('"mu": 4.718499', '"mu": 5000', "a lognormal has mu 5000"),
        ('"sigma": 0.95', '"sigma": -1', "sigma -1"),
        ('"mu": [4.481, ', '"mu": [', "as many weights"),
        ("[0.763, 0.198132, 0.038868]", "[0, 0, 0]", "weights of a mixture"),
        ('"min": 5,', '"min": 50000,', "exchange them"),
        ('"lifetime_mean_s": 208800', '"lifetime_mean_s": 0', "lifetime_mean_s above 0"),
        ('"initial": 10', '"initial": -10', "initial and target from 0"),
        (
            '{ "kind": "growing", "initial": 10, "target": 90, "lifetime_mean_s": 208800 }',
            '{"kind": "calendar", "sessions_per_day": -3}',
            "must be 0 or more",
        ),
        (
            '{ "kind": "growing", "initial": 10, "target": 90, "lifetime_mean_s": 208800 }',
            '{"kind": "calendar", "sessions_per_day": 3, "hour_factors": []}',
            "an hour factor above 0",
        ),
    ],
)
def test_what_no_generator_could_follow_is_said(
    tmp_path: Path, change: str, to: str, says: str
) -> None:
    text = Path(read_profile.__globals__["FOLDER"] / "idlt17h5.json").read_text()
    assert change in text
    path = tmp_path / "p.json"
    path.write_text(text.replace(change, to), encoding="utf-8")
    with pytest.raises(InvalidRequest, match=says):
        read_profile(str(path))


def test_a_session_without_end_to_its_cells_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("notebookos_ext.simulation.profiles.CELLS_MOST", 3)
    with pytest.raises(InvalidRequest, match="more than 3 cells"):
        read_profile("idlt17h5").generate(1)


def test_nobody_comes_without_arrivals() -> None:
    nobody = msgspec.structs.replace(read_profile("idlt17h5"), arrivals=Growing(0, 0, 1.0))
    assert nobody.generate(1).sessions == ()
    nobody = msgspec.structs.replace(nobody, arrivals=Calendar(0.0))
    assert nobody.generate(1).sessions == ()


def test_an_unknown_profile_names_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match="idlt17h5, ninety_day"):
        read_profile("nothing")
