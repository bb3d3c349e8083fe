"""Trees of arrays: their leaves by name, and which of them can be sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from byteps.adapters.arrays import element_type
from byteps.adapters.calls import tensor_spec
from byteps.dtypes import ReduceOp


def named_leaves(tree: Any) -> tuple[list[tuple[str, Any]], Callable[[list[Any]], Any]]:
    """The leaves of a tree, each with its path, and what makes such a tree of others."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves], structure.unflatten


def arrays_of(leaves: Sequence[tuple[str, Any]], name: str, op: ReduceOp) -> list[Any]:
    """JAX arrays, or tracers, of named leaves.

    Args:
        leaves: (path, leaf) of each.
        name: Of the tree; named in errors, with the leaf's path.
        op: How they are to be reduced.

    Raises:
        TypeError: JAX makes no array of a leaf.
        ValueError: One cannot be sent, or not with this operator.
    """
    return [_array_of(leaf, f"{name}{path}", op) for path, leaf in leaves]


def _array_of(leaf: Any, name: str, op: ReduceOp) -> Any:
    try:
        array = jnp.asarray(leaf)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name}: JAX makes no array of this {type(leaf).__name__}: {error}") from error
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        raise ValueError(f"{name}: random keys cannot be sent. Send jax.random.key_data(key)")
    tensor_spec(name, element_type(array.dtype.name, name), (), op)
    return array


@contextmanager
def leaks_explained(name: str) -> Iterator[None]:
    """Raise JAX's error about a tracer that has left its function with the name of what was sent.

    Raises:
        jax.errors.UnexpectedTracerError: An array of a function that is traced no longer was to be sent.
    """
    try:
        yield
    except jax.errors.UnexpectedTracerError as error:
        raise jax.errors.UnexpectedTracerError(
            f"{name}: this is no array but a tracer, kept from a function that jax.jit, jax.grad or the like "
            "has traced. Return the value from that function and send what it returns; with "
            "jax.checking_leaks() JAX says where it gets out"
        ) from error
