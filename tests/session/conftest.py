"""What carries out the rounds: tests that ask for ``job`` run once with each communicator."""

from __future__ import annotations

from functools import partial

import pytest

from . import arrays
from .arrays import Job


@pytest.fixture(params=["parameter-server", "hierarchical", "allreduce"])
def job(request: pytest.FixtureRequest) -> Job:
    if request.param == "hierarchical":
        return arrays.job_of_nodes
    return partial(arrays.job, communicator=request.param)


@pytest.fixture(params=["parameter-server", "allreduce"])
def flat_job(request: pytest.FixtureRequest) -> Job:
    """Jobs in which each rank's contribution goes its own way: sums are added in the order of ranks."""
    return partial(arrays.job, communicator=request.param)
