"""What scripts do between backward pass and step: unused parameters, GANs, AMP, clipping, mistakes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import byteps.torch as bps
from byteps.errors import NotInitialized
from byteps.session import Session

from .conftest import Ranks
from .training import (
    assert_equal,
    distributed,
    gradients,
    loss_of,
    mean_gradients,
    model,
    parameters,
    reference,
    sgd,
    train,
)


class Branches(nn.Module):
    """Layers of which each call uses one."""

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 1, bias=False) for _ in range(count))

    def forward(self, x: Tensor, branch: int) -> Tensor:
        result: Tensor = self.layers[branch](x)
        return result

    def grads(self) -> list[list[float] | None]:
        weights = [layer.weight for layer in self.layers]
        return [None if w.grad is None else w.grad.flatten().tolist() for w in weights]


def test_ranks_that_use_different_parameters(ranks: Ranks) -> None:
    plans = [(0, 1), (0, 1), (0, 0), (1, 2), (0, 1), (2, 2)]

    def work(session: Session) -> list[list[list[float] | None]]:
        network = Branches(4)
        optimizer = distributed(network, session)
        found = []
        for plan in plans:
            optimizer.zero_grad()
            network(torch.ones(2), plan[session.rank]).sum().backward()
            optimizer.step()
            found.append(network.grads())
        return found

    def wanted(plan: tuple[int, int]) -> list[list[float] | None]:
        # One that no rank used stays without a gradient; one that some rank used gets the average.
        return [[plan.count(branch) / 2] * 2 if branch in plan else None for branch in range(4)]

    for found in ranks(2, work):
        assert found == [wanted(plan) for plan in plans]


def test_a_parameter_that_all_ranks_used_at_first_gets_zeros_where_it_is_unused_later(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        network = Branches(2)
        optimizer = distributed(network, session)
        for branches in ([0, 1], [0], [session.rank]):
            optimizer.zero_grad()
            sum(network(torch.ones(2), branch).sum() for branch in branches).backward()  # type: ignore[union-attr]
            optimizer.step()
            first, second = network.grads()
            if branches == [0, 1]:
                assert (first, second) == ([1.0, 1.0], [1.0, 1.0])
            elif branches == [0] and session.rank:
                assert (first, second) == ([1.0, 1.0], [0.0, 0.0])
        assert (first, second) == ([0.5, 0.5], [0.5, 0.5])

    ranks(2, work)


def test_a_rank_without_any_gradient(ranks: Ranks) -> None:
    def work(session: Session) -> list[Tensor]:
        network = model()
        optimizer = distributed(network, session)
        for step in range(3):
            optimizer.zero_grad()
            if session.rank == 0:
                loss_of(network, 0, step).backward()
            optimizer.step()
        return parameters(network)

    first, second = ranks(2, work)
    assert all(map(torch.equal, first, second))


def test_parameters_that_are_frozen_and_unfrozen(ranks: Ranks) -> None:
    def work(session: Session) -> list[list[float] | None]:
        network = Branches(2)
        network.layers[1].requires_grad_(False)
        optimizer = distributed(network, session)
        for step in range(6):
            network.layers[1].requires_grad_(step >= 2)
            network.layers[0].requires_grad_(step < 4)
            optimizer.zero_grad()
            both = network(torch.ones(2), 0) + network(torch.full((2,), 1.0 + session.rank), 1)
            both.sum().backward()
            optimizer.step()
        return network.grads()

    assert ranks(2, work) == [[None, [1.5, 1.5]]] * 2


def test_parameters_added_to_the_optimizer_later(ranks: Ranks) -> None:
    def work(session: Session) -> list[list[float] | None]:
        network = Branches(2)
        plain = torch.optim.SGD(network.layers[0].parameters(), lr=0.1)
        optimizer = bps.DistributedOptimizer(plain, network.named_parameters(), session=session)
        for step in range(4):
            if step == 1:
                optimizer.add_param_group({"params": list(network.layers[1].parameters())})
            optimizer.zero_grad()
            both = network(torch.ones(2), 0) + network(torch.full((2,), 1.0 + session.rank), 1)
            both.sum().backward()
            optimizer.step()
        return network.grads()

    assert ranks(2, work) == [[[1.0, 1.0], [1.5, 1.5]]] * 2


def test_more_backward_passes_than_before_is_an_error_on_every_rank(ranks: Ranks) -> None:
    def work(session: Session) -> list[Tensor]:
        network = model()
        optimizer = distributed(network, session)
        train(network, optimizer, session.rank, [0])
        optimizer.zero_grad()
        loss_of(network, session.rank, 1).backward()
        with pytest.raises(
            RuntimeError, match=r"gradient of '2\.\w+' was computed again.*backward_passes_per_step"
        ):
            loss_of(network, session.rank, 1).backward()
        train(network, optimizer, session.rank, [1, 2])
        return parameters(network)

    for found in ranks(2, work):
        assert_equal(found, reference(2, 3))


def discriminate(networks: tuple[nn.Module, nn.Module], rank: int, step: int) -> Tensor:
    generator, discriminator = networks
    inputs = torch.full((2, 5), float(step - rank), dtype=torch.float64)
    loss: Tensor = discriminator(generator(inputs).detach()).square().mean()
    return loss


def generate(networks: tuple[nn.Module, nn.Module], rank: int, step: int) -> Tensor:
    generator, discriminator = networks
    inputs = torch.full((2, 5), float(step + rank), dtype=torch.float64)
    loss: Tensor = discriminator(generator(inputs)).mean()
    return loss


def make_gan() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(3)
    return nn.Linear(5, 4).double(), nn.Linear(4, 1).double()


Zero = Callable[[Any, nn.Module], None]
ZEROS: dict[str, Zero] = {
    "optimizer": lambda optimizer, network: optimizer.zero_grad(),
    "optimizer, in place": lambda optimizer, network: optimizer.zero_grad(set_to_none=False),
    "module": lambda optimizer, network: network.zero_grad(),
    "module, in place": lambda optimizer, network: network.zero_grad(set_to_none=False),
}


def gan_step(networks: Any, optimizers: Any, order: str, zero: Zero, losses: Any) -> None:
    """One step of both networks. Letters: zero, backward, step of the (d)iscriminator or (g)enerator."""
    for index, action in zip(order[1::2], order[::2], strict=True):
        which = "gd".index(index)
        if action == "z":
            zero(optimizers[which], networks[which])
        elif action == "b":
            losses[which]()
        else:
            optimizers[which].step()


ORDERS = {
    "usual": "zdbdsdzgbgsg",
    "real and fake in two passes": "zdbdbdsdzgbgsg",
    "generator first": "zgbgsgzdbdsd",
    "all gradients dropped before both": "zgzdbgsgzdbdsd",
    "gradients dropped at once": "zdbdsdzdzgbgsg",
}
# The discriminator's gradients would be zeroed while they are in flight, unseen by its optimizer: an error.
UNSEEN = ("gradients dropped at once", "module, in place")


@pytest.mark.parametrize(("order", "zero"), [c for c in itertools.product(ORDERS, ZEROS) if c != UNSEEN])
def test_gan_loops_with_two_optimizers(ranks: Ranks, order: str, zero: str) -> None:
    steps = 5

    def alone() -> list[Tensor]:
        networks = make_gan()
        optimizers = [sgd(network.parameters()) for network in networks]
        for step in range(steps):
            losses = [
                lambda step=step: (sum(generate(networks, rank, step) for rank in range(2)) / 2).backward(),
                lambda step=step: (
                    sum(discriminate(networks, rank, step) for rank in range(2)) / 2
                ).backward(),
            ]
            gan_step(networks, optimizers, ORDERS[order], ZEROS["module"], losses)
        return [tensor for network in networks for tensor in parameters(network)]

    expected = alone()
    made = [make_gan() for _ in range(2)]

    def work(session: Session) -> list[Tensor]:
        networks = made[session.rank]
        optimizers = [distributed(network, session) for network in networks]
        for step in range(steps):
            losses = [
                lambda step=step: generate(networks, session.rank, step).backward(),
                lambda step=step: discriminate(networks, session.rank, step).backward(),
            ]
            gan_step(networks, optimizers, ORDERS[order], ZEROS[zero], losses)
        return [tensor for network in networks for tensor in parameters(network)]

    for found in ranks(2, work):
        assert_equal(found, expected)


def test_two_optimizers_over_parts_of_one_model(ranks: Ranks) -> None:
    def work(session: Session) -> list[Tensor]:
        network = model()
        parts = [
            bps.DistributedOptimizer(sgd(layer.parameters()), network.named_parameters(), session=session)
            for layer in (network[0], network[2])
        ]
        for step in range(4):
            for part in parts:
                part.zero_grad()
            loss_of(network, session.rank, step).backward()
            for part in parts:
                part.step()
        return parameters(network)

    for found in ranks(2, work):
        assert_equal(found, reference(2, 4))


def test_a_dropped_optimizer_sends_nothing_any_more(ranks: Ranks) -> None:
    def work(session: Session) -> list[Tensor]:
        network = model()
        train(network, distributed(network, session), session.rank, [7])
        fresh = model()
        with torch.no_grad():
            for parameter, value in zip(network.parameters(), fresh.parameters(), strict=True):
                parameter.copy_(value)
        train(network, distributed(network, session), session.rank, range(3))
        return parameters(network)

    for found in ranks(2, work):
        assert_equal(found, reference(2, 3))


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
        (sum(loss_of(network, rank, step) for rank in range(2)) / 2).backward()  # type: ignore[union-attr]
        optimizer.step()
    for found, scale in ranks(2, work):
        torch.testing.assert_close(found, parameters(network))
        assert scale == 256.0


def test_clipping_between_synchronize_and_step(ranks: Ranks) -> None:
    def work(session: Session) -> list[Tensor]:
        network = model()
        optimizer = distributed(network, session)
        for step in range(4):
            optimizer.zero_grad()
            loss_of(network, session.rank, step).backward()
            optimizer.synchronize()
            nn.utils.clip_grad_norm_(network.parameters(), 0.5)
            with optimizer.skip_synchronize():
                optimizer.step()
        return parameters(network)

    network = model()
    optimizer = sgd(network.parameters())
    for step in range(4):
        optimizer.zero_grad()
        (sum(loss_of(network, rank, step) for rank in range(2)) / 2).backward()  # type: ignore[union-attr]
        nn.utils.clip_grad_norm_(network.parameters(), 0.5)
        optimizer.step()
    for found in ranks(2, work):
        assert_equal(found, parameters(network))


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
    def work(session: Session) -> None:
        network = model()
        optimizer = distributed(network, session)
        train(network, optimizer, session.rank, [0])
        optimizer.zero_grad()
        loss_of(network, session.rank, 1).backward()
        weight = network[0].weight
        assert isinstance(weight, Tensor)
        assert weight.grad is not None
        if change == "scale":
            weight.grad.mul_(2)
        elif change == "replace":
            weight.grad = weight.grad * 2
        else:
            network.zero_grad(set_to_none=False)
        with pytest.raises(RuntimeError, match=r"'0\.\w+' was (changed|replaced).*synchronize\(\)"):
            optimizer.step()

    ranks(2, work)


def test_a_batch_that_is_given_up(ranks: Ranks) -> None:
    def work(session: Session) -> list[Tensor]:
        network = model()
        optimizer = distributed(network, session)
        for step in range(5):
            optimizer.zero_grad()
            loss_of(network, session.rank, step if step < 3 else step - 1).backward()
            if step == 2:
                continue
            optimizer.step()
        return parameters(network)

    for found in ranks(2, work):
        assert_equal(found, reference(2, 4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"named_parameters": [1, 2]}, "tuples"),
        ({"named_parameters": ["ab", "cd"]}, "tuples"),
        ({"named_parameters": {"a": 1}}, "tuples"),
        ({"named_parameters": [("same", None), ("same", None)]}, "duplicates: same"),
        ({"named_parameters": []}, "not named: parameter 0 of group 0"),
        ({"backward_passes_per_step": 0}, "positive integer"),
        ({"backward_passes_per_step": 1.5}, "positive integer"),
        ({"op": bps.Max}, "Average or Sum"),
        ({"op": bps.Sum, "gradient_predivide_factor": 2.0}, "predivide"),
        ({"gradient_predivide_factor": 0.0}, "positive"),
        ({"process_set": object()}, "process_set"),
    ],
    ids=repr,
)
def test_wrong_arguments_are_refused_even_before_init(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bps.DistributedOptimizer(sgd(model().parameters()), **options)


def test_a_parameter_named_twice_is_refused() -> None:
    network = model()
    names = [*network.named_parameters(), ("again", network[0].weight)]
    with pytest.raises(ValueError, match=r"'0\.weight' and as 'again'"):
        bps.DistributedOptimizer(sgd(network.parameters()), names)  # type: ignore[arg-type]


def test_optimizers_that_cannot_be_wrapped() -> None:
    with pytest.raises(ValueError, match="LBFGS.*line search"):
        bps.DistributedOptimizer(torch.optim.LBFGS(model().parameters()))
    with pytest.raises(TypeError, match="Optimizer"):
        bps.DistributedOptimizer(model())  # type: ignore[arg-type]
    with pytest.raises(NotInitialized):
        bps.DistributedOptimizer(sgd(model().parameters()))


def test_refusals_that_need_a_session(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        network = model()
        with pytest.warns(UserWarning, match="groups= have no effect"):
            optimizer = distributed(network, session, num_groups=2)
        with pytest.raises(ValueError, match="distributed already"):
            bps.DistributedOptimizer(optimizer, session=session)
        with pytest.raises(ValueError, match="positive integer"):
            optimizer.set_backward_passes_per_step(0)

    ranks(1, work)


def test_gradients_and_parameters_that_cannot_be_sent(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        odd = nn.ParameterDict({"odd": nn.Parameter(torch.zeros(2, dtype=torch.complex64))})
        with pytest.raises(ValueError, match="parameter 'odd'.*complex"):
            distributed(odd, session)
        table = nn.Embedding(4, 2, sparse=True)
        optimizer = distributed(table, session)
        table(torch.tensor([1])).sum().backward()
        with pytest.raises(ValueError, match="gradient of 'weight'.*sparse_as_dense=True"):
            optimizer.step()

    ranks(2, work)
