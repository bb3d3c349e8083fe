"""Rounds of numpy arrays, for frameworks whose tensors can be seen as arrays of the host's memory."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from byteps.adapters import gathering
from byteps.adapters.blocks import Block, Make
from byteps.adapters.calls import Call
from byteps.adapters.later import InBackground
from byteps.adapters.process_sets import Group
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


class Round(Protocol):
    """A round in flight."""

    def wait(self) -> list[Array]:
        """Its results, once they are there. Raises BytePSError if there will be none."""
        ...


class ArrayRound:
    """One round of one array.

    Args:
        call: What to do.
        array: This rank's contribution, not changed unless ``in_place``.
        in_place: Whether the result takes the contribution's place, an array of the caller's own in C order.

    Attributes:
        result: The result, once the round is over: a new array unless ``in_place``.

    Raises:
        ValueError: The dtype cannot be sent.
        DeclarationError: The name stands for another shape, dtype or op.
    """

    def __init__(self, call: Call, array: Array, in_place: bool = False) -> None:
        spec = call.spec(element_type(array.dtype.name, call.name), array.shape)
        contribution = np.ascontiguousarray(array) if call.sends else None
        is_root = call.root == call.session.rank
        if in_place:
            self.result = array
        else:
            self.result = np.array(array) if is_root else np.empty(array.shape, array.dtype)
        source = None if contribution is None else buffer(contribution)
        target = None if is_root else buffer(self.result)
        self._handle = call.session.submit(spec, source, target, priority=call.priority)

    def wait(self) -> list[Array]:
        """See ``Round``; the one result."""
        self._handle.wait()
        return [self.result]


class GatherRound:
    """Rows of all ranks' arrays, in the order of the ranks.

    Args:
        group: The ranks.
        named: Name on the wire, and whether it is used only once.
        arrays: This rank's; the first dimension may differ between ranks.

    Raises:
        ValueError: A dtype cannot be sent.
    """

    def __init__(self, group: Group, named: tuple[str, bool], arrays: Sequence[Array]) -> None:
        blocks, makers = as_blocks(named[0], arrays)
        self._later = InBackground(gathering.allgather(group, named, blocks, makers))

    def results(self) -> list[tuple[Array, list[int]]]:
        """Each joined array, and the number of rows from each rank. Errors are those of ``Round``."""
        return self._later.wait()

    def wait(self) -> list[Array]:
        """See ``Round``; each joined array, then each one's numbers of rows."""
        found = self.results()
        return [joined for joined, _ in found] + [np.array(counts, np.int64) for _, counts in found]


def as_blocks(name: str, arrays: Sequence[Array]) -> tuple[list[Block], list[Make[Array]]]:
    """Arrays as blocks of memory, and what makes results of their dtypes.

    Raises:
        ValueError: A dtype cannot be sent.
    """
    own = [np.ascontiguousarray(array) for array in arrays]
    blocks = [Block(element_type(a.dtype.name, name), a.shape, buffer(a)) for a in own]
    return blocks, [maker(array) for array in own]


def maker(like: Array) -> Make[Array]:
    """Makes arrays of the dtype of another."""

    def make(shape: tuple[int, ...]) -> tuple[Array, Buffer]:
        made = np.empty(shape, like.dtype)
        return made, buffer(made)

    return make


class Rounds:
    """Rounds in flight by number, which a graph passes from the node that starts to the one that waits."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._rounds: dict[int, Round] = {}

    def add(self, begun: Round) -> int:
        """Keep a round; its number."""
        with self._lock:
            number = next(self._numbers)
            self._rounds[number] = begun
        return number

    def wait_all(self, numbers: Sequence[int]) -> list[Array]:
        """The results of the rounds of these numbers, once, one round's after the other's.

        Raises:
            BytePSError: What went wrong first; the other rounds are waited for all the same.
        """
        with self._lock:
            begun = [self._rounds.pop(int(number)) for number in numbers]
        results: list[list[Array]] = [[] for _ in begun]
        failure: Exception | None = None
        for place, one in enumerate(begun):
            try:
                results[place] = one.wait()
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return [result for found in results for result in found]


def reduce_arrays(calls: Sequence[Call], arrays: Sequence[Array]) -> list[Array]:
    """Carry out rounds that are all in flight together. Errors are those of ``ArrayRound`` and ``Round``."""
    rounds = [ArrayRound(call, array) for call, array in zip(calls, arrays, strict=True)]
    return [one.wait()[0] for one in rounds]


def buffer(array: Array) -> Buffer:
    """A contiguous array's memory; it keeps the array alive."""
    return Buffer(array.ctypes.data, array.nbytes, array)
