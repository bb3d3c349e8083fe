"""The native reduction kernels against numpy, over whole arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps import _native
from byteps.dtypes import DType, ReduceOp

Array = npt.NDArray[Any]

NUMPY_TYPES: dict[DType, Any] = {
    DType.FLOAT64: np.float64,
    DType.FLOAT32: np.float32,
    DType.FLOAT16: np.float16,
    DType.BFLOAT16: np.uint16,  # numpy has no bfloat16: its bits
    DType.INT8: np.int8,
    DType.UINT8: np.uint8,
    DType.INT16: np.int16,
    DType.INT32: np.int32,
    DType.INT64: np.int64,
    DType.BOOL: np.bool_,
}
RELATIVE_ERROR = {
    DType.FLOAT64: 2.0**-50,
    DType.FLOAT32: 2.0**-21,
    DType.FLOAT16: 2.0**-10,
    DType.BFLOAT16: 2.0**-7,
}
INTEGERS = [DType.INT8, DType.UINT8, DType.INT16, DType.INT32, DType.INT64]
FOLDS: dict[ReduceOp, np.ufunc] = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVERAGE: np.add,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.PRODUCT: np.multiply,
}


def bfloat_bits(values: Array) -> Array:
    """Round float32 to the bits of bfloat16, ties to even; the values are finite."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def bfloat_values(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def run(
    dtype: DType,
    op: ReduceOp,
    contributions: Sequence[Array],
    *,
    prescale: float = 1.0,
    postscale: float = 1.0,
) -> Array:
    out = np.empty_like(contributions[0])
    divisor = len(contributions) if op is ReduceOp.AVERAGE else 1
    _native.reduce(
        dtype, op, list(contributions), out, prescale=prescale, postscale=postscale, divisor=divisor
    )
    return out


def random_contributions(dtype: DType, count: int, length: int) -> list[Array]:
    generator = np.random.default_rng([int(dtype), count, length])
    if dtype in INTEGERS:
        limits = np.iinfo(NUMPY_TYPES[dtype])
        return list(generator.integers(limits.min, limits.max, (count, length), limits.dtype, endpoint=True))
    if dtype is DType.BOOL:
        return list(generator.random((count, length)) < 0.5)
    values = generator.normal(size=(count, length))
    return list(bfloat_bits(values) if dtype is DType.BFLOAT16 else values.astype(NUMPY_TYPES[dtype]))


def fold(op: ReduceOp, values: Sequence[Array]) -> Array:
    result = values[0]
    for value in values[1:]:
        result = FOLDS[op](result, value)
    return result


def expected_floats(
    op: ReduceOp, values: Sequence[Array], prescale: float, postscale: float
) -> tuple[Array, Array]:
    """The result in float64, and the size of the terms that its error is relative to."""
    scaled = [value.astype(np.float64) * prescale for value in values]
    divisor = len(values) if op is ReduceOp.AVERAGE else 1
    magnitude = fold(op, [np.abs(value) for value in scaled]) if op in (ReduceOp.SUM, ReduceOp.AVERAGE) else 0
    exact = fold(op, scaled)
    return exact * postscale / divisor, np.maximum(np.abs(exact), magnitude) * postscale / divisor


def expected_integers(
    dtype: DType, op: ReduceOp, values: Sequence[Array], prescale: float, postscale: float
) -> Array:
    def scale(value: Array, factor: float) -> Array:
        return value if factor == 1.0 else np.trunc(value.astype(np.float64) * factor).astype(np.int64)

    with np.errstate(over="ignore"):
        total = scale(fold(op, [scale(value.astype(np.int64), prescale) for value in values]), postscale)
    if op is ReduceOp.AVERAGE:
        total = np.sign(total) * (np.abs(total) // len(values))
    return total.astype(NUMPY_TYPES[dtype])


def check(dtype: DType, op: ReduceOp, contributions: list[Array], prescale: float, postscale: float) -> None:
    out = run(dtype, op, contributions, prescale=prescale, postscale=postscale)
    if dtype is DType.BOOL:
        logical = np.logical_and if op in (ReduceOp.MIN, ReduceOp.PRODUCT) else np.logical_or
        np.testing.assert_array_equal(out, logical.reduce(contributions))
    elif dtype in INTEGERS:
        expected = expected_integers(dtype, op, contributions, prescale, postscale)
        np.testing.assert_array_equal(out, expected)
    else:
        values, got = contributions, out
        if dtype is DType.BFLOAT16:
            values, got = [bfloat_values(bits) for bits in contributions], bfloat_values(out)
        exact, magnitude = expected_floats(op, values, prescale, postscale)
        error = np.abs(got.astype(np.float64) - exact)
        assert np.all(error <= RELATIVE_ERROR[dtype] * np.abs(magnitude) + 1e-6 * (dtype.itemsize == 2))


@pytest.mark.parametrize("op", FOLDS)
@pytest.mark.parametrize("dtype", DType)
def test_every_type_and_operation_agrees_with_numpy(dtype: DType, op: ReduceOp) -> None:
    for length in (0, 1, 7, 4095, 65536 // dtype.itemsize + 1):
        check(dtype, op, random_contributions(dtype, 3, length), 1.0, 1.0)


@pytest.mark.parametrize(("prescale", "postscale"), [(0.5, 1.0), (1.0, 3.0), (0.25, 0.3)])
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.MAX])
@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype is not DType.INT64])
def test_scaling_agrees_with_numpy(dtype: DType, op: ReduceOp, prescale: float, postscale: float) -> None:
    check(dtype, op, random_contributions(dtype, 3, 2500), prescale, postscale)


@pytest.mark.parametrize("dtype", DType)
def test_copy_returns_the_bytes_unscaled(dtype: DType) -> None:
    (source,) = random_contributions(dtype, 1, 4099)
    np.testing.assert_array_equal(run(dtype, ReduceOp.COPY, [source], prescale=2.0, postscale=3.0), source)


def test_half_averages_past_the_largest_half() -> None:
    ranks = [np.full(1000, 2000.0, np.float16) for _ in range(64)]  # their sum is 128000, the limit 65504
    np.testing.assert_array_equal(run(DType.FLOAT16, ReduceOp.AVERAGE, ranks), ranks[0])
    assert np.all(np.isposinf(run(DType.FLOAT16, ReduceOp.SUM, ranks)))


def test_prescale_acts_before_half_overflows() -> None:
    ranks = [np.full(1000, 60000.0, np.float16) for _ in range(4)]
    np.testing.assert_array_equal(run(DType.FLOAT16, ReduceOp.SUM, ranks, prescale=0.25), ranks[0])


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.FLOAT64])
def test_float_average_is_bitwise_the_division(dtype: DType) -> None:
    a, b, c = random_contributions(dtype, 3, 10007)
    average = run(dtype, ReduceOp.AVERAGE, [a, b, c])
    np.testing.assert_array_equal(average, ((a + b) + c) / NUMPY_TYPES[dtype](3))


@pytest.mark.parametrize("factor", [1 / 3, 2.0**-10 / 3, 2.0**-14, 1000.1, 2.0**100])
def test_sixteen_bit_floats_round_to_nearest_even(factor: float) -> None:
    bits = np.arange(65536, dtype=np.uint16)  # every half, subnormals, infinities and NaN among them
    halves = bits.view(np.float16)
    with np.errstate(all="ignore"):
        expected = (halves.astype(np.float32) * np.float32(factor)).astype(np.float16)
        exact = bfloat_values(bits) * np.float32(factor)
    np.testing.assert_array_equal(
        run(DType.FLOAT16, ReduceOp.SUM, [halves], postscale=factor), expected, strict=True
    )
    out = bfloat_values(run(DType.BFLOAT16, ReduceOp.SUM, [bits], postscale=factor))
    finite = np.isfinite(exact)
    np.testing.assert_array_equal(out[finite], bfloat_values(bfloat_bits(exact[finite])))
    np.testing.assert_array_equal(out[~finite], exact[~finite])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_sums_wrap(dtype: DType) -> None:
    limits = np.iinfo(NUMPY_TYPES[dtype])
    largest = np.full(100, limits.max, limits.dtype)
    np.testing.assert_array_equal(run(dtype, ReduceOp.SUM, [largest, np.ones_like(largest)]), limits.min)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_average_truncates_toward_zero(dtype: DType) -> None:
    five, two = np.full(10, 5, NUMPY_TYPES[dtype]), np.full(10, 2, NUMPY_TYPES[dtype])
    np.testing.assert_array_equal(run(dtype, ReduceOp.AVERAGE, [five, two]), 3)
    if dtype is not DType.UINT8:
        np.testing.assert_array_equal(run(dtype, ReduceOp.AVERAGE, [-five, -two]), -3)


def test_small_integers_average_without_wrapping() -> None:
    ranks = [np.full(10, 127, np.int8)] * 9
    np.testing.assert_array_equal(run(DType.INT8, ReduceOp.AVERAGE, ranks), 127)
    np.testing.assert_array_equal(run(DType.UINT8, ReduceOp.AVERAGE, [np.full(10, 255, np.uint8)] * 9), 255)


@pytest.mark.parametrize("op", [ReduceOp.MIN, ReduceOp.MAX])
@pytest.mark.parametrize("dtype", [DType.FLOAT64, DType.FLOAT32, DType.FLOAT16])
def test_minimum_and_maximum_propagate_nan(dtype: DType, op: ReduceOp) -> None:
    values = random_contributions(dtype, 3, 999)
    for rank, value in enumerate(values):
        value[rank::7] = np.nan
    np.testing.assert_array_equal(run(dtype, op, values), fold(op, values))


def test_result_may_overwrite_a_contribution_and_buffers_need_no_alignment() -> None:
    room = np.zeros(4 * 501 + 1, np.uint8)
    unaligned = room[1:].view(np.float32)
    unaligned[:] = np.arange(501)
    _native.reduce(DType.FLOAT32, ReduceOp.SUM, [unaligned, unaligned], unaligned)
    np.testing.assert_array_equal(unaligned, 2 * np.arange(501, dtype=np.float32))


def test_what_does_not_fit_is_refused() -> None:
    out = np.zeros(4, np.float32)
    with pytest.raises(ValueError, match="unknown dtype 10"):
        _native.reduce(10, ReduceOp.SUM, [out], out)
    with pytest.raises(ValueError, match="unknown operation -1"):
        _native.reduce(DType.FLOAT32, -1, [out], out)
    with pytest.raises(ValueError, match="at least one contribution"):
        _native.reduce(DType.FLOAT32, ReduceOp.SUM, [], out)
    with pytest.raises(ValueError, match="differ in size"):
        _native.reduce(DType.FLOAT32, ReduceOp.SUM, [out, out[:3]], out)
    with pytest.raises(ValueError, match="whole number of elements"):
        _native.reduce(DType.FLOAT32, ReduceOp.SUM, [bytes(5)], bytearray(5))
    with pytest.raises(ValueError, match="divisor is zero"):
        _native.reduce(DType.FLOAT32, ReduceOp.SUM, [out], out, divisor=0)
    with pytest.raises(BufferError):
        _native.reduce(DType.FLOAT32, ReduceOp.SUM, [out], bytes(16))


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(DType),
    op=st.sampled_from(list(FOLDS)),
    ranks=st.integers(1, 6),
    length=st.integers(0, 2100),
    prescale=st.sampled_from([1.0, 0.5, 2.0]),
    postscale=st.sampled_from([1.0, 0.125]),
)
def test_any_combination_agrees_with_numpy(
    dtype: DType, op: ReduceOp, ranks: int, length: int, prescale: float, postscale: float
) -> None:
    if dtype is DType.INT64:  # scaling 64-bit integers goes through float64, which loses their low bits
        prescale = postscale = 1.0
    if op is ReduceOp.PRODUCT:  # a wrapped or tiny product is compared exactly only without scaling
        prescale = postscale = 1.0
    check(dtype, op, random_contributions(dtype, ranks, length), prescale, postscale)
