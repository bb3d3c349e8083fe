"""CrossBarrier within the loops that scripts have: accumulation, AMP, clipping, GANs, frozen layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import byteps.torch as bps
from byteps.session import Session

from .conftest import Ranks
from .test_torch_cross_barrier import raw, waiting
from .test_torch_gan import ORDERS, UNSEEN, ZEROS, discriminate, gan_step, generate, make_gan
from .training import (
    assert_equal,
    assert_same,
    assert_same_as_distributed,
    assert_trains_as_one,
    crossing,
    distributed,
    loss_of,
    model,
    parameters,
    reference,
    sgd,
    train,
)


@pytest.mark.parametrize("passes", [2, 3])
def test_gradients_of_several_passes(ranks: Ranks, passes: int) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        optimizer.set_backward_passes_per_step(passes)
        for step in range(0, 5 * passes, passes):
            optimizer.zero_grad()
            for micro in range(passes):
                (loss_of(network, session.rank, step + micro) / passes).backward()
            optimizer.step()

    assert_same_as_distributed(ranks, model, loop)


def test_evaluation_between_steps(ranks: Ranks) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        for step in range(4):
            train(network, optimizer, session.rank, [step])
            inputs = torch.ones(1, 5, dtype=torch.float64)
            with torch.inference_mode(step % 2 == 0), torch.no_grad():
                seen = network.eval()(inputs)
            assert waiting(optimizer) == []
            alone = model()
            for kept, wanted in zip(alone.parameters(), reference(2, step + 1), strict=True):
                kept.data.copy_(wanted)
            torch.testing.assert_close(seen, alone(inputs).detach())
            network.train()

    assert_trains_as_one(ranks, loop, 4, wrap=crossing)


def test_a_step_that_is_skipped_leaves_parameters_untouched(ranks: Ranks) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        for step in (0, 1, 99, 2, 3):
            optimizer.zero_grad()
            loss_of(network, session.rank, step).backward()
            if step != 99:
                optimizer.step()
            else:
                assert_equal(raw(network), reference(2, 2))

    assert_trains_as_one(ranks, loop, 4, wrap=crossing)


def test_clipping_between_synchronize_and_step(ranks: Ranks) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        for step in range(6):
            optimizer.zero_grad()
            loss_of(network, session.rank, step).backward()
            if step in (2, 3):
                optimizer.synchronize()
                nn.utils.clip_grad_norm_(network.parameters(), 0.1)
                with optimizer.skip_synchronize():
                    optimizer.step()
                assert waiting(optimizer) == []
            else:
                optimizer.step()

    assert_same_as_distributed(ranks, model, loop)


@pytest.mark.parametrize("recipe", ["plain", "synchronize and skip"])
def test_amp_with_a_step_that_is_skipped(ranks: Ranks, recipe: str) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
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
        assert scaler.get_scale() == 256.0

    assert_same_as_distributed(ranks, lambda: model(dtype=torch.float32), loop)


def test_autocast(ranks: Ranks) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        for step in range(4):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(network, session.rank, step)
            loss.backward()
            optimizer.step()

    assert_same_as_distributed(ranks, lambda: model(dtype=torch.float32), loop)


def test_step_hooks_see_the_update(ranks: Ranks) -> None:
    def work(session: Session) -> list[str]:
        network = model()
        optimizer = crossing(network, session)
        calls: list[str] = []
        optimizer.register_step_pre_hook(lambda *arguments: calls.append("before"))
        hook = optimizer.register_step_post_hook(lambda *arguments: calls.append("after"))
        optimizer.register_step_post_hook(lambda *arguments: assert_equal(raw(network), reference(2, 1)))
        train(network, optimizer, session.rank, [0])
        hook.remove()
        return calls

    assert ranks(2, work) == [["before", "after"]] * 2


def test_a_step_that_was_replaced_on_the_plain_optimizer(ranks: Ranks) -> None:
    def work(session: Session) -> list[Tensor]:
        network = model()
        plain: Any = sgd(network.parameters())
        inner, calls = plain.step, []

        def replaced(*arguments: Any) -> None:
            calls.append(arguments)
            inner(*arguments)

        plain.step = replaced
        train(network, bps.CrossBarrier(network, plain, session=session), session.rank, range(3))
        assert len(calls) == 3
        return parameters(network)

    for found in ranks(2, work):
        assert_equal(found, reference(2, 3))


def test_parameters_that_are_added_later(ranks: Ranks) -> None:
    def work(session: Session, wrap: str) -> list[Tensor]:
        network: Any = model()
        plain = sgd(network[0].parameters())
        if wrap == "cross":
            optimizer: Any = bps.CrossBarrier(network, plain, session=session)
        else:
            optimizer = bps.DistributedOptimizer(plain, network[0].named_parameters(), session=session)
        for step in range(6):
            if step == 3:
                optimizer.add_param_group({"params": list(network[2].parameters()), "lr": 0.01})
            optimizer.zero_grad()
            loss_of(network, session.rank, step).backward()
            optimizer.step()
        return parameters(network)

    plain = ranks(2, lambda session: work(session, "plain"), deterministic=True)
    crossed = ranks(2, lambda session: work(session, "cross"), deterministic=True)
    for one, other in zip(plain, crossed, strict=True):
        assert_same(other, one)


def test_parameters_outside_the_model_are_updated_by_the_step(ranks: Ranks) -> None:
    def work(session: Session) -> list[Tensor]:
        network: Any = model()
        optimizer = bps.CrossBarrier(network[0], sgd(network.parameters()), session=session)
        for step in range(4):
            train(network, optimizer, session.rank, [step])
            assert_equal(raw(network)[2:], reference(2, step + 1)[2:])
        return parameters(network)

    for found in ranks(2, work):
        assert_equal(found, reference(2, 4))


CASES = [(o, z) for o in ORDERS for z in ZEROS if (o, z) != UNSEEN]


@pytest.mark.parametrize(("order", "zero"), CASES)
def test_gan_loops_with_two_optimizers(ranks: Ranks, order: str, zero: str) -> None:
    def loop(session: Session, networks: Any, wrap: Callable[..., Any]) -> None:
        optimizers = [wrap(network, session) for network in networks]
        for step in range(5):
            losses = [
                lambda step=step: generate(networks, session.rank, step).backward(),
                lambda step=step: discriminate(networks, session.rank, step).backward(),
            ]
            gan_step(networks, optimizers, ORDERS[order], ZEROS[zero], losses)

    found = []
    for wrap in (distributed, crossing):
        made = [make_gan() for _ in range(2)]

        def work(session: Session, made: Any = made, wrap: Any = wrap) -> list[Tensor]:
            loop(session, made[session.rank], wrap)
            return [tensor for network in made[session.rank] for tensor in parameters(network)]

        found.append(ranks(2, work, deterministic=True))
    for plain, crossed in zip(*found, strict=True):
        assert_same(crossed, plain)


def test_two_optimizers_over_parts_of_one_model(ranks: Ranks) -> None:
    def loop(session: Session, network: Any, optimizer: Any) -> None:
        parts = [bps.CrossBarrier(network, sgd(network[n].parameters()), session=session) for n in (0, 2)]
        for step in range(4):
            for part in parts:
                part.zero_grad()
            loss_of(network, session.rank, step).backward()
            for part in parts:
                part.step()

    assert_trains_as_one(ranks, loop, 4)


def test_an_optimizer_that_is_wrapped_anew(ranks: Ranks) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        train(network, optimizer, session.rank, range(2))
        renewed = crossing(network, session)  # while updates of the old one wait
        assert_equal(raw(network), reference(2, 2))
        renewed.load_state_dict(optimizer.state_dict())
        train(network, renewed, session.rank, range(2, 4))
        with pytest.raises(RuntimeError, match="Use only the last one"):
            optimizer.step()

    assert_trains_as_one(ranks, loop, 4, wrap=crossing)


def test_priorities_follow_the_first_use_in_the_forward_pass(ranks: Ranks) -> None:
    class Twice(nn.Module):
        """Uses the layer that is defined last first, and again last; one weight only in passing."""

        def __init__(self) -> None:
            super().__init__()
            self.last, self.middle, self.twice = (nn.Linear(5, 5, bias=False) for _ in range(3))
            self.tied = self.middle

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = self.twice(self.last(nn.functional.linear(self.twice(x), self.tied.weight)))
            return result

    def work(session: Session) -> list[str]:
        network = Twice()
        network.state_dict()
        optimizer = crossing(network, session)
        list(network.parameters())
        for _ in range(2):
            network(torch.ones(1, 5)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        slots = sorted(optimizer._reducer.slots, key=lambda slot: -slot.priority)
        return [slot.name for slot in slots]

    assert ranks(2, work) == [["twice.weight", "middle.weight", "last.weight"]] * 2


@pytest.mark.parametrize("compression", [bps.Compression.fp16, bps.Compression.none])
def test_one_made_by_distributed_optimizer(ranks: Ranks, compression: Any) -> None:
    def work(session: Session, cross: bool) -> list[Tensor]:
        network = model(dtype=torch.float32)
        optimizer: Any = distributed(network, session, compression=compression, backward_passes_per_step=2)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
        if cross:
            assert bps.CrossBarrier(network, optimizer, network.named_parameters(), num_steps=10) is optimizer
        for step in range(4):
            optimizer.zero_grad()
            for micro in range(2):
                loss_of(network, session.rank, 2 * step + micro).backward()
            optimizer.step()
            schedule.step()
        return parameters(network)

    plain = ranks(2, lambda session: work(session, False), deterministic=True)
    crossed = ranks(2, lambda session: work(session, True), deterministic=True)
    for one, other in zip(plain, crossed, strict=True):
        assert_same(other, one)


def test_a_dropped_optimizer_sends_nothing_any_more(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        network = model()
        optimizer = crossing(network, session)
        train(network, optimizer, session.rank, range(2))
        optimizer.flush()
        del optimizer
        session.barrier()
        session.shutdown()
        loss_of(network, session.rank, 2).backward()

    ranks(2, work)


def test_a_frozen_parameter_that_keeps_its_gradient_is_still_updated(ranks: Ranks) -> None:
    def loop(session: Session, network: Any, optimizer: Any) -> None:
        train(network, optimizer, session.rank, range(2))
        network[0].weight.requires_grad_(False)
        for step in range(2, 5):
            optimizer.zero_grad(set_to_none=False)
            loss_of(network, session.rank, step).backward()
            optimizer.step()

    assert_same_as_distributed(ranks, model, loop)
