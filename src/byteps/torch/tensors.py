"""Which tensors can be sent, and how they are declared."""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import Tensor

from byteps.adapters.calls import tensor_spec
from byteps.dtypes import DType, ReduceOp
from byteps.wire import TensorSpec

ELEMENT_TYPES = MappingProxyType(
    {
        torch.float64: DType.FLOAT64,
        torch.float32: DType.FLOAT32,
        torch.float16: DType.FLOAT16,
        torch.bfloat16: DType.BFLOAT16,
        torch.int8: DType.INT8,
        torch.uint8: DType.UINT8,
        torch.int16: DType.INT16,
        torch.int32: DType.INT32,
        torch.int64: DType.INT64,
        torch.bool: DType.BOOL,
    }
)


def element_type(tensor: object, name: str) -> DType:
    """The wire's dtype of a tensor that can be sent.

    Args:
        tensor: What the caller gave.
        name: Named in errors.

    Raises:
        TypeError: It is no tensor.
        ValueError: It is sparse, complex, of another dtype that servers cannot reduce, or on a device that is
            neither CPU nor CUDA.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise ValueError(
            f"{name}: sparse tensors ({tensor.layout}) cannot be sent. Send tensor.to_dense(); for gradients "
            "pass sparse_as_dense=True to DistributedOptimizer"
        )
    if tensor.is_complex():
        raise ValueError(f"{name}: complex tensors cannot be sent. Send torch.view_as_real(tensor)")
    if tensor.dtype not in ELEMENT_TYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in ELEMENT_TYPES)
        raise ValueError(f"{name}: {tensor.dtype} cannot be reduced. Cast it to one of {known}")
    if tensor.device.type not in ("cpu", "cuda"):
        raise ValueError(f"{name}: tensors on {tensor.device} cannot be sent. Send tensor.cpu()")
    return ELEMENT_TYPES[tensor.dtype]


def spec_of(tensor: Tensor, name: str, op: ReduceOp) -> TensorSpec:
    """What this rank declares for a tensor.

    Args:
        tensor: What is to be sent.
        name: Its name on the wire.
        op: How it is reduced.

    Raises:
        ValueError, TypeError: The tensor cannot be sent, or its dtype has no average.
    """
    return tensor_spec(name, element_type(tensor, name), tensor.shape, op)
