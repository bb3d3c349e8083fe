"""What proposes the next place to try. ``bayes`` is optuna: its GP sampler where torch is there, else TPE."""

from __future__ import annotations

import importlib.util
import itertools
import random
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from byteps.errors import ConfigError
from byteps.tuning.space import AUTOMATIC, Point, Space

_FIRST_RANDOM = 3
"""Places that are drawn by chance before optuna's model is asked, those that it was told included."""


GRID = 8
"""Places of the grid along each axis."""


class Sampler(Protocol):
    """Proposes places."""

    def ask(self) -> Point:
        """The next place to try."""

    def tell(self, point: Point, seconds: float) -> None:
        """A step took so long there; the place may be another than was asked for."""


class BayesSampler:
    """Optuna's sampler.

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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            has_gp = all(importlib.util.find_spec(name) for name in ("torch", "scipy"))
            kind = optuna.samplers.GPSampler if has_gp else optuna.samplers.TPESampler
            sampler = kind(seed=seed, n_startup_trials=_FIRST_RANDOM)
            self._study = optuna.create_study(direction="minimize", sampler=sampler)

    def ask(self) -> Point:
        """See ``Sampler``."""
        trial = self._study.ask(self._axes)
        # What is told later may be another place; each is told as a trial of its own.
        self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        return tuple(int(trial.params[axis.name]) for axis in self._space.axes)

    def tell(self, point: Point, seconds: float) -> None:
        """See ``Sampler``."""
        params = {axis.name: each for axis, each in zip(self._space.axes, point, strict=True)}
        self._study.add_trial(
            self._optuna.trial.create_trial(params=params, distributions=self._axes, value=seconds)
        )


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
