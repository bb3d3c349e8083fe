"""What the torch optimizers put into a timeline: steps, updates, and when gradients were ready."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import byteps.torch as bps
from byteps.session import Session
from byteps.testing import cluster, run_ranks
from byteps.trace.history import read_history
from byteps.trace.reading import read_timeline
from byteps.trace.summary import summarise
from tests.unit.timelines import load, of

STEPS = 4
NAMES = {"0.weight", "0.bias", "2.weight", "2.bias"}


def _network() -> nn.Module:
    return nn.Sequential(nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3))


def _wrap_plain(network: nn.Module, session: Session) -> Any:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    return bps.DistributedOptimizer(optimizer, network.named_parameters(), session=session)


def _wrap_crossing(network: nn.Module, session: Session) -> Any:
    return bps.CrossBarrier(network, _wrap_plain(network, session))


@pytest.mark.parametrize("wrap", [_wrap_plain, _wrap_crossing])
def test_a_training_loop_is_in_the_timeline(
    tmp_path: Path, wrap: Callable[[nn.Module, Session], Any]
) -> None:
    def train(session: Session) -> None:
        network = _network()
        optimizer = wrap(network, session)
        for _ in range(STEPS):
            optimizer.zero_grad()
            network(torch.ones(5, 40)).square().mean().backward()
            optimizer.step()

    with cluster(2, 2, timeline=str(tmp_path / "t.json.gz")) as sessions:
        run_ranks(sessions, train)
    for rank in range(2):
        events = load(tmp_path / f"t.rank{rank}.json.gz")
        assert [event["name"] for event in of(events, cat="step")] == [f"step {n + 1}" for n in range(STEPS)]
        updated = of(events, cat="updated")
        if wrap is _wrap_plain:
            assert len(updated) == STEPS
        else:
            assert {event["args"]["tensor"] for event in updated if event["args"]} <= NAMES
        assert updated
        partitions = [event for event in of(events, ph="b", cat="byteps") if "round" in event.get("args", {})]
        gradients = [event for event in partitions if event["name"] in NAMES]
        assert {event["name"] for event in gradients} == NAMES
        assert len(gradients) == STEPS * len(NAMES)
        ready = of(events, ph="b", name="ready")
        assert len(ready) == len(of(events, ph="e", name="ready")) == len(partitions)

    files = sorted(tmp_path.iterdir())
    summary = summarise(read_history([read_timeline(file) for file in files]))
    assert summary.marked
    assert [rank.steps for rank in summary.ranks] == [STEPS - 1] * 2
    assert {tensor.name for tensor in summary.tensors} >= NAMES
