"""push_pull and allreduce: values, memory layouts, handles and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import byteps.torch as bps
from byteps.adapters.reductions import Average, Max, Min, Product, Sum
from byteps.dtypes import ReduceOp
from byteps.session import Session
from byteps.torch.tensors import ELEMENT_TYPES

from .conftest import Ranks

CASES = [(dtype, op) for dtype in ELEMENT_TYPES for op in (Sum, Average, Min, Max, Product)]
WITHOUT_AVERAGE = [(dtype, op) for dtype, op in CASES if (dtype, op) != (torch.bool, Average)]


def values(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Small whole numbers, exact in every dtype and under every operator."""
    generator = torch.Generator().manual_seed(rank)
    low = 0 if dtype in (torch.uint8, torch.bool) else -3
    return torch.randint(low, 4, shape, generator=generator).to(dtype)


def expected(parts: list[Tensor], op: ReduceOp) -> Tensor:
    dtype = parts[0].dtype
    stacked = torch.stack(parts).to(torch.float64)
    if op == Sum:
        result = stacked.sum(0)
    elif op == Average:
        result = stacked.mean(0) if dtype.is_floating_point else (stacked.sum(0) / len(parts)).trunc()
    else:
        result = {Min: stacked.amin(0), Max: stacked.amax(0), Product: stacked.prod(0)}[op]
    return result.clamp(0, 1).bool() if dtype == torch.bool else result.to(dtype)


@pytest.mark.parametrize(("dtype", "op"), WITHOUT_AVERAGE, ids=str)
def test_every_dtype_and_op_in_place_and_out_of_place(ranks: Ranks, dtype: torch.dtype, op: ReduceOp) -> None:
    shapes = [(), (1,), (3, 5), (0,), (4, 0, 2), (40_001,)]

    def work(session: Session) -> list[tuple[Tensor, Tensor, Tensor]]:
        results = []
        for number, shape in enumerate(shapes):
            tensor = values(session.rank, shape, dtype)
            new = bps.allreduce(tensor, op=op, name=f"new{number}", session=session)
            untouched = tensor.clone()
            same = bps.allreduce_(tensor, op=op, session=session)
            assert same is tensor
            results.append((untouched, new, same))
        return results

    by_rank = ranks(3, work)
    for number, shape in enumerate(shapes):
        wanted = expected([values(rank, shape, dtype) for rank in range(3)], op)
        for rank, results in enumerate(by_rank):
            untouched, new, same = results[number]
            assert torch.equal(untouched, values(rank, shape, dtype))
            for found in (new, same):
                assert found.dtype == dtype
                assert found.shape == shape
                torch.testing.assert_close(found, wanted, rtol=4e-3 if op == Average else 0, atol=0)


def test_the_push_pull_calls_of_byteps(ranks: Ranks) -> None:
    def work(session: Session) -> list[list[float]]:
        tensor = torch.tensor([1.0, 2.0]) * (session.rank + 1)
        results = [
            bps.push_pull(tensor, True, "a", 3, session=session),
            bps.push_pull(tensor, average=False, name="b", priority=-1, version=7, session=session),
            bps.synchronize(bps.push_pull_async(tensor, False, session=session)),
            bps.push_pull(tensor, name="c", compression=bps.Compression.fp16, session=session),
        ]
        handle = bps.push_pull_async_inplace(tensor, average=False, name="d", session=session)
        assert bps.synchronize(handle) is tensor
        assert bps.push_pull_inplace(tensor, name="e", session=session) is tensor
        return [result.tolist() for result in [*results, tensor]]

    for found in ranks(2, work):
        assert found == [[1.5, 3.0], [3.0, 6.0], [3.0, 6.0], [1.5, 3.0], [3.0, 6.0]]


def test_scale_factors_and_positional_order_of_horovod(ranks: Ranks) -> None:
    def work(session: Session) -> list[float]:
        tensor = torch.full((1,), 2.0 * (session.rank + 1))
        results = [
            bps.allreduce(tensor, None, "a", bps.Compression.none, Sum, 0.5, 10.0, session=session),
            bps.synchronize(bps.allreduce_async(tensor, None, "b", Sum, 0.5, 10.0, session=session)),
            bps.allreduce_(tensor.clone(), None, "c", Average, 0.5, 10.0, session=session),
            bps.synchronize(bps.allreduce_async_(tensor.clone(), False, "d", session=session)),
            bps.allreduce(tensor, average=True, session=session),
        ]
        return [result.item() for result in results]

    assert ranks(2, work) == [[30.0, 30.0, 15.0, 6.0, 3.0]] * 2


def test_layouts_that_are_not_contiguous(ranks: Ranks) -> None:
    def views(rank: int) -> dict[str, Tensor]:
        def base(*shape: int) -> Tensor:
            return torch.arange(24.0).reshape(shape) * (rank + 1)

        return {
            "transposed": base(4, 6).t(),
            "columns": base(4, 6)[:, 1::2],
            "strided": base(24).as_strided((3, 4), (1, 6)),
            "channels last": base(2, 3, 2, 2).to(memory_format=torch.channels_last),
            "negated": torch.view_as_complex(base(4, 3, 2)).conj().imag,
            "negative": torch._neg_view(base(4, 6)),
            "offset": base(24)[5:],
        }

    def work(session: Session) -> dict[str, tuple[Tensor, Tensor]]:
        results = {}
        for name, view in views(session.rank).items():
            new = bps.push_pull(view, average=False, session=session)
            bps.push_pull_inplace(view, average=False, session=session)
            results[name] = (new, view)
        return results

    for found in ranks(2, work):
        for name, (new, same) in found.items():
            wanted = views(0)[name] * 3
            assert torch.equal(new, wanted), name
            assert torch.equal(same, wanted), name


def test_a_view_in_place_leaves_its_surroundings_alone(ranks: Ranks) -> None:
    def work(session: Session) -> Tensor:
        base = torch.ones(4, 4)
        bps.push_pull_inplace(base[:, 1:3], average=False, session=session)
        return base

    for base in ranks(2, work):
        assert base.tolist() == [[1.0, 2.0, 2.0, 1.0]] * 4


def test_one_worker_out_of_place_returns_the_value_in_a_new_tensor(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        tensor = torch.tensor([1.0, 2.0], requires_grad=True)
        for name in (None, "named"):
            new = bps.push_pull(tensor, name=name, session=session)
            assert new.data_ptr() != tensor.data_ptr()
            assert torch.equal(new, tensor)
            handle = bps.push_pull_async(tensor, name=name, session=session)
            assert bps.synchronize(handle).tolist() == [1.0, 2.0]
        scaled = bps.allreduce(tensor, op=Sum, prescale_factor=3.0, session=session)
        assert scaled.tolist() == [3.0, 6.0]
        scaled.sum().backward()
        assert tensor.grad is not None
        assert tensor.grad.tolist() == [3.0, 3.0]

    ranks(1, work)


def test_names_match_tensors_in_any_order_and_unnamed_ones_by_their_order(ranks: Ranks) -> None:
    def work(session: Session) -> dict[str, float]:
        names = ["x", "y", "z"] if session.rank == 0 else ["z", "x", "y"]
        handles = {
            name: bps.push_pull_async(torch.tensor(float(ord(name))), False, name, session=session)
            for name in names
        }
        unnamed = [bps.push_pull_async(torch.tensor(float(i)), False, session=session) for i in range(3)]
        assert [bps.synchronize(handle).item() for handle in unnamed] == [0.0, 2.0, 4.0]
        return {name: bps.synchronize(handle).item() for name, handle in handles.items()}

    for found in ranks(2, work):
        assert found == {name: 2.0 * ord(name) for name in "xyz"}


def test_many_tensors_in_flight(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        tensors = [torch.full((size,), float(session.rank)) for size in range(300)]
        handles = [
            bps.push_pull_async_inplace(tensor, name=str(len(tensor)), priority=len(tensor), session=session)
            for tensor in tensors
        ]
        for handle in reversed(handles):
            assert bps.synchronize(handle).eq(0.5).all()

    ranks(2, work)


def test_a_wrong_call_on_one_rank_does_not_shift_unnamed_tensors(ranks: Ranks) -> None:
    def work(session: Session) -> float:
        if session.rank == 0:
            with pytest.raises(ValueError, match="complex"):
                bps.push_pull(torch.zeros(2, dtype=torch.complex64), session=session)
        return bps.push_pull(torch.tensor(1.0 + session.rank), session=session).item()

    assert ranks(2, work) == [1.5, 1.5]


def test_handles_poll_and_give_one_result(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        handle = bps.push_pull_async(torch.ones(3), name="t", session=session)
        session.barrier()
        assert bps.synchronize(handle).tolist() == [1.0, 1.0, 1.0]
        again: Any
        for again in (bps.synchronize, bps.poll):
            with pytest.raises(ValueError, match=r"push_pull\.t.*already"):
                again(handle)

    ranks(2, work)


def test_poll_is_false_until_every_rank_has_contributed(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        if session.rank == 1:
            session.barrier()
        handle = bps.push_pull_async(torch.ones(3), name="t", session=session)
        if session.rank == 0:
            assert not bps.poll(handle)
            session.barrier()
        bps.synchronize(handle)

    ranks(2, work)


@pytest.mark.parametrize("op", [Sum, Average])
def test_the_gradient_of_a_push_pull_is_the_push_pull_of_the_gradient(ranks: Ranks, op: ReduceOp) -> None:
    def work(session: Session) -> tuple[Tensor, Tensor]:
        tensor = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        gradients = []
        for name in (None, "named", "named"):
            result = bps.allreduce(tensor, op=op, name=name, session=session)
            weights = torch.tensor([1.0, 10.0, 100.0]) * (session.rank + 1)
            (gradient,) = torch.autograd.grad((result * weights).sum(), tensor)
            gradients.append(gradient)
        assert torch.equal(gradients[0], gradients[1])
        assert torch.equal(gradients[0], gradients[2])
        return gradients[0], tensor

    for gradient, _ in ranks(2, work):
        wanted = torch.tensor([3.0, 30.0, 300.0])
        assert torch.equal(gradient, wanted if op == Sum else wanted / 2)


def test_gradients_of_gradients_and_through_compression(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        tensor = torch.tensor([1.0, 2.0], requires_grad=True)
        cubed = bps.push_pull(tensor**3, compression=bps.Compression.bf16, session=session).sum()
        (first,) = torch.autograd.grad(cubed, tensor, create_graph=True)
        assert first.tolist() == [3.0, 12.0]
        (second,) = torch.autograd.grad(first.sum(), tensor)
        assert second.tolist() == [6.0, 12.0]

    ranks(2, work)


def test_operators_without_gradient_say_so(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        tensor = torch.ones(2, requires_grad=True)
        result = bps.allreduce(tensor, op=Max, session=session)
        with pytest.raises(ValueError, match=r"Max has no gradient.*detach"):
            result.sum().backward()

    ranks(2, work)


def test_autograd_notices_that_a_saved_tensor_was_overwritten(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        weight = torch.ones(2, requires_grad=True)
        saved = weight * 2
        product = saved * saved
        bps.push_pull_inplace(saved.detach(), session=session)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()

    ranks(2, work)


def test_declared_tensors_are_reduced_as_usual(ranks: Ranks) -> None:
    def work(session: Session) -> float:
        tensor = torch.tensor(1.0 + session.rank)
        bps.declare("t", tensor, session=session)
        bps.declare("only a name", session=session)
        return bps.push_pull(tensor, name="t", session=session).item()

    assert ranks(2, work) == [1.5, 1.5]


@pytest.mark.parametrize("compression", [bps.Compression.fp16, bps.Compression.bf16])
def test_compression_casts_wide_floats_only(ranks: Ranks, compression: Any) -> None:
    def work(session: Session) -> None:
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int32):
            tensor = torch.tensor([1, 2, 4]).to(dtype)
            wire, _ = compression.compress(tensor)
            assert (wire is tensor) == (dtype.itemsize == 2 or not dtype.is_floating_point)
            result = bps.push_pull(tensor, average=False, compression=compression, session=session)
            assert result.dtype == dtype
            assert result.tolist() == [2, 4, 8]

    ranks(2, work)


def test_a_users_own_compression(ranks: Ranks) -> None:
    class Scaled:
        @staticmethod
        def compress(tensor: Tensor) -> tuple[Tensor, float]:
            return (tensor * 4).to(torch.int32), 4.0

        @staticmethod
        def decompress(tensor: Tensor, ctx: float) -> Tensor:
            return tensor.to(torch.float32) / ctx

    def work(session: Session) -> list[float]:
        tensor = torch.tensor([0.25, 0.5])
        return bps.allreduce(tensor, op=Sum, compression=Scaled, session=session).tolist()

    assert ranks(2, work) == [[0.5, 1.0]] * 2
