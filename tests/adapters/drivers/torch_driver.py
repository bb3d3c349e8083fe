"""The contract suite's torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import byteps.torch as bps
from byteps.session import Session

from .interface import FEATURES, HIDDEN, LEARNING_RATE, OUTPUTS, Array, initial_parameters


def tensor_of(array: Array) -> Tensor:
    return torch.from_numpy(array.copy())


def _out_of_place(session: Session, array: Array, **options: Any) -> Array:
    return bps.allreduce(tensor_of(array), session=session, **options).numpy()


def _in_place(session: Session, array: Array, **options: Any) -> Array:
    tensor = tensor_of(array)
    assert bps.allreduce_(tensor, session=session, **options) is tensor
    return tensor.numpy()


def _asynchronous(session: Session, array: Array, **options: Any) -> Array:
    return bps.synchronize(bps.allreduce_async(tensor_of(array), session=session, **options)).numpy()


class TorchDriver:
    """See ``Driver``."""

    def __init__(self) -> None:
        self.module = bps
        self.dtypes = ("float64", "float32", "float16", "int8", "uint8", "int16", "int32", "int64", "bool")
        self.alternatives = {"new": _out_of_place, "in place": _in_place, "asynchronous": _asynchronous}
        self.gradients_in_order = ("0.weight", "0.bias", "2.weight", "2.bias")

    def together(self, session: Session, arrays: Mapping[str, Array]) -> dict[str, Array]:
        handles = {
            name: bps.push_pull_async(tensor_of(array), False, name, session=session)
            for name, array in arrays.items()
        }
        return {name: bps.synchronize(handle).numpy() for name, handle in handles.items()}

    def broadcast(self, session: Session, array: Array, root: int, name: str | None) -> Array:
        return bps.broadcast(tensor_of(array), root, name, session=session).numpy()

    def broadcast_variables(self, session: Session, arrays: Sequence[Array], root: int) -> list[Array]:
        tensors = [tensor_of(array) for array in arrays]
        bps.broadcast_parameters(tensors, root, session=session)
        return [tensor.numpy() for tensor in tensors]

    def gradient(self, session: Session, array: Array, weights: Array, **options: Any) -> Array:
        tensor = tensor_of(array).requires_grad_()
        result = bps.allreduce(tensor, session=session, **options)
        (found,) = torch.autograd.grad((result * tensor_of(weights)).sum(), tensor)
        return found.numpy()

    def train(
        self, session: Session | None, batches: Sequence[tuple[Array, Array]], **options: Any
    ) -> list[Array]:
        model = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, OUTPUTS))
        with torch.no_grad():
            for parameter, array in zip(model.parameters(), initial_parameters(), strict=True):
                parameter.copy_(tensor_of(array.T))
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        if session is not None:
            names = model.named_parameters()
            optimizer = bps.DistributedOptimizer(optimizer, names, session=session, **options)
        for inputs, targets in batches:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(tensor_of(inputs)), tensor_of(targets)).backward()
            optimizer.step()
        return [parameter.detach().numpy().T for parameter in model.parameters()]

    def unsendable(self) -> Mapping[str, tuple[object, type[Exception], str]]:
        return {
            "list": ([1.0], TypeError, "list"),
            "complex": (torch.zeros(2, dtype=torch.complex64), ValueError, "complex"),
            "sparse": (torch.eye(3).to_sparse(), ValueError, "to_dense"),
        }
