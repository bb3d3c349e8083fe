"""Adasum, synchronised batch normalisation, sparse sums, optimizers of a process set, queries."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import byteps.torch as bps
from byteps.adapters.adasum import weights
from byteps.errors import DeclarationError
from byteps.session import Session
from byteps.testing import cluster, run_ranks

from .conftest import Ranks

Array = npt.NDArray[Any]


def pairwise_adasum(vectors: list[Array]) -> Array:
    """The rule as it is written, on whole vectors."""
    while len(vectors) > 1:
        combined = []
        for one, other in zip(vectors[::2], vectors[1::2], strict=False):
            dot = one @ other
            combined.append(one * (1 - dot / (2 * (one @ one))) + other * (1 - dot / (2 * (other @ other))))
        vectors = combined + (vectors[-1:] if len(vectors) % 2 else [])
    return vectors[0]


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 20), st.integers(0, 1000))
def test_adasum_weights_are_those_of_the_rule(ranks: int, length: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).standard_normal((ranks, length)) + 0.1
    combined = weights(vectors @ vectors.T) @ vectors
    np.testing.assert_allclose(combined, pairwise_adasum(list(vectors)), rtol=1e-6, atol=1e-9)


def test_adasum_of_equal_and_orthogonal_vectors() -> None:
    equal, orthogonal, zero = np.ones((2, 3)), np.eye(2, 3), np.zeros((2, 3))
    assert np.allclose(weights(equal @ equal.T) @ equal, 1)
    assert np.allclose(weights(orthogonal @ orthogonal.T) @ orthogonal, [1, 1, 0])
    assert np.allclose(weights(zero @ zero.T) @ zero, 0)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_adasum_of_tensors(ranks: Ranks, size: int) -> None:
    values = [np.random.default_rng(rank).standard_normal((3, 7)).astype(np.float32) for rank in range(size)]
    wanted = pairwise_adasum([one.astype(np.float64).ravel() for one in values]).reshape(3, 7)

    def combine(session: Session) -> list[Tensor]:
        own = torch.from_numpy(values[session.rank].copy())
        options: dict[str, Any] = {"op": bps.Adasum, "session": session}
        new = bps.allreduce(own, **options)
        handle = bps.allreduce_async(own, name="x", **options)
        half = bps.allreduce(own.to(torch.bfloat16), **options)
        assert half.dtype == torch.bfloat16
        assert bps.allreduce(torch.ones(1), **options).item() == 1, "fewer elements than ranks"
        with pytest.raises(DeclarationError, match=r"Adasum of.*rank 0 has 4.*rank 1 has 5"):
            bps.allreduce(torch.ones(4 + session.rank), **options)
        for wrong in (torch.ones(1, dtype=torch.int32), torch.ones(1).to_sparse()):
            with pytest.raises(ValueError, match="floating-point"):
                bps.allreduce(wrong, **options)
        later = bps.synchronize(handle)
        bps.allreduce_(own, **options)
        return [new, later, own]

    for results in ranks(size, combine):
        for result in results:
            np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_adasum_optimizer_combines_what_steps_change(ranks: Ranks) -> None:
    gradients = [np.array([1.0, 2.0]), np.array([3.0, -1.0]), np.array([0.5, 0.5])]
    wanted = 1 - 0.1 * pairwise_adasum(list(gradients))

    def train(session: Session) -> Tensor:
        weight = nn.Parameter(torch.ones(2))
        plain = torch.optim.SGD([weight], lr=0.1)
        optimizer: Any = bps.DistributedOptimizer(plain, [("w", weight)], op=bps.Adasum, session=session)
        assert isinstance(optimizer, torch.optim.SGD)
        optimizer = cast(Any, optimizer)
        weight.grad = torch.from_numpy(gradients[session.rank]).float()
        optimizer.synchronize()
        with pytest.raises(AssertionError, match="Adasum"):
            optimizer.skip_synchronize()
        optimizer.step()
        return weight.detach()

    for result in ranks(3, train):
        np.testing.assert_allclose(result.numpy(), wanted, rtol=1e-5)


@pytest.mark.parametrize("shape", [(5,), (5, 4), (5, 3, 2)])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_sync_batch_norm_is_that_of_the_whole_batch(
    ranks: Ranks, shape: tuple[int, ...], momentum: float | None
) -> None:
    """Values far from zero; the ranks have batches of 1, 2 and 3."""
    whole = 100 + torch.randn((6, *shape), generator=torch.Generator().manual_seed(1))
    factors = torch.randn(whole.shape, generator=torch.Generator().manual_seed(2))
    bounds = [slice(0, 1), slice(1, 3), slice(3, 6)]

    def run(layer: nn.Module, batch: Tensor, factor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        own = batch.clone().requires_grad_()
        layer(own)
        output = layer(own)
        (output * factor).sum().backward()
        assert own.grad is not None
        return output.detach(), own.grad, layer.weight.grad  # type: ignore[return-value]

    kinds = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d}
    reference = kinds[len(shape)](5, momentum=momentum)
    nn.init.constant_(reference.weight, 1.5)
    wanted = run(reference, whole, factors)

    def train(session: Session) -> tuple[Tensor, ...]:
        layer = bps.SyncBatchNorm(5, momentum=momentum, session=session)
        layer.load_state_dict(kinds[len(shape)](5).state_dict())
        nn.init.constant_(layer.weight, 1.5)
        part = bounds[session.rank]
        output, gradient, weight = run(layer, whole[part], factors[part])
        summed = bps.push_pull(weight, average=False, session=session)
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            torch.testing.assert_close(getattr(layer, name), getattr(reference, name))
        plain = kinds[len(shape)](5).eval()
        plain.load_state_dict(layer.state_dict())
        torch.testing.assert_close(layer.eval()(whole[part]), plain(whole[part]))
        return output, gradient, summed

    for part, (output, gradient, weight) in zip(bounds, ranks(3, train), strict=True):
        # Values near 100 keep four of float32's seven digits; one more is lost in the reference.
        torch.testing.assert_close(output, wanted[0][part], rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(gradient, wanted[1][part], rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(weight, wanted[2], rtol=1e-3, atol=1e-3)


def test_sync_batch_norm_of_half_precision_keeps_the_digits_of_its_parameters(ranks: Ranks) -> None:
    """Batches in bfloat16, weight and bias in float32, as under autocast."""

    def train(session: Session) -> Tensor:
        layer = bps.SyncBatchNorm(2, session=session)
        factors = torch.full((3, 2), 1.0078125, dtype=torch.bfloat16)  # three of them are no bfloat16
        (layer(torch.randn(3, 2).to(torch.bfloat16)) * factors).sum().backward()
        assert layer.bias.grad is not None
        assert layer.bias.grad.dtype == torch.float32
        return layer.bias.grad

    for gradient in ranks(2, train):
        assert gradient.tolist() == [3 * 1.0078125] * 2


def test_sync_batch_norm_wants_its_channels(ranks: Ranks) -> None:
    def run(session: Session) -> None:
        layer = bps.SyncBatchNorm(3, session=session)
        for wrong in (torch.ones(3), torch.ones(2, 4)):
            with pytest.raises(ValueError, match="expects"):
                layer(wrong)

    ranks(2, run)


@pytest.mark.parametrize("op", [bps.Sum, bps.Average])
def test_sparse_sums(ranks: Ranks, op: Any) -> None:
    def reduce(session: Session) -> Tensor:
        rows = torch.tensor([[0, 2, 2, session.rank]])
        values = torch.full((4, 3), session.rank + 1.0)
        own = torch.sparse_coo_tensor(rows, values, (5, 3), check_invariants=True)
        result = bps.sparse_allreduce_async(own, "x", op, session=session)()
        assert result.is_sparse
        assert bps.sparse_allreduce_async(own, None, op, session=session)().shape == (5, 3)
        with pytest.raises(ValueError, match="sparse COO"):
            bps.sparse_allreduce_async(torch.ones(2), "x", op, session=session)
        with pytest.raises(ValueError, match="averaged or summed"):
            bps.sparse_allreduce_async(own, "x", bps.Max, session=session)
        return result.to_dense()

    wanted = torch.zeros(5, 3)
    for rank in range(3):
        for row in (0, 2, 2, rank):
            wanted[row] += rank + 1
    for result in ranks(3, reduce):
        torch.testing.assert_close(result, wanted / (3 if op == bps.Average else 1))


def test_an_optimizer_of_a_process_set() -> None:
    def train(session: Session) -> float:
        pair = bps.add_process_set([0, 2], session=session)
        weight = nn.Parameter(torch.zeros(1))
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD([weight], lr=1.0), [("w", weight)], process_set=pair, session=session
        )
        for _ in range(2):
            optimizer.zero_grad()
            (weight * session.rank).sum().backward()
            optimizer.step()
        with pytest.raises(NotImplementedError, match="all ranks"):
            bps.DistributedOptimizer(
                torch.optim.SGD([weight], lr=1.0), process_set=pair, op=bps.Adasum, session=session
            )
        return float(weight.item())

    with cluster(3, 2, stall_timeout_s=20.0) as sessions:
        assert run_ranks(sessions, train) == [-2.0, -2.0, -2.0]  # rank 1 alone: twice its own 1


def test_queries_need_no_job() -> None:
    built = (bps.mpi_built, bps.mpi_enabled, bps.ddl_built, bps.ccl_built, bps.cuda_built, bps.rocm_built)
    assert not any(one() for one in built)
    assert bps.gloo_built()
    assert bps.gloo_enabled()
    assert bps.nccl_built() == 0
    with pytest.raises(ValueError, match="MPI"):
        bps.mpi_threads_supported()
    for query in (bps.cross_rank, bps.cross_size, bps.is_homogeneous, bps.barrier, bps.join):
        with pytest.raises(ValueError, match="init"):
            query()
    bps.init()
    try:
        assert (bps.cross_rank(), bps.cross_size(), bps.is_homogeneous()) == (0, 1, True)
        assert bps.global_process_set.ranks == [0]
        assert bps.join() == 0
    finally:
        bps.shutdown()
