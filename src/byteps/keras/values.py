"""Plain values, and variables, over all ranks: numbers, numpy arrays, tensors of any Keras backend."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import keras
import numpy as np

from byteps.adapters.arguments import Scaling, scaled
from byteps.adapters.arrays import Array, GatherRound, element_type, reduce_arrays
from byteps.adapters.calls import Call, copy_call, reduction_call, tensor_spec
from byteps.adapters.collectives import scatter_round
from byteps.adapters.process_sets import group_of
from byteps.adapters.reductions import Average, resolve_op
from byteps.adapters.variables import broadcast_arrays
from byteps.dtypes import ReduceOp
from byteps.session import Session

if TYPE_CHECKING:
    from typing_extensions import Unpack


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    op: ReduceOp | None = None,
    **scaling: Unpack[Scaling],
) -> Array:
    """Reduce a value over all ranks.

    Args:
        value: A number, array or eager tensor.
        name: Identifies the value across ranks; by the order of calls if not given.
        average: Old way to say ``op=Average`` (True) or ``op=Sum`` (False).
        op: ``Average`` (the default), ``Sum``, ``Min``, ``Max`` or ``Product``.
        scaling: ``prescale_factor`` for each contribution and ``postscale_factor`` for the result,
            ``process_set`` and ``session``.

    Returns:
        A numpy array of the value's shape and dtype.

    Raises:
        ValueError, TypeError: An argument cannot work.
        NotInitialized: ``init()`` has not been called.
        DeclarationError: Ranks differ in the value's shape or dtype.
    """
    array = _array(value)
    group, scales = scaled(**scaling)

    def check(label: str, op: ReduceOp) -> None:
        tensor_spec(label, element_type(array.dtype.name, label), (), op)

    chosen = scaling.get("process_set")
    call = reduction_call(check, average, op, name, scales=scales, session=group.session, process_set=chosen)
    return _one(call, array)


def push_pull(
    value: Any, name: str | None = None, average: bool = True, *, session: Session | None = None
) -> Array:
    """``allreduce`` under BytePS's name and arguments."""
    return allreduce(value, name, average, session=session)


def broadcast(
    value: Any, root_rank: int, name: str | None = None, *, session: Session | None = None
) -> Array:
    """The root's value on every rank; arguments, result and errors as for ``allreduce``."""
    array = _array(value)

    def check(label: str, op: ReduceOp) -> None:
        element_type(array.dtype.name, label)

    return _one(copy_call(check, root_rank, name, session), array)


def allgather(value: Any, name: str | None = None, *, session: Session | None = None) -> Array:
    """The rows of all ranks' values, in the order of the ranks; their first dimension may differ.

    Arguments and errors are those of ``allreduce``; a number is one row.
    """
    group = group_of(None, session)
    array = np.atleast_1d(_array(value))
    return GatherRound(group, group.name("allgather", name), [array]).wait()[0]


def reducescatter(
    value: Any, name: str | None = None, op: ReduceOp = Average, *, session: Session | None = None
) -> Array:
    """This rank's share of the rows of a reduced value; arguments and errors are those of ``allreduce``."""
    group, op = group_of(None, session), resolve_op(None, op)
    array = _array(value)
    return scatter_round(group, group.name("reducescatter", name), op, (1.0, 1.0), [array]).wait()[0]


def broadcast_variables(variables: Iterable[Any], root_rank: int, *, session: Session | None = None) -> None:
    """Overwrite Keras variables with the root's.

    Args:
        variables: ``model.variables`` and the like, in the same order on all ranks.
        root_rank: The rank whose values all get.
        session: The session of ``init()`` if not given.

    Raises:
        ValueError: There are no variables, or the root is no rank.
        NotInitialized: ``init()`` has not been called.
        DeclarationError: Ranks differ in a variable's shape or dtype.
    """
    variables = [variable for variable in variables if variable.dtype != "string"]
    if not variables:
        raise ValueError(
            "there are no variables to broadcast: build the model first, by model.build(input_shape) or by "
            "calling it on a batch"
        )
    arrays = [(variable.path, _array(variable)) for variable in variables]
    for variable, value in zip(variables, broadcast_arrays(arrays, root_rank, session), strict=True):
        variable.assign(value)


def broadcast_global_variables(root_rank: int) -> NoReturn:
    """Raises RuntimeError: Keras 3 keeps no list of all variables.

    Args:
        root_rank: What Horovod scripts pass.
    """
    raise RuntimeError(
        "broadcast_global_variables: Keras 3 keeps no list of all variables. Call "
        f"broadcast_variables(model.variables, {root_rank}), or give model.fit a "
        f"callbacks.BroadcastGlobalVariablesCallback({root_rank})"
    )


def _array(value: Any) -> Array:
    return value if isinstance(value, np.ndarray) else np.asarray(keras.ops.convert_to_numpy(value))


def _one(call: Call, array: Array) -> Array:
    return reduce_arrays([call], [array])[0]
