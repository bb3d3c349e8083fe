"""Python functions that compiled code calls.

``io_callback`` makes JAX arrays of what it is given and numpy arrays of what it gives back, which costs more
than a small round. Where there is one device, a primitive of our own hands numpy arrays over as they come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.extend
import numpy as np
from jax.experimental import io_callback
from jax.interpreters import mlir

NUMBER: Final = jax.ShapeDtypeStruct((), np.int32)


def in_turn(results: Any, function: Callable[..., Any], *arrays: Any) -> Any:
    """Call a function after all earlier ones of this kind, in this run of the program and in earlier runs.

    Args:
        results: Shapes and dtypes of what it returns.
        function: Is given the arrays.
        arrays: Traced.
    """
    return io_callback(function, results, *arrays, ordered=True)


def number_of(function: Callable[..., int], *arrays: Any) -> Any:
    """Call a function once its arguments are there, whatever else runs; its result must be used.

    Args:
        function: Is given numpy arrays that are not its own: their memory may be used again once it returns.
        arrays: Traced.

    Returns:
        The number that it returns, an int32 scalar.
    """
    if jax.device_count() > 1:  # JAX knows which one calls
        return io_callback(lambda *given: np.int32(function(*map(np.asarray, given))), NUMBER, *arrays)
    return _NUMBER_OF.bind(*arrays, function=function)


def _lowered(ctx: mlir.LoweringRuleContext, *operands: Any, function: Callable[..., int]) -> Any:
    def call(*given: Any) -> tuple[Any]:
        return (np.int32(function(*given)),)

    results, _, _ = mlir.emit_python_callback(
        ctx, call, None, operands, ctx.avals_in, ctx.avals_out, has_side_effect=True, returns_token=False
    )
    return results


_NUMBER_OF: Final = jax.extend.core.Primitive("byteps_number_of")
_NUMBER_OF.def_abstract_eval(lambda *_, function: jax.core.ShapedArray((), np.int32))
mlir.register_lowering(_NUMBER_OF, _lowered, cacheable=False)
