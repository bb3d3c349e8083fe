"""Tensors inside objects that are sent: as bytes within the object, or beside it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from byteps.adapters.objects import Kind

_TENSOR_CODE = 32


def _dtype_named(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"an object holds a tensor of dtype {name!r}, which this torch does not have")
    return dtype


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _pack(tensor: Tensor) -> object:
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError(f"cannot send a {tensor.layout} tensor within an object: send tensor.to_dense()")
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return [_name_of(tensor.dtype), list(tensor.shape), plain.reshape(-1).view(torch.uint8).numpy().tobytes()]


def _unpack(packed: list[Any]) -> Tensor:
    name, shape, data = packed
    if not data:
        return torch.empty(shape, dtype=_dtype_named(name))
    return torch.frombuffer(bytearray(data), dtype=_dtype_named(name)).reshape(shape)


INLINE_TENSORS = Kind(_TENSOR_CODE, Tensor, _pack, _unpack, subclasses=True)
"""Tensors as bytes within the object; they arrive on the CPU, without gradient."""


def tensors_beside(tensors: list[Tensor], device: torch.device) -> Kind:
    """Tensors that are described in the object and sent by the caller.

    Args:
        tensors: Collects them in order: on the sender those found, on receivers empty ones of their shape,
            dtype and strides.
        device: Where receivers make those that are not on the sender's CPU.
    """

    def pack(tensor: Tensor) -> object:
        tensors.append(tensor)
        strides = torch.empty_like(tensor, device="meta").stride()  # dense, in the order of the memory
        return [_name_of(tensor.dtype), list(tensor.shape), list(strides), tensor.device.type == "cpu"]

    def unpack(packed: list[Any]) -> Tensor:
        name, shape, strides, on_cpu = packed
        place = torch.device("cpu") if on_cpu else device
        tensors.append(torch.empty_strided(shape, strides, dtype=_dtype_named(name), device=place))
        return tensors[-1]

    return Kind(_TENSOR_CODE, Tensor, pack, unpack, subclasses=True)
