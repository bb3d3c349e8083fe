"""Ranks as threads, each with its session, its model and its part of the data."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest

from byteps.session import Session
from byteps.testing import cluster, run_ranks


class Ranks(Protocol):
    """Runs a function on each rank of a job."""

    def __call__(
        self, size: int, function: Callable[[Session], Any], servers: int = ..., **settings: Any
    ) -> list[Any]: ...


@pytest.fixture(params=["parameter-server", "allreduce"])
def ranks(request: pytest.FixtureRequest) -> Ranks:
    """``ranks(n, function)`` calls ``function(session)`` on n ranks and returns the results by rank.

    Once with each communicator. A rank that raises ends the test with its error, once the others have waited
    for it in vain.
    """

    def run(size: int, function: Callable[[Session], Any], servers: int = 2, **settings: Any) -> list[Any]:
        limits: dict[str, Any] = {"stall_warning_s": 2.0, "stall_timeout_s": 10.0}
        with cluster(size, servers, communicator=request.param, **limits, **settings) as sessions:
            return run_ranks(sessions, function)

    return run


@pytest.fixture(autouse=True, scope="session")
def _one_thread_per_rank() -> Iterator[None]:
    if importlib.util.find_spec("torch") is None:  # as in MXNet's environment
        yield
        return
    torch = importlib.import_module("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
