"""Tensors as blocks of memory for operations whose results have other shapes than what they are given."""

from __future__ import annotations

import torch
from torch import Tensor

from byteps.adapters.blocks import Block, Make
from byteps.session import Buffer
from byteps.torch.tensors import ELEMENT_TYPES, element_type
from byteps.torch.transfers import buffer


def block_of(tensor: Tensor, name: str) -> Block:
    """A tensor's elements, in host memory.

    Raises:
        TypeError, ValueError: It cannot be sent; see ``element_type``.
    """
    dtype = element_type(tensor, name)
    host = tensor.detach().cpu().resolve_neg().contiguous()
    return Block(dtype, tuple(host.shape), buffer(host))


def maker(like: Tensor) -> Make[Tensor]:
    """Makes tensors in host memory, of the dtype of another."""
    assert like.dtype in ELEMENT_TYPES

    def make(shape: tuple[int, ...]) -> tuple[Tensor, Buffer]:
        made = torch.empty(shape, dtype=like.dtype)
        return made, buffer(made)

    return make
