"""The few distributions that workload profiles and delays are written in, and how to draw."""

from __future__ import annotations

import math
import random

import msgspec

from notebookos_ext.errors import InvalidRequest

DRAWS_MAX = 10_000


class Exponential(
    msgspec.Struct, frozen=True, tag_field="kind", tag="exponential", forbid_unknown_fields=True
):
    """Memoryless, with this mean, not less than `min`."""

    mean: float
    min: float = 0.0

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

    def draw(self, rng: random.Random) -> float:
        """One value."""
        which = rng.choices(range(len(self.weights)), self.weights)[0]
        value = rng.lognormvariate(self.mu[which], self.sigma[which])
        return min(self.max, max(self.min, value))


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
