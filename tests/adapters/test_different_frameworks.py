"""What takes several frameworks: ranks that run different ones, and what some cannot do."""

from __future__ import annotations

import importlib

import keras
import numpy as np
import pytest

from byteps.session import Session

from .conftest import Ranks
from .drivers.installed import driver_of

FRAMEWORKS = ("torch", "tensorflow", "jax")


def test_ranks_may_run_different_frameworks(ranks: Ranks) -> None:
    drivers = [driver_of(framework) for framework in FRAMEWORKS]

    def work(session: Session) -> list[float]:
        driver = drivers[session.rank]
        way = next(iter(driver.alternatives))
        found = driver.alternatives[way](session, np.array([1.0, 2.0]) * (session.rank + 1), name="x")
        return [*found.tolist(), *driver.broadcast(session, np.array([7.0 + session.rank]), 1, "y").tolist()]

    size = len(drivers)
    mean = (size + 1) / 2
    assert ranks(size, work) == [[mean, 2 * mean, 8.0]] * size


@pytest.mark.parametrize("module", ["byteps.keras", "byteps.tensorflow.keras", "byteps.jax"])
def test_frameworks_where_nothing_can_wait_for_a_variable_say_so(module: str) -> None:
    with pytest.raises(NotImplementedError, match="cannot cross the barrier: "):
        importlib.import_module(module).CrossBarrier(keras.optimizers.SGD(), [])
