"""Rounds of JAX arrays, at once or as nodes of a function that is traced.

Compiled code calls back to start the round of each array, which gives its number, and once to wait for all.
A group's starts run as its arrays are computed, between a node that begins the group and the one that waits.
JAX runs these two in the order in which they are traced, so ranks must trace the same program: a wait that
came first on one rank only might keep back what another rank waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from byteps.adapters.arrays import Array, ArrayRound, Rounds, reduce_arrays
from byteps.adapters.calls import Call
from byteps.errors import SessionClosed
from byteps.jax.callbacks import NUMBER, in_turn, number_of


def is_traced(arrays: Sequence[Any]) -> bool:
    """Whether arrays belong to a function that is traced, or are constants of one that is compiled."""
    return any(isinstance(array, jax.core.Tracer) for array in [*arrays, jax.lax.full((), 0)])


def carry_out(calls: Sequence[Call], arrays: Sequence[Any]) -> list[Any]:
    """Carry out rounds that are all in flight together; under ``vmap`` a round is one of the whole batch.

    Args:
        calls: The rounds, in the order in which results will be needed.
        arrays: What this rank contributes.

    Returns:
        New arrays of the same shapes and dtypes.

    Raises:
        RuntimeError: Within ``shard_map``.
        BytePSError: A round failed; in compiled code when it runs.
    """
    if not is_traced(arrays):
        return [jnp.asarray(found) for found in reduce_arrays(calls, [*map(np.asarray, arrays)])]

    @custom_vmap
    def run(*values: Any) -> list[Any]:
        return _nodes(calls, values)

    @run.def_vmap
    def _of_batch(size: int, batched: list[bool], *values: Any) -> tuple[list[Any], list[bool]]:
        return carry_out(calls, values), list(batched)

    return list(run(*arrays))


def _nodes(calls: Sequence[Call], arrays: Sequence[Any]) -> list[Any]:
    if jax.sharding.get_abstract_mesh().manual_axes:
        raise RuntimeError(
            f"{calls[0].name}: within jax.shard_map each device would send for itself. Reduce what the "
            "mapped function returns, for example after jax.lax.psum"
        )
    rounds = Rounds()
    turn = in_turn(NUMBER, lambda: np.int32(0))
    pairs = [*zip(calls, arrays, strict=True)]
    numbers = [_start(rounds, call, array, turn) for call, array in reversed(pairs)][::-1]
    return _wait(rounds, numbers, arrays)


def _start(rounds: Rounds, call: Call, array: Any, turn: Any) -> Any:
    def start(given: Array, _: Array) -> int:
        try:
            return rounds.add(ArrayRound(call, np.array(given, order="C"), in_place=True))
        except SessionClosed as error:
            raise SessionClosed(
                f"{call.name}: this function was compiled for a session that was shut down since. After "
                "init() call jax.clear_caches(), so that it is traced again"
            ) from error

    return number_of(start, array, turn)


def _wait(rounds: Rounds, numbers: Sequence[Any], likes: Sequence[Any]) -> list[Any]:
    """One node for all: each costs a fraction of a millisecond, and a step ends when all are there."""

    def wait(*numbers: Any) -> list[Any]:
        return rounds.wait_all([int(number) for number in numbers])

    shapes = [jax.ShapeDtypeStruct(like.shape, like.dtype) for like in likes]
    return list(in_turn(shapes, wait, *numbers))


def differentiable(calls: Sequence[Call], arrays: Sequence[Any]) -> list[Any]:
    """``carry_out``, with gradients that flow through the results; see ``Call.of_gradient``."""
    if not is_traced(arrays):
        return carry_out(calls, arrays)

    @jax.custom_vjp
    def run(*values: Any) -> list[Any]:
        return carry_out(calls, values)

    def forward(*values: Any) -> tuple[list[Any], None]:
        for call in calls:
            call.of_gradient()  # raises now if the operator has none
        return differentiable(calls, values), None

    def backward(_: None, upstream: list[Any]) -> tuple[Any, ...]:
        return tuple(_gradients(calls, upstream))

    run.defvjp(forward, backward)
    return list(run(*arrays))


def _gradients(calls: Sequence[Call], upstream: Sequence[Any]) -> list[Any]:
    """What flows back to each contribution; None, as JAX has it, to those of whole numbers."""
    found: list[Any] = [None] * len(calls)
    used = [place for place, gradient in enumerate(upstream) if gradient.dtype != jax.dtypes.float0]
    given = [upstream[place] for place in used]
    backs = [calls[place].of_gradient() for place in used]
    if is_traced(given):  # and may run more than once
        backs = [replace(back, ephemeral=False) for back in backs]
    for place, result in zip(used, differentiable(backs, given), strict=True):
        found[place] = result if calls[place].sends else jnp.zeros_like(result)
    return found
