"""DistributedDataParallel: averages after backward(), whatever the module and the loop do."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import byteps.torch as bps
from byteps.errors import NotInitialized
from byteps.session import Session
from byteps.torch.parallel import DistributedDataParallel

from .conftest import Ranks
from .training import (
    added,
    assert_equal,
    assert_same,
    batch,
    gradients,
    loss_of,
    mean_gradients,
    model,
    parameters,
    reference,
    sgd,
    shared_model,
)


def wrap(network: nn.Module, session: Session, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(network, session=session, **options)


def test_gradients_are_averages_when_backward_returns(ranks: Ranks) -> None:
    def work(session: Session) -> list[Tensor]:
        network = wrap(model(seed=session.rank), session)
        optimizer = sgd(network.parameters())
        for step in range(6):
            optimizer.zero_grad()
            loss_of(network, session.rank, step).backward()
            optimizer.step()
        return parameters(network)

    for found in ranks(3, work):
        assert_equal(found, reference(3, 6))


def test_state_dict_and_module(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        plain = model()
        network = wrap(plain, session, device_ids=[0], find_unused_parameters=True)
        assert network.module is plain
        assert list(network.state_dict()) == [f"module.{name}" for name in plain.state_dict()]
        network.load_state_dict(copy.deepcopy(network.state_dict()))
        network.synchronize()

    ranks(2, work)


def test_one_worker(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        network = wrap(model(), session)
        with network.no_sync():
            loss_of(network, 0, 0).backward()
        assert_equal(gradients(network), mean_gradients(1, 0))

    ranks(1, work)


class Part(nn.Module):
    """Uses layer ``index`` only; the last layer is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 1, bias=False) for _ in range(4))

    def forward(self, x: Tensor, index: int) -> Tensor:
        result: Tensor = self.layers[index](x)
        return result


def test_unused_parameters(ranks: Ranks) -> None:
    plans = [(0, 1), (0, 1), (2, 2), (1, 0), (1, 2)]

    def work(session: Session) -> list[list[float | None]]:
        network, found = wrap(Part(), session), []
        for plan in plans:
            network.zero_grad()
            network(torch.ones(2), plan[session.rank]).sum().backward()
            found.append([None if p.grad is None else p.grad[0, 0].item() for p in network.parameters()])
        return found

    wanted = [[plan.count(index) / 2 if index in plan else None for index in range(4)] for plan in plans]
    assert ranks(2, work) == [wanted, wanted]


def test_no_sync_accumulates_and_the_next_pass_sends_the_sum(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        network = wrap(model(), session)
        for _ in range(3):
            network.zero_grad()
            with network.no_sync():
                for step in (0, 1):
                    loss_of(network, session.rank, step).backward()
            own = [mean_gradients(1, 0), mean_gradients(1, 1)]
            if session.rank == 0:
                assert_equal(gradients(network), added(*own))
            loss_of(network, session.rank, 2).backward()
            assert_equal(gradients(network), totals)

    totals = added(*(mean_gradients(2, step) for step in range(3)))
    ranks(2, work)


def test_a_parameter_used_only_within_no_sync_is_sent_all_the_same(ranks: Ranks) -> None:
    def work(session: Session) -> list[list[float | None]]:
        network, found = wrap(Part(), session), []
        for _ in range(3):
            network.zero_grad()
            with network.no_sync():
                network(torch.full((2,), 1.0 + session.rank), 0).sum().backward()
            network(torch.ones(2), 1).sum().backward()
            found.append([None if p.grad is None else p.grad[0, 0].item() for p in network.parameters()])
        return found

    assert ranks(2, work) == [[[1.5, 1.0, None, None]] * 3] * 2


def test_passes_without_zero_grad_add_up(ranks: Ranks) -> None:
    def work(session: Session) -> list[Tensor]:
        network = wrap(model(), session)
        for step in range(3):
            loss_of(network, session.rank, step).backward()
        return gradients(network)

    totals = added(*(mean_gradients(2, step) for step in range(3)))
    for found in ranks(2, work):
        assert_equal(found, totals)


def test_two_forward_passes_in_one_backward_pass_make_one_round(ranks: Ranks) -> None:
    def work(session: Session) -> list[Tensor]:
        network = wrap(model(), session)
        reducer: Any = network._reducer
        closed = mock.Mock(wraps=reducer.close_round)
        reducer.close_round = closed
        for _ in range(3):
            network.zero_grad()
            (loss_of(network, session.rank, 0) + loss_of(network, session.rank, 1)).backward()
        assert closed.call_count == 3
        return gradients(network)

    wanted = added(mean_gradients(2, 0), mean_gradients(2, 1))
    for found in ranks(2, work):
        assert_equal(found, wanted)


def test_shared_weights_under_activation_checkpointing(ranks: Ranks) -> None:
    networks = [shared_model() for _ in range(2)]
    wanted = [mean_gradients(2, step, shared_model) for step in range(3)]

    def work(session: Session) -> None:
        network = wrap(networks[session.rank], session)
        for step in range(3):
            network.zero_grad()
            loss_of(network, session.rank, step).backward()
            assert_equal(gradients(network), wanted[step])

    ranks(2, work)


class Point(NamedTuple):
    x: Tensor
    y: Tensor


class Opaque:
    """Hides a tensor from whoever looks for one."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


OUTPUTS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "tuple": (lambda y: (None, y), lambda out: out[1]),
    "named tuple": (lambda y: Point(y, y + 1), lambda out: out.x),
    "nested": (lambda y: {"loss": [{"deep": y}], "size": 3}, lambda out: out["loss"][0]["deep"]),
    "opaque": (Opaque, lambda out: out.tensor),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_outputs_of_every_form(ranks: Ranks, kind: str) -> None:
    pack, unpack = OUTPUTS[kind]

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model()

        def forward(self, x: Tensor) -> Any:
            return pack(self.inner(x))

    def work(session: Session) -> None:
        network = wrap(Packed(), session)
        for step in range(3):
            network.zero_grad()
            inputs, targets = batch(session.rank, step)
            nn.functional.mse_loss(unpack(network(inputs)), targets).backward()
            assert_equal(gradients(network), mean_gradients(2, step))
            with torch.no_grad():
                network(inputs)

    ranks(2, work)


def normalised(seed: int) -> nn.Sequential:
    network = nn.Sequential(model(seed), nn.BatchNorm1d(3, dtype=torch.float64))
    with torch.no_grad():
        for buffer in network.buffers():
            buffer.fill_(seed + 1)
    return network


@pytest.mark.parametrize("broadcast_buffers", [True, False])
def test_buffers_follow_rank_0_in_training(ranks: Ranks, broadcast_buffers: bool) -> None:
    def work(session: Session) -> list[list[Tensor]]:
        network = wrap(normalised(session.rank), session, broadcast_buffers=broadcast_buffers)
        found = [[buffer.clone() for buffer in network.buffers()]]
        for step in range(2):
            network(batch(session.rank, step)[0])
            with network.no_sync():
                network(batch(session.rank, step)[0])
        if session.rank == 0:
            network.eval()
            network(batch(0, 0)[0])  # no rank has to take part in this
        else:
            network.train()
        session.barrier()
        network.train()
        network(batch(0, 9)[0])
        return [*found, [buffer.clone() for buffer in network.buffers()]]

    (start, end), (other_start, other_end) = ranks(2, work)
    assert all(map(torch.equal, start, other_start)), "rank 0's are given at the start in any case"
    assert all(map(torch.equal, end, other_end)) == broadcast_buffers


def test_several_instances_with_equal_names(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        first, second = wrap(nn.Linear(5, 3).double(), session), wrap(nn.Linear(3, 2).double(), session)
        for step in range(3):
            first.zero_grad()
            second.zero_grad()
            second(first(batch(session.rank, step)[0])).square().mean().backward()
            for gradient in [*gradients(first), *gradients(second)]:
                sums = bps.push_pull(gradient, session=session)
                assert_equal([gradient], [sums])

    ranks(2, work)


class Fails(torch.autograd.Function):
    """The identity, but for its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        raise ArithmeticError("on purpose")


@pytest.mark.parametrize("zeroed", [True, False])
def test_a_backward_pass_that_failed_does_not_break_the_next(ranks: Ranks, zeroed: bool) -> None:
    def work(session: Session) -> list[Tensor]:
        first, activation, last = model()
        middle = nn.Identity()
        network = wrap(nn.Sequential(first, activation, middle, last), session)
        for step in range(3):
            network.zero_grad()
            loss_of(network, session.rank, step).backward()
        network.zero_grad()
        hook = middle.register_forward_hook(lambda module, inputs, output: Fails.apply(output))  # type: ignore[no-untyped-call]
        with pytest.raises(ArithmeticError):
            loss_of(network, session.rank, 3).backward()
        hook.remove()
        if zeroed:
            network.zero_grad()
        loss_of(network, session.rank, 4).backward()
        if zeroed:
            assert_equal(gradients(network), mean_gradients(2, 4))
        return gradients(network)

    assert_same(*ranks(2, work))


def test_compression_and_sparse_gradients(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        table = nn.Embedding(4, 2, sparse=True)
        network = wrap(table, session, compression=bps.Compression.bf16, sparse_as_dense=True)
        for _ in range(3):
            network.zero_grad()
            network(torch.tensor([session.rank, 3])).sum().backward()
            (gradient,) = gradients(network)
            assert gradient.dtype == torch.float32
            assert gradient.tolist() == [[0.5, 0.5], [0.5, 0.5], [0.0, 0.0], [1.0, 1.0]]

    ranks(2, work)


def test_a_module_and_its_optimizer_are_not_both_distributed(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        network = wrap(model(), session)
        names = network.named_parameters()
        optimizer = bps.DistributedOptimizer(sgd(network.parameters()), names, session=session)
        with pytest.raises(RuntimeError, match="use a plain optimizer"):
            loss_of(network, session.rank, 0).backward()
        assert optimizer.state_dict()

    ranks(2, work)


def test_models_are_saved_and_copied_with_their_hooks(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        network = wrap(model(), session)
        loss_of(network, session.rank, 0).backward()
        torch.save(network.module, io.BytesIO())
        copied = copy.deepcopy(network.module)
        loss_of(copied, session.rank, 1).backward()  # sends nothing

    ranks(2, work)


def test_wrong_arguments(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
            wrap("module", session)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="one device"):
            wrap(model(), session, device_ids=[0, 1])

    ranks(1, work)
    with pytest.raises(NotInitialized):
        DistributedDataParallel(model())
