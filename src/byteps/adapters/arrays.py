"""Rounds of numpy arrays, for frameworks whose tensors can be seen as arrays of the host's memory."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byteps.adapters.calls import Call
from byteps.dtypes import DType
from byteps.session import Buffer

Array = NDArray[Any]

ELEMENT_TYPES = MappingProxyType({dtype.name.lower(): dtype for dtype in DType})
"""By the names that numpy, TensorFlow, JAX and Keras give them."""


def element_type(dtype: str, name: str) -> DType:
    """The wire's dtype.

    Args:
        dtype: What the framework calls it.
        name: Of the tensor; named in errors.

    Raises:
        ValueError: Servers cannot reduce it.
    """
    if dtype not in ELEMENT_TYPES:
        hint = "Send its real and imaginary parts" if dtype.startswith("complex") else "Cast it to"
        known = "" if dtype.startswith("complex") else f" one of {', '.join(ELEMENT_TYPES)}"
        raise ValueError(f"{name}: {dtype} cannot be reduced. {hint}{known}")
    return ELEMENT_TYPES[dtype]


class ArrayRound:
    """One round of one array, out of place: the contribution is not changed, the result is a new array."""

    def __init__(self, call: Call, array: Array) -> None:
        spec = call.spec(element_type(array.dtype.name, call.name), array.shape)
        contribution = np.ascontiguousarray(array) if call.sends else None
        is_root = call.root == call.session.rank
        self._result = np.array(array) if is_root else np.empty(array.shape, array.dtype)
        source = None if contribution is None else buffer(contribution)
        target = None if is_root else buffer(self._result)
        self._handle = call.session.submit(spec, source, target, priority=call.priority)

    def wait(self) -> Array:
        """The result.

        Raises:
            BytePSError: The round failed.
        """
        self._handle.wait()
        return self._result


class Rounds:
    """Rounds in flight by number, which a graph passes from the node that starts to the one that waits."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._rounds: dict[int, ArrayRound] = {}

    def start(self, call: Call, array: Array) -> int:
        """Begin a round; its number."""
        begun = ArrayRound(call, array)
        with self._lock:
            number = next(self._numbers)
            self._rounds[number] = begun
        return number

    def wait(self, number: int) -> Array:
        """The result of the round of that number, once."""
        with self._lock:
            begun = self._rounds.pop(number)
        return begun.wait()


def reduce_arrays(calls: Sequence[Call], arrays: Sequence[Array]) -> list[Array]:
    """Carry out rounds that are all in flight together.

    Raises:
        ValueError: A dtype cannot be sent.
        BytePSError: A round failed.
    """
    rounds = [ArrayRound(call, array) for call, array in zip(calls, arrays, strict=True)]
    return [one.wait() for one in rounds]


def buffer(array: Array) -> Buffer:
    """A contiguous array's memory; it keeps the array alive."""
    return Buffer(array.ctypes.data, array.nbytes, array)
