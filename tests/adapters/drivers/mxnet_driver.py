"""The contract suite's MXNet: Gluon, and arrays of both kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import mxnet as mx
import numpy as np

import byteps.mxnet as bps
from byteps.session import Session

from .interface import FEATURES, HIDDEN, LEARNING_RATE, OUTPUTS, Array, initial_parameters


def array_of(array: Array) -> Any:
    with mx.util.np_shape(True):  # scalars and empty arrays
        return mx.nd.array(array, dtype=array.dtype)


def _out_of_place(session: Session, array: Array, **options: Any) -> Array:
    with mx.util.np_shape(True):
        return np.asarray(bps.allreduce(array_of(array), session=session, **options).asnumpy())


def _in_place(session: Session, array: Array, **options: Any) -> Array:
    with mx.util.np_shape(True):
        tensor = array_of(array)
        assert bps.allreduce_(tensor, session=session, **options) is tensor
        return np.asarray(tensor.asnumpy())


def _numpy_like(session: Session, array: Array, **options: Any) -> Array:
    with mx.util.np_shape(True), mx.util.np_array(True):
        tensor = mx.np.array(array, dtype=array.dtype)
        found = bps.push_pull(tensor, session=session, **options)
        assert isinstance(found, mx.np.ndarray)
        return np.asarray(found.asnumpy())


def network() -> Any:
    """Two layers, with the parameters of ``initial_parameters``."""
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Dense(HIDDEN, activation="tanh", in_units=FEATURES))
    net.add(mx.gluon.nn.Dense(OUTPUTS, in_units=HIDDEN))
    net.initialize()
    for parameter, array in zip(net.collect_params().values(), initial_parameters(), strict=True):
        parameter.set_data(array_of(array.T))
    return net


class MXNetDriver:
    """See ``Driver``."""

    def __init__(self) -> None:
        self.module = bps
        self.dtypes = ("float64", "float32", "float16", "int8", "uint8", "int32", "int64", "bool")
        self.alternatives = {"new": _out_of_place, "in place": _in_place, "mx.np": _numpy_like}
        # Trainers number parameters by their names, and a bias comes before its weight.
        self.gradients_in_order = (".1", ".0", ".3", ".2")

    def together(self, session: Session, arrays: Mapping[str, Array]) -> dict[str, Array]:
        with mx.util.np_shape(True):
            found = {
                name: bps.push_pull(array_of(array), False, name, session=session)
                for name, array in arrays.items()
            }
            return {name: value.asnumpy() for name, value in found.items()}

    def broadcast(self, session: Session, array: Array, root: int, name: str | None) -> Array:
        found: Array = bps.broadcast(array_of(array), root, name, session=session).asnumpy()
        return found

    def broadcast_variables(self, session: Session, arrays: Sequence[Array], root: int) -> list[Array]:
        with mx.util.np_shape(True):
            named = {str(place): array_of(array) for place, array in enumerate(arrays)}
            bps.broadcast_parameters(named, root, session=session)
            return [value.asnumpy() for value in named.values()]

    def gradient(self, session: Session, array: Array, weights: Array, **options: Any) -> Array:
        tensor = array_of(array)
        tensor.attach_grad()
        with mx.autograd.record():
            loss = (bps.allreduce(tensor, session=session, **options) * array_of(weights)).sum()
        loss.backward()
        found: Array = tensor.grad.asnumpy()
        return found

    def train(
        self, session: Session | None, batches: Sequence[tuple[Array, Array]], **options: Any
    ) -> list[Array]:
        net = network()
        settings = (net.collect_params(), "sgd", {"learning_rate": LEARNING_RATE})
        if session is None:
            trainer = mx.gluon.Trainer(*settings)
        else:
            trainer = bps.DistributedTrainer(*settings, session=session, **options)
        for inputs, targets in batches:
            with mx.autograd.record():
                loss = mx.nd.square(net(array_of(inputs)) - array_of(targets)).mean()
            loss.backward()
            trainer.step(1)
        return [parameter.data().asnumpy().T for parameter in net.collect_params().values()]

    def unsendable(self) -> Mapping[str, tuple[object, type[Exception], str]]:
        return {
            "list": ([1.0], TypeError, "list"),
            "sparse": (mx.nd.ones((2, 2)).tostype("row_sparse"), ValueError, "tostype"),
        }
