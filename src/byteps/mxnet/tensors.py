"""Which MXNet arrays can be sent, and what is declared about them."""

from __future__ import annotations

from typing import Any

import mxnet as mx
import numpy as np

from byteps.adapters.arrays import element_type
from byteps.adapters.calls import Call, tensor_spec
from byteps.dtypes import DType, ReduceOp
from byteps.wire import TensorSpec


def check(array: Any, name: str, op: ReduceOp) -> None:
    """Raise if an array cannot be sent, or not with this operator.

    Raises:
        TypeError: It is no MXNet array.
        ValueError: It is sparse, not in the host's memory, or of a dtype that cannot be sent.
    """
    if not isinstance(array, mx.nd.NDArray):
        raise TypeError(f"{name}: expected an mx.nd.NDArray or mx.np.ndarray, got {type(array).__name__}")
    if array.stype != "default":
        raise ValueError(
            f"{name}: {array.stype} arrays cannot be sent. Send array.tostype('default'); for gradients, "
            "make the layer with sparse_grad=False"
        )
    if array.context.device_type == "gpu":
        raise ValueError(
            f"{name}: only arrays in the host's memory can be sent, and this one is on {array.context}. Send "
            "array.as_in_context(mx.cpu()) and copy the result back"
        )
    tensor_spec(name, _element_type(array, name), (), op)


def spec_of(array: Any, call: Call) -> TensorSpec:
    """What this rank declares about an array. Raises ValueError if its dtype cannot be sent."""
    return call.spec(_element_type(array, call.name), array.shape)


def _element_type(array: Any, name: str) -> DType:
    return element_type(np.dtype(array.dtype).name, name)
