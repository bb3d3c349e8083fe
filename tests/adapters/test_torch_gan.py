"""Two optimizers at once: GAN loops in several orders, and parts of one model."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import byteps.torch as bps
from byteps.session import Session

from .conftest import Ranks
from .training import assert_equal, assert_trains_as_one, distributed, loss_of, mean, parameters, sgd


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
    "two steps of the generator": "zdbdsdzgbgsgzgbgsg",
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
                lambda step=step: mean(generate(networks, rank, step) for rank in range(2)).backward(),
                lambda step=step: mean(discriminate(networks, rank, step) for rank in range(2)).backward(),
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
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        layers = [layer for layer in network.children() if list(layer.parameters())]
        names = list(network.named_parameters())
        parts = [
            bps.DistributedOptimizer(sgd(layer.parameters()), names, session=session) for layer in layers
        ]
        for step in range(4):
            for part in parts:
                part.zero_grad()
            loss_of(network, session.rank, step).backward()
            for part in parts:
                part.step()

    assert_trains_as_one(ranks, loop, 4)
