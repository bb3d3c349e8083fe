"""The models of ``byteps bench train``: the published parameters, each of which gets a gradient."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from byteps.bench.models import WORKLOADS
from byteps.bench.options import MODELS
from byteps.bench.training import speeds
from byteps.cli import main
from byteps.planner.profile import shipped_layers

META = torch.device("meta")


@pytest.mark.parametrize("name", [name for name in MODELS if name != "tiny"])
def test_parameters_are_the_published_ones(name: str) -> None:
    layers = shipped_layers()[name.replace("-", "_")]
    published = sorted(length for layer in layers for _, length in layer["tensors"])
    with META:
        model = WORKLOADS[name].build()
    assert sorted(parameter.numel() for parameter in model.parameters()) == published


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    workload = WORKLOADS[name]
    with META:  # shapes only: nothing is computed
        model = workload.build()
    loss = model(*workload.batch(2, 16, META))
    assert loss.shape == ()
    loss.backward()
    without = [label for label, parameter in model.named_parameters() if parameter.grad is None]
    assert not without


def test_a_model_learns_what_it_sees() -> None:
    torch.manual_seed(0)
    workload = WORKLOADS["tiny"]
    model = workload.build()
    batch = workload.batch(4, 0, torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = model(*batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_speeds_count_the_slowest_rank_together_and_each_rank_alone() -> None:
    times = np.array([[[0.5, 0.25]], [[1.0, 0.5]]])  # [rank, block, (with, without)], seconds
    found = speeds(times, batch_size=2)
    assert found["samples_per_s"] == {"with": 4.0, "without": 12.0}
    assert found["step_s"] == {"with": 1.0, "without": pytest.approx(1 / 3)}
    assert found["share"] == pytest.approx(1 / 3)


def test_training_outside_a_job_says_how_to_start_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BYTEPS_SIZE", "BYTEPS_COORDINATOR", "RANK", "WORLD_SIZE", "DMLC_PS_ROOT_URI"):
        monkeypatch.delenv(name, raising=False)
    assert main(["bench", "train", "--model", "tiny"]) == 2
    assert "byteps run -np 2 byteps bench train --model tiny" in capsys.readouterr().err
