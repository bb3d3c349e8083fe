"""The contract suite's JAX: calls at once, and the same within ``jit``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import byteps.jax as bps
from byteps.adapters.calls import reduction_call
from byteps.errors import DeclarationError
from byteps.jax.rounds import carry_out
from byteps.session import Session

from .interface import LEARNING_RATE, Array, initial_parameters
from .jax_threads import jax, jnp


def _at_once(session: Session, array: Array, **options: Any) -> Array:
    return np.asarray(bps.allreduce(jnp.asarray(array), session=session, **options))


def _compiled(session: Session, array: Array, **options: Any) -> Array:
    run = jax.jit(lambda value: bps.allreduce(value, session=session, **options))
    return np.asarray(_plainly(lambda: run(array)))


def _plainly(run: Callable[[], Any]) -> Any:
    """Raises what was raised within compiled code: JAX makes an error of its own of it, with its words."""
    try:
        return jax.block_until_ready(run())
    except jax.errors.JaxRuntimeError as error:
        if "DeclarationError" in str(error):
            raise DeclarationError(str(error)) from error
        raise


def _loss(layers: Mapping[str, Any], inputs: Any, targets: Any) -> Any:
    hidden = jnp.tanh(inputs @ layers["layer_9"]["a"] + layers["layer_9"]["b"])
    outputs = hidden @ layers["layer_10"]["a"] + layers["layer_10"]["b"]
    return jnp.mean(jnp.square(outputs - targets))


class JaxDriver:
    """See ``Driver``."""

    def __init__(self) -> None:
        self.module = bps
        self.dtypes = ("float64", "float32", "float16", "int8", "uint8", "int16", "int32", "int64", "bool")
        self.alternatives = {"at once": _at_once, "compiled": _compiled}
        self.gradients_in_order = (
            "['layer_9']['a']",
            "['layer_9']['b']",
            "['layer_10']['a']",
            "['layer_10']['b']",
        )

    def together(self, session: Session, arrays: Mapping[str, Array]) -> dict[str, Array]:
        def check(*_: object) -> None:
            pass

        calls = [reduction_call(check, False, None, name, session=session) for name in arrays]
        found = jax.jit(lambda values: carry_out(calls, values))(list(arrays.values()))
        return {name: np.asarray(value) for name, value in zip(arrays, found, strict=True)}

    def broadcast(self, session: Session, array: Array, root: int, name: str | None) -> Array:
        return np.asarray(bps.broadcast(array, root, name, session=session))

    def broadcast_variables(self, session: Session, arrays: Sequence[Array], root: int) -> list[Array]:
        found: list[Array] = bps.broadcast_parameters(list(arrays), root, session=session)
        return found

    def gradient(self, session: Session, array: Array, weights: Array, **options: Any) -> Array:
        def loss(value: Any) -> Any:
            return jnp.sum(weights * bps.allreduce(value, session=session, **options))

        at_once = jax.grad(loss)(jnp.asarray(array))
        compiled = jax.jit(jax.grad(loss))(array)
        assert (at_once == compiled).all()
        return np.asarray(compiled)

    def train(
        self, session: Session | None, batches: Sequence[tuple[Array, Array]], **options: Any
    ) -> list[Array]:
        a, b, c, d = initial_parameters()
        layers: Any = {"layer_9": {"a": a, "b": b}, "layer_10": {"a": c, "b": d}}
        reduced = None if session is None else bps.push_pull_gradients(session=session, **options)

        @jax.jit
        def step(layers: Any, inputs: Any, targets: Any) -> Any:
            gradients = jax.grad(_loss)(layers, inputs, targets)
            if reduced is not None:
                gradients, _ = reduced.update(gradients, reduced.init(layers))
            return jax.tree.map(lambda value, slope: value - LEARNING_RATE * slope, layers, gradients)

        for inputs, targets in batches:
            layers = step(layers, inputs, targets)
        return [np.asarray(layers[layer][part]) for layer in ("layer_9", "layer_10") for part in "ab"]

    def unsendable(self) -> Mapping[str, tuple[object, type[Exception], str]]:
        return {
            "object": ([object()], TypeError, r"wrong'\[0\]: JAX makes no array of this object"),
            "complex": (jnp.zeros(2, jnp.complex64), ValueError, "complex"),
            "key": ({"key": jax.random.key(0)}, ValueError, r"\['key'\]: .*jax\.random\.key_data"),
            "eight bits": (jnp.zeros(2, jnp.float8_e4m3fn), ValueError, "float8_e4m3fn cannot be reduced"),
        }
