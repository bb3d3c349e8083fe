"""The emulated model in TensorFlow: each layer is a node with a gradient of its own, the step a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import tensorflow as tf
import torch

import byteps.tensorflow as bps
from benchmarks.emulated.arrays import ArrayLayer, array_layers, tensors
from benchmarks.emulated.model import LEARNING_RATE
from benchmarks.emulated.profiles import Layer

Step = Callable[[], Any]


class TensorFlowModel:
    """See ``model.EmulatedModel``."""

    def __init__(self, rank: int, layers: Sequence[Layer]) -> None:
        self._layers = array_layers(rank, layers)
        self._variables = [
            [
                tf.Variable(tf.zeros(elements), name=f"layer{place}.weight{number}")
                for number, elements in enumerate(layer.elements)
            ]
            for place, layer in enumerate(layers)
        ]
        self.variables = [variable for layer in self._variables for variable in layer]

    def loss(self, data: Any) -> Any:
        """All layers in turn. The result is a scalar."""
        for layer, variables in zip(self._layers, self._variables, strict=True):
            data = _node(layer)(data, *[tf.convert_to_tensor(variable) for variable in variables])
        return data * data  # a gradient that is constant would be computed when the graph is optimised

    def parameters(self) -> Iterator[torch.Tensor]:
        """The parameters in forward order."""
        return tensors([variable.numpy() for variable in self.variables])


def _node(layer: ArrayLayer) -> Callable[..., Any]:
    @tf.custom_gradient
    def node(data: Any, *parameters: Any) -> Any:
        def backward(upstream: Any) -> Any:
            dtypes = [tf.float32] * (1 + len(parameters))
            found = tf.numpy_function(layer.backward, [upstream], dtypes, stateful=False)
            for gradient, like in zip(found, [data, *parameters], strict=True):
                gradient.set_shape(like.shape)
            return tuple(found)

        result = tf.numpy_function(layer.forward, [data, *parameters], tf.float32, stateful=False)
        result.set_shape(data.shape)
        return result, backward

    found: Callable[..., Any] = node
    return found


def _stepping(model: TensorFlowModel, tape_of: Callable[[Any], Any]) -> Step:
    data = tf.constant(1.0)

    @tf.function
    def step(data: Any) -> None:
        with tf.GradientTape() as tape:
            loss = model.loss(data)
        gradients = tape_of(tape).gradient(loss, model.variables)
        for variable, gradient in zip(model.variables, gradients, strict=True):
            variable.assign_sub(LEARNING_RATE * gradient)

    return partial(step, data)


def alone(model: TensorFlowModel) -> Step:
    """No communication."""
    return _stepping(model, lambda tape: tape)


def plain(model: TensorFlowModel) -> Step:
    """Byteps's ``DistributedGradientTape``."""
    return _stepping(model, bps.DistributedGradientTape)


def cross(model: TensorFlowModel) -> tuple[Step, Callable[[], None]]:
    """Byteps's ``CrossBarrier``; the second function waits for what a step has left in flight."""
    crossing = bps.CrossBarrier(tf.keras.optimizers.SGD(LEARNING_RATE), model.variables)
    data = tf.constant(1.0)

    @tf.function
    def step(data: Any) -> None:
        crossing.update()
        with tf.GradientTape() as tape:
            loss = model.loss(data)
        crossing.apply(tape.gradient(loss, model.variables))

    return partial(step, data), crossing.flush
