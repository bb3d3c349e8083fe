"""What scripts do between backward pass and step: AMP, clipping, giving up a batch, mistakes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import byteps.torch as bps
from byteps.session import Session

from .conftest import Ranks
from .training import (
    assert_equal,
    assert_trains_as_one,
    distributed,
    gradients,
    in_flight,
    loss_of,
    mean,
    mean_gradients,
    model,
    parameters,
    sgd,
    train,
    trained,
)


def test_more_backward_passes_than_before_is_an_error_on_every_rank(ranks: Ranks) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        train(network, optimizer, session.rank, [0])
        optimizer.zero_grad()
        loss_of(network, session.rank, 1).backward()
        message = r"gradient of '2\.\w+' was computed again.*backward_passes_per_step"
        with pytest.raises(RuntimeError, match=message):
            loss_of(network, session.rank, 1).backward()
        train(network, optimizer, session.rank, [1, 2])

    assert_trains_as_one(ranks, loop, 3)


def test_an_optimizer_that_is_wrapped_anew(ranks: Ranks) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        train(network, optimizer, session.rank, range(2))
        renewed = distributed(network, session)  # while the old one lives, as in `optimizer = ...`
        renewed.load_state_dict(optimizer.state_dict())
        train(network, renewed, session.rank, range(2, 4))
        with pytest.raises(RuntimeError, match="Use only the last one"):
            optimizer.step()
        del renewed
        loss_of(network, session.rank, 0).backward()  # sends nothing

    assert_trains_as_one(ranks, loop, 4)


@pytest.mark.parametrize("recipe", ["plain", "synchronize and skip"])
@pytest.mark.parametrize("fused", [False, True])
def test_amp_with_a_step_that_is_skipped(ranks: Ranks, recipe: str, fused: bool) -> None:
    def make(parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=0.01, fused=fused)

    def work(session: Session) -> tuple[list[Tensor], float]:
        network = model(dtype=torch.float32)
        optimizer = distributed(network, session, make)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(6):
            optimizer.zero_grad()
            loss = loss_of(network, session.rank, step)
            if step in (0, 3) and session.rank == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            if recipe == "plain":
                scaler.step(optimizer)
            else:
                optimizer.synchronize()
                scaler.unscale_(optimizer)
                with optimizer.skip_synchronize():
                    scaler.step(optimizer)
            scaler.update()
        return parameters(network), scaler.get_scale()

    network = model(dtype=torch.float32)
    optimizer = make(network.parameters())
    for step in (1, 2, 4, 5):
        optimizer.zero_grad()
        mean(loss_of(network, rank, step) for rank in range(2)).backward()
        optimizer.step()
    for found, scale in ranks(2, work):
        torch.testing.assert_close(found, parameters(network))
        assert scale == 256.0


def test_clipping_between_synchronize_and_step(ranks: Ranks) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        for step in range(4):
            optimizer.zero_grad()
            loss_of(network, session.rank, step).backward()
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            with optimizer.skip_synchronize():
                optimizer.step()

    alone = model()
    plain = sgd(alone.parameters())
    for step in range(4):
        plain.zero_grad()
        mean(loss_of(alone, rank, step) for rank in range(2)).backward()
        nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
        plain.step()
    for found in trained(ranks, loop):
        assert_equal(found, parameters(alone))


def test_step_after_synchronize_warns_and_does_not_reduce_again(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        network = model()
        optimizer = distributed(network, session, op=bps.Sum)
        loss_of(network, session.rank, 0).backward()
        optimizer.synchronize()
        optimizer.synchronize()
        optimizer.step()
        assert_equal(gradients(network), [2 * gradient for gradient in mean_gradients(2, 0)])
        train(network, optimizer, session.rank, [1])

    with pytest.warns(UserWarning, match=r"skip_synchronize\(\)") as record:
        ranks(2, work)
    assert len(record) == 2, "one per rank, and none for the loop that follows"


@pytest.mark.parametrize("change", ["scale", "replace", "zero"])
def test_gradients_changed_while_they_are_sent(ranks: Ranks, change: str) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        train(network, optimizer, session.rank, [0])
        optimizer.zero_grad()
        loss_of(network, session.rank, 1).backward()
        weight = next(network.parameters())
        assert weight.grad is not None
        if change == "scale":
            weight.grad.mul_(2)
        elif change == "replace":
            weight.grad = weight.grad * 2
        else:
            network.zero_grad(set_to_none=False)
        with pytest.raises(RuntimeError, match=r"'0\.\w+' was (changed|replaced).*synchronize\(\)"):
            optimizer.step()

    trained(ranks, loop)


@pytest.mark.parametrize("through_module", [True, False])
@pytest.mark.parametrize("when", [0, 2])
def test_a_batch_that_is_given_up(ranks: Ranks, through_module: bool, when: int) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        for step in range(6):
            optimizer.zero_grad()
            if step == when:
                loss_of(network, session.rank, 99).backward()
                assert in_flight(optimizer) == (4 if step else 0)
                (network if through_module else optimizer).zero_grad()
            loss_of(network, session.rank, step).backward()
            # The round after one that dropped gradients sends late.
            assert in_flight(optimizer) == (0 if step in (0, when + 1) else 4)
            optimizer.step()

    assert_trains_as_one(ranks, loop, 6)


def test_gradients_dropped_after_they_were_sent(ranks: Ranks) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        for step in (0, 99, 1, 2):
            network.zero_grad()
            loss_of(network, session.rank, step).backward()
            if step == 99:
                network.zero_grad()
            optimizer.step()

    assert_trains_as_one(ranks, loop, 3)


def test_gradients_and_parameters_that_cannot_be_sent(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        odd = nn.ParameterDict({"odd": nn.Parameter(torch.zeros(2, dtype=torch.complex64))})
        with pytest.raises(ValueError, match=r"parameter 'odd'.*complex"):
            distributed(odd, session)
        table = nn.Embedding(4, 2, sparse=True)
        optimizer = distributed(table, session)
        table(torch.tensor([1])).sum().backward()
        with pytest.raises(ValueError, match=r"gradient of 'weight'.*sparse_as_dense=True"):
            optimizer.step()

    ranks(2, work)


@pytest.mark.parametrize("when", [0, 2])
def test_gradients_unscaled_before_they_are_reduced(ranks: Ranks, when: int) -> None:
    """Each rank would look for infinities in its own gradients alone, and skip steps that others take."""

    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(when + 1):
            optimizer.zero_grad()
            loss = loss_of(network, session.rank, step)
            if step == when and session.rank == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            if step < when:
                scaler.step(optimizer)
                scaler.update()
        scaler.unscale_(optimizer)
        with pytest.raises(RuntimeError, match=r"unscaled before.*synchronize\(\).*skip_synchronize"):
            scaler.step(optimizer)
        optimizer.zero_grad()  # and training goes on
        train(network, optimizer, session.rank, range(when, 4))

    assert_trains_as_one(ranks, loop, 4)
