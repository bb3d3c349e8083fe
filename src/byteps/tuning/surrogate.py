"""What the trials so far say about all places: a Gaussian process over the logarithm of a step's time.

After Snoek et al., Practical Bayesian Optimization (2012): a Matern 5/2 kernel whose length scales, one for
each axis, and noise have the largest marginal likelihood of a small grid. Trials are few, so that takes a
tenth of a second.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from byteps.tuning.space import Point, Space

Array = npt.NDArray[np.float64]

_LENGTHS = (0.15, 0.3, 0.6, 1.5)  # of an axis's whole length; along the last, little changes
_NOISES = (0.003, 0.01, 0.03, 0.1, 0.3, 0.6)  # standard deviation, of what the values spread over


class Surrogate:
    """A fit to measured places.

    Args:
        space: Where they lie.
        points: Places; one may appear more than once.
        seconds: A step's time at each.

    Raises:
        ValueError: There are fewer than two.
    """

    def __init__(self, space: Space, points: Sequence[Point], seconds: Sequence[float]) -> None:
        if len(points) < 2:
            raise ValueError("a fit needs at least two measured places")
        self._low = np.array([axis.low for axis in space.axes], dtype=np.float64)
        self._width = np.array([max(axis.high - axis.low, 1) for axis in space.axes], dtype=np.float64)
        self._at = self._unit(points)
        logs = np.log(np.asarray(seconds, dtype=np.float64))
        self._mean = float(logs.mean())
        self._spread = max(float(logs.std()), 1e-6)
        self._values = (logs - self._mean) / self._spread
        scales = itertools.product(_LENGTHS, repeat=len(space.axes))
        fits = [
            _fit(self._at, self._values, np.array(lengths), noise) for lengths in scales for noise in _NOISES
        ]
        _, self._lengths, self._factor, self._weights = max(fits, key=lambda fit: fit[0])

    def predict(self, points: Sequence[Point]) -> tuple[Array, Array]:
        """The mean of the logarithm of a step's time at each place, and its standard deviation."""
        cross = _kernel(self._unit(points), self._at, self._lengths)
        mean = cross @ self._weights
        half = np.linalg.solve(self._factor, cross.T)
        variance = np.maximum(1.0 - (half**2).sum(axis=0), 1e-12)
        return self._mean + self._spread * mean, self._spread * np.sqrt(variance)

    def expected_gains(self, points: Sequence[Point], best_s: float) -> Array:
        """The share of ``best_s`` that trying each of the places is expected to save."""
        mean, deviation = self.predict(points)
        ahead = math.log(best_s) - mean
        scaled = ahead / deviation
        density = np.exp(-0.5 * scaled**2) / math.sqrt(2 * math.pi)
        below = 0.5 * (1 + np.array([math.erf(each / math.sqrt(2)) for each in scaled]))
        gains: Array = ahead * below + deviation * density
        return gains

    def _unit(self, points: Sequence[Point]) -> Array:
        unit: Array = (np.asarray(points, dtype=np.float64) - self._low) / self._width
        return unit


def _kernel(one: Array, other: Array, lengths: Array) -> Array:
    away = (one[:, None, :] - other[None, :, :]) / lengths
    distance = np.sqrt(5.0 * (away**2).sum(axis=2))
    value: Array = (1 + distance + distance**2 / 3) * np.exp(-distance)
    return value


def _fit(at: Array, values: Array, lengths: Array, noise: float) -> tuple[float, Array, Array, Array]:
    """Marginal likelihood (logarithm), length scales, Cholesky factor and weights."""
    covariance = _kernel(at, at, lengths) + (noise**2 + 1e-9) * np.eye(len(at))
    factor = np.asarray(np.linalg.cholesky(covariance), np.float64)
    half = np.linalg.solve(factor, values)
    likelihood = -0.5 * float(half @ half) - float(np.log(np.diag(factor)).sum())
    weights: Array = np.linalg.solve(factor.T, half)
    return likelihood, lengths, factor, weights
