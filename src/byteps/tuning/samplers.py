"""What proposes the next place to try.

``bayes`` begins with places that lie evenly, then asks optuna: its GP sampler where torch is there, else TPE.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import random
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from byteps.errors import ConfigError
from byteps.tuning.space import AUTOMATIC, Point, Space
from byteps.tuning.surrogate import Surrogate

FIRST = 8
"""Places that lie evenly in the space, before optuna's model is asked."""
HOPELESS = 1.5
"""How bad a place is does not matter beyond so many times the best's time: a few very bad ones would make all
others look alike."""
GRID = 8
"""Places of the grid along each axis."""


class Sampler(Protocol):
    """Proposes places."""

    def ask(self) -> Point:
        """The next place to try."""

    def tell(self, point: Point, seconds: float) -> None:
        """A step took so long there; the place may be another than was asked for."""


class BayesSampler:
    """Places that lie evenly in the space, then optuna's sampler.

    Args:
        space: What may be tried.
        seed: Of what is left to chance.

    Raises:
        ConfigError: Optuna is not installed.
    """

    def __init__(self, space: Space, seed: int) -> None:
        require_optuna()
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna: Any = optuna
        self._space = space
        self._axes: dict[str, Any] = {
            axis.name: optuna.distributions.IntDistribution(axis.low, axis.high) for axis in space.axes
        }
        self._told: list[tuple[Point, float]] = []
        self._evenly = iter(space.evenly(FIRST, random.Random(seed)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            has_gp = all(importlib.util.find_spec(name) for name in ("torch", "scipy"))
            kind = optuna.samplers.GPSampler if has_gp else optuna.samplers.TPESampler
            self._sampler = kind(seed=seed, n_startup_trials=1)

    def ask(self) -> Point:
        """See ``Sampler``."""
        tried = {point for point, _ in self._told}
        for point in self._evenly:
            if point not in tried:
                return point
        trial = self._study().ask(self._axes)
        point = tuple(int(trial.params[axis.name]) for axis in self._space.axes)
        return self._another(tried) if point in tried else point

    def tell(self, point: Point, seconds: float) -> None:
        """See ``Sampler``."""
        self._told.append((point, seconds))

    def _another(self, tried: set[Point]) -> Point:
        """The most promising place that was not tried: the best so far is measured again anyhow."""
        points = [point for point, _ in self._told]
        seconds = [each for _, each in self._told]
        others = [point for point in self._space.points() if point not in tried]
        if not others or len(points) < 2:
            return points[-1]
        gains = Surrogate(self._space, points, seconds).expected_gains(others, min(seconds))
        best: Point = others[int(gains.argmax())]
        return best

    def _study(self) -> Any:
        """All that was told, as the model is to see it: differences between good places count."""
        study = self._optuna.create_study(direction="minimize", sampler=self._sampler)
        most_s = HOPELESS * min((seconds for _, seconds in self._told), default=1.0)
        for point, seconds in self._told:
            params = {axis.name: each for axis, each in zip(self._space.axes, point, strict=True)}
            value = math.log(min(seconds, most_s))
            study.add_trial(
                self._optuna.trial.create_trial(params=params, distributions=self._axes, value=value)
            )
        return study


class RandomSampler:
    """Any place, none twice as long as there are others."""

    def __init__(self, space: Space, seed: int) -> None:
        points = list(space.points())
        random.Random(seed).shuffle(points)
        self._points = itertools.cycle(points)

    def ask(self) -> Point:
        """See ``Sampler``."""
        return next(self._points)

    def tell(self, point: Point, seconds: float) -> None:
        """See ``Sampler``."""


class GridSampler(RandomSampler):
    """Evenly spread places of the first two axes in order, again and again; the rest is automatic."""

    def __init__(self, space: Space, seed: int) -> None:
        del seed  # nothing is left to chance
        first, second, *rest = (axis.spread(GRID) for axis in space.axes)
        self._points = itertools.cycle(
            (one, other, *(AUTOMATIC for _ in rest)) for one in first for other in second
        )


SAMPLERS: Mapping[str, Callable[[Space, int], Sampler]] = {
    "bayes": BayesSampler,
    "random": RandomSampler,
    "grid": GridSampler,
}
"""By the name that ``Config.tune_search`` has for them."""


def require_optuna() -> None:
    """Refuse to go on without optuna.

    Raises:
        ConfigError: It is not installed.
    """
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError(
            "tuning needs optuna where the coordinator runs: pip install 'byteps[tune]', or set "
            "BYTEPS_TUNE_SEARCH=random"
        )
