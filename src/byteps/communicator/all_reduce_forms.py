"""How a tensor's elements travel in a collective, and how the result becomes what servers would give.

Floats are summed as they are, in place. What an engine cannot do alone takes a *wide* form: integers that are
averaged or scaled as 64-bit integers, products, minima and maxima with one more element that says whether any
rank contributed, so that ranks with nothing to add do not count.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from byteps import _native
from byteps.communicator.collectives import Collective
from byteps.dtypes import DType, ReduceOp
from byteps.errors import DeclarationError
from byteps.wire import TensorSpec

Array = npt.NDArray[Any]

CONTAINERS: Final[Mapping[DType, np.dtype[Any]]] = MappingProxyType(
    {
        DType.FLOAT64: np.dtype(np.float64),
        DType.FLOAT32: np.dtype(np.float32),
        DType.FLOAT16: np.dtype(np.float16),
        DType.BFLOAT16: np.dtype(np.uint16),
        DType.INT8: np.dtype(np.int8),
        DType.UINT8: np.dtype(np.uint8),
        DType.INT16: np.dtype(np.int16),
        DType.INT32: np.dtype(np.int32),
        DType.INT64: np.dtype(np.int64),
        DType.BOOL: np.dtype(np.uint8),
    }
)
"""Arrays that hold the elements; for bfloat16 their bits."""
_SMALL_FLOATS = (DType.FLOAT16, DType.BFLOAT16)
_SUMS = (ReduceOp.SUM, ReduceOp.AVERAGE)


@dataclass(frozen=True, slots=True)
class Form:
    """How one tensor travels.

    Attributes:
        dtype: Of the tensor.
        collective: What is done with it.
        wide: Whether elements are converted to ``collective.dtype``; else the result may form in place.
        counted: Whether one more element says if any rank contributed.
        average: Whether the wide result is divided by the number of ranks, toward zero.
        before, after: Factors for each contribution and for the result.
        divisor: The result is divided by this.
    """

    dtype: DType
    collective: Collective
    wide: bool
    counted: bool
    average: bool
    before: float
    after: float
    divisor: int

    def elements(self, nbytes: int) -> int:
        """How many elements a part of the tensor has on its way."""
        return nbytes // self.dtype.itemsize + self.counted

    def load(self, source: Array | None, out: Array) -> None:
        """Put this rank's contribution, or what stands for none, where it is to travel.

        Args:
            source: Elements of the tensor.
            out: Gets ``elements`` elements of the collective's dtype; may be ``source`` itself.
        """
        if source is None:
            out[:] = _neutral(self.collective) if self.counted else 0
        elif not self.wide:
            if self.collective.op != ReduceOp.COPY and self.before != 1.0:
                _scale(self.dtype, source, out, self.before)
            elif source.ctypes.data != out.ctypes.data:
                out[:] = source
        else:
            values = _widened(self.dtype, source)
            out[: source.size] = _factored(self.dtype, values, self.before)
            if self.counted:
                out[-1] = _mark(self.collective.op)

    def store(self, result: Array, out: Array) -> None:
        """Put the result where it belongs.

        Args:
            result: What the collective made.
            out: Elements of the tensor; may be ``result`` itself.
        """
        if self.wide:
            out[:] = self._narrowed(result[: out.size], nobody=self.counted and not self._contributed(result))
            return
        if self.collective.op != ReduceOp.COPY and self.after != 1.0:
            _scale(self.dtype, result, out, self.after)
        elif result.ctypes.data != out.ctypes.data:
            out[:] = result
        if self.divisor != 1:
            np.divide(out, self.divisor, out=out)

    def _contributed(self, result: Array) -> bool:
        return bool(result[-1] == _mark(self.collective.op))

    def _narrowed(self, values: Array, nobody: bool) -> Array:
        if nobody:
            return np.zeros(values.size, CONTAINERS[self.dtype])
        values = _factored(self.dtype, values, self.after)
        if self.average and self.dtype.is_floating:
            values = values / np.float32(self.divisor)
        elif self.average:
            values = np.sign(values) * (np.abs(values) // self.divisor)
        if self.dtype is DType.BFLOAT16:
            return _bfloat_bits(values.astype(np.float32))
        return values.astype(CONTAINERS[self.dtype])


def check_for_all(specs: Sequence[TensorSpec]) -> None:
    """Refuse tensors of some ranks: a collective needs all.

    Raises:
        DeclarationError: Naming the tensor.
    """
    for spec in specs:
        if spec.members:
            raise DeclarationError(
                f"tensor {spec.name!r} is for ranks {list(spec.members)} alone, but with communicator = "
                "allreduce all ranks take part in every collective; process sets need servers "
                "(communicator = parameter-server)"
            )


def form_of(spec: TensorSpec, size: int, reducible: Collection[DType]) -> Form:
    """How a tensor travels between ``size`` ranks with an engine that can reduce some dtypes."""
    dtype, op = DType(spec.dtype), ReduceOp(spec.op)
    scales = (spec.prescale, spec.postscale)
    if op is ReduceOp.COPY:
        what = Collective(DType.UINT8, op, spec.root)
        return Form(dtype, what, False, False, False, 1.0, 1.0, 1)
    if dtype is DType.BOOL:
        reduction = ReduceOp.MIN if op in (ReduceOp.MIN, ReduceOp.PRODUCT) else ReduceOp.MAX
        return Form(dtype, Collective(DType.UINT8, reduction), True, True, False, 1.0, 1.0, 1)
    divisor = size if op is ReduceOp.AVERAGE else 1
    plain = (
        op in _SUMS and dtype in reducible and (dtype.is_floating or (scales == (1.0, 1.0) and divisor == 1))
    )
    if plain:
        return _direct(dtype, scales, divisor)
    wide = _wide(dtype)
    reduction = ReduceOp.SUM if op in _SUMS else op
    counted = op not in _SUMS
    average = op is ReduceOp.AVERAGE
    return Form(dtype, Collective(wide, reduction), True, counted, average, *scales, divisor)


def _direct(dtype: DType, scales: tuple[float, float], divisor: int) -> Form:
    """Sums of floats, and of integers as they are."""
    before, after = scales
    if dtype in _SMALL_FLOATS and divisor > 1:
        # Sums of 16-bit floats overflow; a power of two before changes no bit, the rest comes after.
        power = 1 << math.ceil(math.log2(divisor))
        before, after, divisor = before / power, after * power / divisor, 1
    return Form(dtype, Collective(dtype, ReduceOp.SUM), False, False, False, before, after, divisor)


def _wide(dtype: DType) -> DType:
    if dtype is DType.FLOAT64:
        return dtype
    return DType.FLOAT32 if dtype.is_floating else DType.INT64


def _mark(op: ReduceOp) -> int:
    """The element that says that a rank contributed: it prevails over ``_neutral``."""
    return 1 if op is ReduceOp.MAX else 0


def _neutral(what: Collective) -> float | int:
    """What changes no result: of minima, maxima and products."""
    if what.op is ReduceOp.PRODUCT:
        return 1
    if what.dtype.is_floating:
        return -math.inf if what.op is ReduceOp.MAX else math.inf
    limits = np.iinfo(CONTAINERS[what.dtype])
    return int(limits.min if what.op is ReduceOp.MAX else limits.max)


def _scale(dtype: DType, source: Array, out: Array, factor: float) -> None:
    """Multiply; 16-bit floats in 32 bits, by the native core, as numpy is slow at it."""
    if dtype in _SMALL_FLOATS:
        _native.reduce(
            dtype, ReduceOp.SUM, [source.view(np.uint8)], out.view(np.uint8), prescale=1.0, postscale=factor
        )
    else:
        np.multiply(source, CONTAINERS[dtype].type(factor), out=out)


def _widened(dtype: DType, source: Array) -> Array:
    if dtype is DType.BFLOAT16:
        return (source.astype(np.uint32) << 16).view(np.float32)
    if dtype is DType.BOOL:
        return source
    return source.astype(CONTAINERS[_wide(dtype)])


def _factored(dtype: DType, values: Array, factor: float) -> Array:
    """Scaled; integers are truncated toward zero."""
    if factor == 1.0:
        return values
    if dtype.is_floating:
        return np.asarray(values * values.dtype.type(factor))
    return np.trunc(values.astype(np.float64) * factor).astype(np.int64)


def _bfloat_bits(values: npt.NDArray[np.float32]) -> Array:
    """Rounded to the nearest bfloat16, ties to even."""
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)
