"""Seeded generators of workloads: a profile in JSON says how many sessions, GPUs, cells and pauses.

The built-in ones are fitted to what is published about AdobeTrace (traces, section 3): `idlt17h5`,
the paper's 17.5 hours, and `ninety_day`, a summer. The form is described in docs/simulation.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import msgspec

from notebookos_ext.cluster.options import MOST_S
from notebookos_ext.errors import InvalidRequest
from notebookos_ext.simulation.distributions import Distribution, Lognormal
from notebookos_ext.simulation.workload import (
    HOUR_S,
    PlannedCell,
    PlannedSession,
    Workload,
    check_workload,
)

FOLDER = Path(__file__).with_name("profiles")
DAY_S = 24 * HOUR_S
CELLS_MOST = 200_000
"""In one session: one every 40 s for 90 days, which no user keeps up."""


class Growing(
    msgspec.Struct, frozen=True, tag_field="kind", tag="growing", forbid_unknown_fields=True
):
    """From `initial` sessions at the start to `target` at the end, and replacements for those that
    end meanwhile after a mean of `lifetime_mean_s`.
    """

    initial: int
    target: int
    lifetime_mean_s: float

    def __post_init__(self) -> None:
        if self.initial < 0 or self.target < 0 or not self.lifetime_mean_s > 0:
            raise ValueError(
                "arrivals that grow need initial and target from 0 and a lifetime_mean_s above 0"
            )

    def times_s(self, horizon_s: float, rng: random.Random) -> list[float]:
        """Starts of sessions, earliest first."""

        def rate(at_s: float) -> float:
            present = self.initial + (self.target - self.initial) * at_s / horizon_s
            return (self.target - self.initial) / horizon_s + present / self.lifetime_mean_s

        highest = max(rate(0.0), rate(horizon_s))
        return [0.0] * self.initial + _poisson(rate, highest, horizon_s, rng)


class Calendar(
    msgspec.Struct, frozen=True, tag_field="kind", tag="calendar", forbid_unknown_fields=True
):
    """So many sessions a day on average, more on some weekdays (the first of seven factors is the
    first day's) and at some hours (24 factors).
    """

    sessions_per_day: float
    weekday_factors: tuple[float, ...] = (1.0,)
    hour_factors: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        factors = (*self.weekday_factors, *self.hour_factors)
        if self.sessions_per_day < 0 or not all(factor >= 0 for factor in factors):
            raise ValueError("sessions_per_day and all factors must be 0 or more")
        if not self.weekday_factors or not sum(self.hour_factors) > 0:
            raise ValueError("a calendar needs a weekday factor, and an hour factor above 0")

    def times_s(self, horizon_s: float, rng: random.Random) -> list[float]:
        """Starts of sessions, earliest first."""
        hours_mean = sum(self.hour_factors) / len(self.hour_factors)

        def rate(at_s: float) -> float:
            day = self.weekday_factors[int(at_s // DAY_S) % len(self.weekday_factors)]
            hour = self.hour_factors[int(at_s // HOUR_S) % len(self.hour_factors)]
            return self.sessions_per_day / DAY_S * day * hour / hours_mean

        highest = (
            self.sessions_per_day
            / DAY_S
            * max(self.weekday_factors)
            * max(self.hour_factors)
            / hours_mean
        )
        return _poisson(rate, highest, horizon_s, rng)


class Think(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a user does between two cells: usually a short pause, sometimes a long break.

    How likely a break is belongs to the session: this is what makes a few chatty and most sleepy.
    """

    break_probability: Lognormal
    short: Lognormal
    long: Lognormal
    submit_to_submit_min_s: float = 0.0

    def think_s(self, duration_s: float, likely: float, rng: random.Random) -> float:
        """The pause after a cell of that length in a session with that likelihood of a break."""
        pause_s = (self.long if rng.random() < likely else self.short).draw(rng)
        return max(self.submit_to_submit_min_s - duration_s, pause_s)


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A generator's parameters; all times in seconds."""

    name: str
    about: str
    horizon_s: float
    arrivals: Growing | Calendar
    lifetime_s: Distribution
    gpus: dict[str, float]
    """How many GPUs a session has, and with which weight."""
    duration_s: Distribution
    first_cell_after_s: Distribution
    think: Think
    never_trains_share: float = 0.0
    """Sessions that reserve GPUs and never submit a cell."""

    def generate(self, seed: int) -> Workload:
        """The workload of that seed; the same on every machine."""
        rng = random.Random(seed)
        sessions = tuple(
            self._session(str(number), start_s, rng)
            for number, start_s in enumerate(self.arrivals.times_s(self.horizon_s, rng))
        )
        source = f"profile {self.name}, seed {seed}"
        return check_workload(Workload(f"{self.name}-{seed}", self.horizon_s, sessions, source))

    def _session(self, name: str, start_s: float, rng: random.Random) -> PlannedSession:
        end_s = min(self.horizon_s, start_s + self.lifetime_s.draw(rng))
        gpus = int(rng.choices(list(self.gpus), list(self.gpus.values()))[0])
        trains = rng.random() >= self.never_trains_share
        cells = self._cells(start_s, end_s, gpus, rng) if trains else []
        return PlannedSession(name, start_s, end_s, gpus, tuple(cells))

    def _cells(
        self, start_s: float, end_s: float, gpus: int, rng: random.Random
    ) -> list[PlannedCell]:
        likely = self.think.break_probability.draw(rng)
        cells: list[PlannedCell] = []
        submit_s = start_s + self.first_cell_after_s.draw(rng)
        while submit_s < end_s:
            whole_s = self.duration_s.draw(rng)
            think_s = self.think.think_s(whole_s, likely, rng)
            # What still runs at the horizon counts only up to it.
            if len(cells) >= CELLS_MOST:
                raise InvalidRequest(
                    f"profile {self.name}: a session has more than {CELLS_MOST:,} cells; "
                    "let them or the pauses between them take longer"
                )
            cells.append(
                PlannedCell(submit_s, min(whole_s, self.horizon_s - submit_s), gpus, think_s)
            )
            submit_s += whole_s + think_s
        return cells


def built_in() -> list[str]:
    """The names of the profiles that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def read_profile(name_or_path: str) -> Profile:
    """A built-in profile by its name, else one from a JSON file. Raises InvalidRequest."""
    path = FOLDER / f"{name_or_path}.json"
    if name_or_path not in built_in():
        path = Path(name_or_path)
        if not path.is_file():
            raise InvalidRequest(
                f"there is no profile {name_or_path!r}; choose one of {', '.join(built_in())}, "
                "or give the path of a JSON file"
            )
    try:
        profile = msgspec.json.decode(path.read_bytes(), type=Profile)
    except (OSError, msgspec.DecodeError) as problem:
        raise InvalidRequest(f"{path} is not a workload profile: {problem}") from problem
    return check_profile(profile)


def check_profile(profile: Profile) -> Profile:
    """The profile itself. Raises InvalidRequest for what no generator could follow."""
    if not 0 < profile.horizon_s <= MOST_S:
        raise InvalidRequest(
            f"profile {profile.name}: horizon_s must be above 0 and up to {MOST_S:g}"
        )
    numbers = all(g.isascii() and g.isdigit() and len(g) <= 6 for g in profile.gpus)
    weights = profile.gpus.values()
    if not numbers or not all(w >= 0 for w in weights) or not sum(weights) > 0:
        raise InvalidRequest(
            f"profile {profile.name}: gpus must give a weight for each number of GPUs, "
            'such as {"1": 0.7, "8": 0.3}'
        )
    if not 0 <= profile.never_trains_share <= 1:
        raise InvalidRequest(f"profile {profile.name}: never_trains_share must be in 0 … 1")
    return profile


def _poisson(
    rate: Callable[[float], float], highest: float, horizon_s: float, rng: random.Random
) -> list[float]:
    """Arrivals of a Poisson process whose rate changes: drawn at the highest rate, then thinned."""
    if not highest > 0:
        return []
    times = []
    at_s = rng.expovariate(highest)
    while at_s < horizon_s:
        if rng.random() * highest < rate(at_s):
            times.append(at_s)
        at_s += rng.expovariate(highest)
    return times
