"""What carries out the rounds: tests that ask for ``job`` run once with each communicator."""

from __future__ import annotations

from functools import partial

import pytest

from . import arrays
from .arrays import Job


@pytest.fixture(params=["parameter-server", "allreduce"])
def job(request: pytest.FixtureRequest) -> Job:
    return partial(arrays.job, communicator=request.param)
