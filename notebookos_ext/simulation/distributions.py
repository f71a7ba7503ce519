"""The few distributions that workload profiles and delays are written in, and how to draw."""

from __future__ import annotations

import math
import random

import msgspec

from notebookos_ext.errors import InvalidRequest

DRAWS_MAX = 10_000
MU_MOST, SIGMA_MOST = 100.0, 10.0
"""No time or rate of anything lies beyond; and values could become too large for a number."""


class Exponential(
    msgspec.Struct, frozen=True, tag_field="kind", tag="exponential", forbid_unknown_fields=True
):
    """Memoryless, with this mean, not less than `min`."""

    mean: float
    min: float = 0.0

    def __post_init__(self) -> None:
        # A ValueError here is told by the decoder with its place in the file.
        if not 0 < self.mean < math.inf:
            raise ValueError(f"the mean of an exponential is {self.mean:g}; it must be above 0")

    def draw(self, rng: random.Random) -> float:
        """One value."""
        return max(self.min, rng.expovariate(1 / self.mean))


class Lognormal(
    msgspec.Struct, frozen=True, tag_field="kind", tag="lognormal", forbid_unknown_fields=True
):
    """`exp` of a normal variable (`mu` and `sigma` of the natural logarithm).

    What falls outside `min` and `max` is moved to them or, with `redraw`, drawn again.
    """

    mu: float
    sigma: float
    min: float = 0.0
    max: float = math.inf
    redraw: bool = False

    def __post_init__(self) -> None:
        _check_lognormal(self.mu, self.sigma, self.min, self.max)

    def draw(self, rng: random.Random) -> float:
        """One value. Raises InvalidRequest when hardly any lies between `min` and `max`."""
        value = rng.lognormvariate(self.mu, self.sigma)
        if not self.redraw:
            return min(self.max, max(self.min, value))
        for _ in range(DRAWS_MAX):
            if self.min <= value <= self.max:
                return value
            value = rng.lognormvariate(self.mu, self.sigma)
        raise InvalidRequest(
            f"hardly any value of this lognormal lies between {self.min} and {self.max}; "
            "widen them or set redraw to false"
        )


class LognormalMixture(
    msgspec.Struct,
    frozen=True,
    tag_field="kind",
    tag="lognormal-mixture",
    forbid_unknown_fields=True,
):
    """One of several lognormals, each with its weight, moved into `min` … `max`."""

    weights: tuple[float, ...]
    mu: tuple[float, ...]
    sigma: tuple[float, ...]
    min: float = 0.0
    max: float = math.inf

    def __post_init__(self) -> None:
        if not len(self.weights) == len(self.mu) == len(self.sigma):
            raise ValueError("a mixture needs as many weights as values of mu and of sigma")
        if not all(weight >= 0 for weight in self.weights) or not sum(self.weights) > 0:
            raise ValueError("the weights of a mixture must be 0 or more, and one above 0")
        for mu, sigma in zip(self.mu, self.sigma, strict=True):
            _check_lognormal(mu, sigma, self.min, self.max)

    def draw(self, rng: random.Random) -> float:
        """One value."""
        which = rng.choices(range(len(self.weights)), self.weights)[0]
        value = rng.lognormvariate(self.mu[which], self.sigma[which])
        return min(self.max, max(self.min, value))


def _check_lognormal(mu: float, sigma: float, least: float, most: float) -> None:
    if not abs(mu) <= MU_MOST or not 0 <= sigma <= SIGMA_MOST:
        raise ValueError(
            f"a lognormal has mu {mu:g} and sigma {sigma:g}; mu must be from {-MU_MOST:g} to "
            f"{MU_MOST:g} and sigma from 0 to {SIGMA_MOST:g}"
        )
    if not least <= most:
        raise ValueError(f"min is {least:g} and max is {most:g}; exchange them")


Distribution = Exponential | Lognormal | LognormalMixture


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` (0 … 1) of the sorted values lie, by linear interpolation.

    0 for no values.
    """
    if not values:
        return 0.0
    place = share * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)
