"""Tensors of any framework as memory with a dtype and a shape, and parts of such memory."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from byteps.dtypes import DType
from byteps.session import Buffer

ResultT = TypeVar("ResultT")
_LONGEST = 300
Make = Callable[[tuple[int, ...]], tuple[ResultT, Buffer]]
"""Makes a tensor of a shape (the dtype is known) to hold a result, and says where its memory is."""


class Block(msgspec.Struct, frozen=True):
    """A tensor whose elements lie in order in memory; nobody may write there while it is in use."""

    dtype: DType
    shape: tuple[int, ...]
    memory: Buffer

    @property
    def row_bytes(self) -> int:
        """Bytes of one step along the first dimension."""
        elements = 1
        for extent in self.shape[1:]:
            elements *= extent
        return elements * self.dtype.itemsize


def describe(tensors: Sequence[tuple[DType, Sequence[int]]]) -> str:
    """Dtypes and shapes, at most the first few in words and the others as a checksum."""
    words = [f"{dtype.name.lower()}{list(shape)}" for dtype, shape in tensors]
    text = ", ".join(words)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... {zlib.crc32(text.encode()):08x}"


def part(memory: Buffer, begin: int, nbytes: int) -> Buffer:
    """Some bytes of memory; they keep the whole alive."""
    return Buffer(memory.address + begin, nbytes, memory.owner)


def copy(source: Buffer, target: Buffer) -> None:
    """Copy bytes from memory to memory of the same size."""
    if source.nbytes:
        ctypes.memmove(target.address, source.address, source.nbytes)
