"""DistributedOptimizer trains as one process would, with any optimizer and any number of passes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import byteps.torch as bps
from byteps.session import Session

from .conftest import Ranks
from .training import (
    MakeOptimizer,
    added,
    assert_equal,
    assert_same,
    assert_trains_as_one,
    distributed,
    gradients,
    in_flight,
    loss_of,
    mean_gradients,
    model,
    parameters,
    reference,
    sgd,
    shared_model,
    train,
    trained,
)

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "SGD": sgd,
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.5),
    "RMSprop foreach": lambda p: torch.optim.RMSprop(p, lr=0.01, foreach=True),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("size", [2, 3])
def test_training_equals_one_process_that_averages(ranks: Ranks, kind: str, size: int) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        train(network, optimizer, session.rank, range(8))

    assert_trains_as_one(ranks, loop, 8, size, make=OPTIMIZERS[kind])


@pytest.mark.parametrize("compression", [bps.Compression.fp16, bps.Compression.bf16])
def test_compressed_gradients_are_close_and_the_same_on_all_ranks(ranks: Ranks, compression: Any) -> None:
    def work(session: Session) -> list[Tensor]:
        network = model(dtype=torch.float32)
        train(network, distributed(network, session, compression=compression), session.rank, range(4))
        assert all(gradient.dtype == torch.float32 for gradient in gradients(network))
        return parameters(network)

    first, second = ranks(2, work)
    assert_same(first, second)
    torch.testing.assert_close(first, reference(2, 4, dtype=torch.float32), rtol=0.02, atol=0.02)


def test_sum_and_predivided_average(ranks: Ranks) -> None:
    def work(session: Session) -> list[list[Tensor]]:
        found = []
        for options in ({"op": bps.Sum}, {"gradient_predivide_factor": 4.0}):
            network = model()
            optimizer = distributed(network, session, **options)
            loss_of(network, session.rank, 0).backward()
            optimizer.synchronize()
            found.append(gradients(network))
        return found

    mean = mean_gradients(2, 0)
    for summed, predivided in ranks(2, work):
        assert_equal(summed, [2 * gradient for gradient in mean])
        assert_equal(predivided, mean)


def test_one_worker_trains_as_without_byteps(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        network = model()
        optimizer = distributed(network, session, compression=bps.Compression.fp16)
        train(network, optimizer, 0, range(5))
        assert all(map(torch.equal, parameters(network), reference(1, 5)))
        assert not any(parameter._post_accumulate_grad_hooks for parameter in network.parameters())
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()

    ranks(1, work)


@pytest.mark.parametrize("named", [True, False])
def test_parameter_groups_with_and_without_names(ranks: Ranks, named: bool) -> None:
    def work(session: Session) -> list[Tensor]:
        network = model()
        groups = [{"params": list(layer.parameters())} for layer in network if list(layer.parameters())]
        names = network.named_parameters() if named else None
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(groups, 0.1, 0.9), names, session=session)
        train(network, optimizer, session.rank, range(4))
        return parameters(network)

    for found in ranks(2, work):
        assert_equal(found, reference(2, 4))


def test_names_may_come_in_another_order_on_each_rank(ranks: Ranks) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        names = sorted(network.named_parameters(), reverse=session.rank == 1)
        again = bps.DistributedOptimizer(sgd(network.parameters()), names, session=session)
        train(network, again, session.rank, range(4))

    assert_trains_as_one(ranks, loop, 4)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_passes_its_argument_on(ranks: Ranks, set_to_none: bool) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        for step in range(4):
            optimizer.zero_grad(set_to_none=set_to_none)
            assert all((p.grad is None) == (set_to_none or step == 0) for p in network.parameters())
            loss_of(network, session.rank, step).backward()
            optimizer.step()

    assert_trains_as_one(ranks, loop, 4)


@pytest.mark.parametrize("in_place", [True, False])
def test_gradients_are_sent_from_the_second_step_on_if_zeroed_through_the_module(
    ranks: Ranks, in_place: bool
) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        for step in range(4):
            network.zero_grad(set_to_none=not in_place)
            loss_of(network, session.rank, step).backward()
            assert in_flight(optimizer) == (4 if step else 0)
            optimizer.step()

    assert_trains_as_one(ranks, loop, 4)


def test_gradients_are_sent_during_the_backward_pass_from_the_second_step_on(ranks: Ranks) -> None:
    sent = []

    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        for step in range(3):
            optimizer.zero_grad()
            loss_of(network, session.rank, step).backward()
            sent.append((step, in_flight(optimizer)))
            optimizer.step()

    trained(ranks, loop)
    assert sorted(sent) == [(0, 0), (0, 0), (1, 4), (1, 4), (2, 4), (2, 4)]


def test_priorities_follow_the_forward_pass(ranks: Ranks) -> None:
    class Backwards(nn.Module):
        """Uses its layers in the opposite order of their definition."""

        def __init__(self) -> None:
            super().__init__()
            self.last, self.middle, self.first = (nn.Linear(5, 5, bias=False) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.last(self.middle(self.first(x)))
            return result

    def work(session: Session) -> list[list[str]]:
        network = Backwards()
        optimizer = distributed(network, session)
        assert optimizer._reducer is not None
        orders = []
        for _ in range(2):
            slots = sorted(optimizer._reducer._slots, key=lambda slot: -slot.priority)
            orders.append([slot.name for slot in slots])
            network(torch.ones(1, 5)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return orders

    for defined, observed in ranks(2, work):
        assert defined == ["last.weight", "middle.weight", "first.weight"]
        assert observed == defined[::-1]


@pytest.mark.parametrize("passes", [2, 3])
def test_gradients_of_several_passes_are_summed(ranks: Ranks, passes: int) -> None:
    def work(session: Session) -> list[Tensor]:
        network = model()
        optimizer = distributed(network, session, backward_passes_per_step=passes)
        assert optimizer.backward_passes_per_step == passes
        for step in range(0, 4 * passes, passes):
            optimizer.zero_grad()
            for micro in range(passes):
                (loss_of(network, session.rank, step + micro) / passes).backward()
                assert in_flight(optimizer) == (4 if step and micro == passes - 1 else 0)
            optimizer.step()
        return parameters(network)

    def alone() -> list[Tensor]:
        network = model()
        optimizer = sgd(network.parameters())
        for step in range(0, 4 * passes, passes):
            optimizer.zero_grad()
            for micro in range(passes):
                for rank in range(2):
                    (loss_of(network, rank, step + micro) / passes / 2).backward()
            optimizer.step()
        return parameters(network)

    for found in ranks(2, work):
        assert_equal(found, alone())


PASSES = (1, 2, 2, 1, 2, 3, 3, 1, 3)


def test_the_number_of_passes_may_change_and_rounds_may_be_short(ranks: Ranks) -> None:
    def work(session: Session) -> list[list[Tensor]]:
        network = model()
        optimizer = distributed(network, session, backward_passes_per_step=2)
        found = []
        for passes in PASSES:
            if passes > optimizer.backward_passes_per_step:
                optimizer.set_backward_passes_per_step(passes)
            optimizer.zero_grad()
            for step in range(passes):
                loss_of(network, session.rank, step).backward()
            optimizer.synchronize()
            found.append(gradients(network))
        return found

    sums = {1: mean_gradients(2, 0)}
    for passes in (2, 3):
        sums[passes] = added(sums[passes - 1], mean_gradients(2, passes - 1))
    for found in ranks(2, work):
        for passes, result in zip(PASSES, found, strict=True):
            assert_equal(result, sums[passes])


def test_shared_weights_under_activation_checkpointing(ranks: Ranks) -> None:
    wanted = [mean_gradients(2, step, shared_model) for step in range(3)]
    networks = [shared_model() for _ in range(2)]

    def work(session: Session) -> None:
        network = networks[session.rank]
        optimizer = distributed(network, session)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(network, session.rank, step).backward()
            assert in_flight(optimizer) == (6 if step else 0)
            optimizer.synchronize()
            assert_equal(gradients(network), wanted[step])

    ranks(2, work)


def test_sparse_gradients_made_dense(ranks: Ranks) -> None:
    def work(session: Session) -> Tensor:
        table = nn.Embedding(6, 2, sparse=True)
        optimizer = distributed(table, session, sparse_as_dense=True)
        for _ in range(3):
            optimizer.zero_grad()
            table(torch.tensor([session.rank, 4, 4])).sum().backward()
            optimizer.synchronize()
        (gradient,) = gradients(table)
        return gradient

    for gradient in ranks(2, work):
        assert gradient.tolist() == [[0.5, 0.5], [0.5, 0.5], [0.0, 0.0], [0.0, 0.0], [2.0, 2.0], [0.0, 0.0]]


def test_channels_last_weights(ranks: Ranks) -> None:
    def work(session: Session) -> list[Tensor]:
        torch.manual_seed(0)
        network: nn.Conv2d = nn.Conv2d(3, 4, 3).double()
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.fill_(0.5)
        optimizer = distributed(network, session)
        for _ in range(3):
            optimizer.zero_grad()
            network(torch.full((1, 3, 4, 4), 1.0 + session.rank, dtype=torch.float64)).sum().backward()
            optimizer.step()
        assert network.weight.is_contiguous(memory_format=torch.channels_last)
        return parameters(network)

    first, second = ranks(2, work)
    assert_same(first, second)
    assert not first[0].eq(0.5).any()
