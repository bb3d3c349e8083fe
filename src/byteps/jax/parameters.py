"""Parameters and optimizer states that become the root's, at the start of training."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from byteps.adapters.variables import broadcast_arrays
from byteps.dtypes import ReduceOp
from byteps.jax.rounds import is_traced
from byteps.jax.trees import arrays_of, leaks_explained, named_leaves
from byteps.session import Session


def broadcast_parameters(params: Any, root_rank: int = 0, *, session: Session | None = None) -> Any:
    """Return the root's parameters, or any tree such as an optimizer's state; the argument stays as it is.

    Args:
        params: A tree of arrays and numbers, of the same structure, shapes and dtypes on all ranks.
        root_rank: The rank whose values all get.
        session: The session of ``init()`` if not given.

    Returns:
        Such a tree: JAX arrays where they were, on their devices; numpy arrays; numbers.

    Raises:
        RuntimeError: Within ``jax.jit`` and the like.
        ValueError, TypeError: A leaf cannot be sent, or the root is no rank.
        NotInitialized: ``init()`` has not been called.
        DeclarationError: Ranks differ in a leaf's shape or dtype.
    """
    leaves, tree_of = named_leaves(params)
    values = [leaf for _, leaf in leaves]
    with leaks_explained("broadcast_parameters"):
        if is_traced(values):
            raise RuntimeError(
                "broadcast_parameters() is for the start of training: call it outside of the function that "
                "jax.jit, jax.grad or the like traces, on params themselves. Within it, broadcast(tree, "
                "root_rank) can be traced"
            )
    arrays_of(leaves, "broadcast_parameters", ReduceOp.COPY)
    found = broadcast_arrays([(path, np.asarray(leaf)) for path, leaf in leaves], root_rank, session)
    return tree_of([_like(leaf, value) for leaf, value in zip(values, found, strict=True)])


def _like(leaf: Any, value: Any) -> Any:
    """The value as the kind of thing that the leaf is."""
    if isinstance(leaf, jax.Array):
        return jax.device_put(value, leaf.sharding)
    return value if isinstance(leaf, np.ndarray | np.generic) else value.item()
