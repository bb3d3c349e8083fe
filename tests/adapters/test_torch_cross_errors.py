"""What cannot be right with CrossBarrier is refused, says what to do, and leaves the training usable."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import byteps.torch as bps
from byteps.errors import PeerLeft
from byteps.session import Session

from .conftest import Ranks
from .test_torch_cross_barrier import raw, waiting, with_all_in_flight
from .training import (
    assert_equal,
    assert_trains_as_one,
    crossing,
    distributed,
    in_flight,
    loss_of,
    model,
    reference,
    sgd,
    train,
    trained,
)


class Counting(torch.optim.SGD):
    """Keeps a counter of its own."""

    count = 0

    def step(self, closure: Any = None) -> Any:
        self.count += 1
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter -= parameter.grad / self.count


class CountingInGroup(torch.optim.SGD):
    """Keeps a counter in its parameter groups."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            with torch.no_grad():
                for parameter in group["params"]:
                    parameter -= parameter.grad / group["count"]


class Clipping(torch.optim.SGD):
    """Looks at the norm of all gradients together."""

    def step(self, closure: Any = None) -> Any:
        nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 1.0)
        super().step(closure)


class Closing(torch.optim.SGD):
    """Cannot do without a closure."""

    def step(self, closure: Any) -> Any:  # type: ignore[override]
        closure()


REFUSED: dict[str, tuple[Callable[..., torch.optim.Optimizer], str]] = {
    "counter": (Counting, "Counting cannot cross.*outside its `state`"),
    "counter in group": (CountingInGroup, "CountingInGroup cannot cross.*outside its `state`"),
    "global norm": (Clipping, "Clipping cannot cross.*several parameters at once"),
    "closure": (Closing, "Closing cannot cross.*closure"),
    "LBFGS": (torch.optim.LBFGS, "LBFGS cannot cross.*closure"),
    "sparse": (torch.optim.SparseAdam, "SparseAdam cannot cross.*dense gradients"),
}


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("workers", [1, 2])
def test_optimizers_that_cannot_cross(ranks: Ranks, kind: str, workers: int) -> None:
    make, message = REFUSED[kind]

    def work(session: Session) -> None:
        network = model()
        with pytest.raises(ValueError, match=message):
            crossing(network, session, lambda p: make(p, lr=0.1))
        assert_equal(raw(network), raw(model()))
        assert not any(parameter._post_accumulate_grad_hooks for parameter in network.parameters())

    ranks(workers, work)


def test_an_optimizer_whose_rate_starts_at_zero_is_still_looked_at(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        network = model()
        with pytest.raises(ValueError, match="several parameters at once"):
            crossing(network, session, lambda p: Clipping(p, lr=0.0))

    ranks(1, work)


def test_wrong_arguments(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        network = model()
        plain = sgd(network.parameters())
        with pytest.raises(TypeError, match=r"torch\.nn\.Module, got list"):
            bps.CrossBarrier([], plain, session=session)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="Optimizer"):
            bps.CrossBarrier(network, network, session=session)  # type: ignore[arg-type]
        wrapped = distributed(network, session, lambda p: plain)
        with pytest.raises(ValueError, match="to DistributedOptimizer"):
            bps.CrossBarrier(network, wrapped, backward_passes_per_step=2)
        assert bps.CrossBarrier(network, wrapped) is wrapped
        with pytest.raises(ValueError, match="already"):
            bps.CrossBarrier(network, wrapped)

    ranks(1, work)


@pytest.mark.parametrize("workers", [1, 2])
def test_closures(ranks: Ranks, workers: int) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        with pytest.raises(ValueError, match=r"takes no closure.*DistributedOptimizer"):
            optimizer.step(lambda: loss_of(network, session.rank, 0))
        train(network, optimizer, session.rank, range(3))

    assert_trains_as_one(ranks, loop, 3, workers, wrap=crossing)


def clip(network: nn.Module) -> None:
    nn.utils.clip_grad_norm_(network.parameters(), 1e-3)


def replace(network: nn.Module) -> None:
    for parameter in network.parameters():
        assert parameter.grad is not None
        parameter.grad = parameter.grad.clone()


def drop(network: nn.Module) -> None:
    for parameter in network.parameters():
        parameter.grad = None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (clip, r"'0\.\w+' was changed while it was being sent\. Call synchronize\(\)"),
        (replace, r"'0\.\w+' was replaced while it was being sent\. Call synchronize\(\)"),
        (drop, r"'0\.\w+' was set to None while it was being sent.*zero_grad\(\)"),
    ],
)
def test_gradients_changed_between_backward_and_step(
    ranks: Ranks, change: Callable[[nn.Module], None], message: str
) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        train(network, optimizer, session.rank, [0])
        optimizer.zero_grad()
        loss_of(network, session.rank, 99).backward()
        assert in_flight(optimizer) == 4
        change(network)
        with pytest.raises(RuntimeError, match=message):
            optimizer.step()
        assert_equal(raw(network), reference(2, 1))
        train(network, optimizer, session.rank, [1, 2])

    assert_trains_as_one(ranks, loop, 3, wrap=crossing)


def test_gradients_set_to_none_after_the_step_stay_none(ranks: Ranks) -> None:
    def check(network: nn.Module, optimizer: Any, release: Callable[[], None]) -> None:
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad = None
        release()
        assert_equal([p.detach() for p in network.parameters()], reference(2, 2))
        assert all(parameter.grad is None for parameter in network.parameters())

    for found in with_all_in_flight(ranks, check, steps=4):
        assert_equal(found, reference(2, 4))


def test_a_gradient_written_to_after_the_step(ranks: Ranks) -> None:
    def check(network: Any, optimizer: Any, release: Callable[[], None]) -> None:
        first = optimizer.param_groups[0]["params"][0]
        first.grad.mul_(2)
        release()
        with pytest.raises(RuntimeError, match=r"'0\.weight' was changed after step\(\).*flush\(\)"):
            network[0].weight  # noqa: B018
        found, wanted = raw(network), reference(2, 2)
        assert_equal(found[:1], reference(2, 1)[:1])
        assert_equal([p.detach() for p in network.parameters()][1:], wanted[1:])
        assert waiting(optimizer) == []

    with_all_in_flight(ranks, check)


def test_a_second_step_without_a_backward_pass(ranks: Ranks) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        train(network, optimizer, session.rank, [0, 1])
        with pytest.raises(RuntimeError, match=r"step\(\) was called again.*'0\.weight' has been used"):
            optimizer.step()
        assert_equal(raw(network), reference(2, 2))
        train(network, optimizer, session.rank, [2, 3])

    assert_trains_as_one(ranks, loop, 4, wrap=crossing)


def test_more_backward_passes_than_before(ranks: Ranks) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        train(network, optimizer, session.rank, [0])
        optimizer.zero_grad()
        loss_of(network, session.rank, 1).backward()
        with pytest.raises(RuntimeError, match=r"'2\.\w+' was computed again.*backward_passes_per_step"):
            loss_of(network, session.rank, 1).backward()
        assert_equal(raw(network), reference(2, 1))
        train(network, optimizer, session.rank, [1, 2])

    assert_trains_as_one(ranks, loop, 3, wrap=crossing)


def test_a_parameter_used_without_being_read_through_its_module(ranks: Ranks) -> None:
    def check(network: Any, optimizer: Any, release: Callable[[], None]) -> None:
        kept = optimizer.param_groups[0]["params"][0]
        message = r"'0\.weight' got a gradient, but nobody has read it.*flush\(\)"
        with pytest.raises(RuntimeError, match=message):
            kept.sum().backward()
        release()
        with pytest.raises(RuntimeError, match="parameter is not updated"):
            network[0].weight  # noqa: B018
        assert_equal(raw(network)[:1], reference(2, 1)[:1])

    with_all_in_flight(ranks, check)


def test_an_error_in_the_forward_pass_after_gradients_were_sent(ranks: Ranks) -> None:
    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        train(network, optimizer, session.rank, [0, 1])
        optimizer.zero_grad()
        loss_of(network, session.rank, 99).backward()
        assert in_flight(optimizer) == 4
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            network(torch.ones(1, 6, dtype=torch.float64))
        train(network, optimizer, session.rank, [2, 3])

    assert_trains_as_one(ranks, loop, 4, wrap=crossing)


class Picky(torch.optim.SGD):
    """Fails for one shape after a while."""

    fails = False

    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            if Picky.fails and parameter.shape == (3, 7):
                raise ArithmeticError("not this one")
        return super().step(closure)


def test_an_error_in_an_update_names_the_parameter(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2, timeout=20)

    def loop(session: Session, network: nn.Module, optimizer: Any) -> None:
        train(network, optimizer, session.rank, [0, 1])
        optimizer.flush()
        both.wait()
        monkeypatch.setattr(Picky, "fails", True)
        train(network, optimizer, session.rank, [2])
        with pytest.raises(
            RuntimeError, match=r"update of parameter '2\.weight' failed: not this one"
        ) as caught:
            train(network, optimizer, session.rank, [3])
        assert isinstance(caught.value.__cause__, ArithmeticError)
        both.wait()
        monkeypatch.setattr(Picky, "fails", False)
        train(network, optimizer, session.rank, [4])
        optimizer.flush()

    trained(ranks, loop, wrap=crossing, make=lambda p: Picky(p, lr=0.1))


def test_a_lost_peer_is_an_error_where_the_parameter_is_read(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        network: Any = model()
        optimizer = crossing(network, session)
        train(network, optimizer, session.rank, [0])
        optimizer.flush()
        if session.rank == 1:
            session.shutdown()
            return
        before: list[Tensor] = raw(network)
        train(network, optimizer, session.rank, [1])
        for _ in range(2):
            with pytest.raises(PeerLeft, match="rank 1"):
                network[0].weight  # noqa: B018
        assert_equal(raw(network), before)

    ranks(2, work)
