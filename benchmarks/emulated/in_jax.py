"""The emulated model in JAX: each layer is a function with a gradient of its own, the step is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

import byteps.jax as bps
from benchmarks.emulated.arrays import ArrayLayer, array_layers, tensors
from benchmarks.emulated.model import LEARNING_RATE
from benchmarks.emulated.profiles import Layer

Step = Callable[[], Any]


class JaxModel:
    """See ``model.EmulatedModel``."""

    def __init__(self, rank: int, layers: Sequence[Layer]) -> None:
        self._layers = array_layers(rank, layers)
        self.params = {
            f"layer{place}": [jnp.zeros(elements) for elements in layer.elements]
            for place, layer in enumerate(layers)
        }

    def loss(self, params: Any, data: Any) -> Any:
        """All layers in turn. The result is a scalar."""
        for place, layer in enumerate(self._layers):
            data = _node(layer)(data, *params[f"layer{place}"])
        return data * data

    def parameters(self) -> Iterator[torch.Tensor]:
        """The parameters in forward order."""
        return tensors(
            [array for place in range(len(self._layers)) for array in self.params[f"layer{place}"]]
        )


def _node(layer: ArrayLayer) -> Callable[..., Any]:
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    shapes = [jax.ShapeDtypeStruct((elements,), jnp.float32) for elements in layer.emulates.elements]

    @jax.custom_vjp
    def node(data: Any, *parameters: Any) -> Any:
        return jax.pure_callback(layer.forward, scalar, data)

    def forward(data: Any, *parameters: Any) -> tuple[Any, None]:
        return node(data, *parameters), None

    def backward(_: None, upstream: Any) -> tuple[Any, ...]:
        return tuple(jax.pure_callback(layer.backward, [scalar, *shapes], upstream))

    node.defvjp(forward, backward)
    found: Callable[..., Any] = node
    return found


def _stepping(model: JaxModel, reduce: Callable[[Any], Any]) -> Step:
    data = jnp.float32(1.0)

    @jax.jit
    def step(params: Any, data: Any) -> Any:
        gradients = reduce(jax.grad(model.loss)(params, data))
        return jax.tree.map(lambda one, gradient: one - LEARNING_RATE * gradient, params, gradients)

    def run() -> None:
        model.params = jax.block_until_ready(step(model.params, data))

    return run


def alone(model: JaxModel) -> Step:
    """No communication."""
    return _stepping(model, lambda gradients: gradients)


def plain(model: JaxModel) -> Step:
    """Byteps's transformation of gradients."""
    transformation = bps.push_pull_gradients()
    return _stepping(model, lambda gradients: transformation.update(gradients, ())[0])
