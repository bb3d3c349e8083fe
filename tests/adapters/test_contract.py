"""What every adapter keeps to, whatever the framework: values, names, priorities, errors, training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from byteps.adapters.reductions import Average, Max, Min, Product, Sum
from byteps.dtypes import ReduceOp
from byteps.errors import DeclarationError, NotInitialized
from byteps.session import Session

from .conftest import Ranks
from .drivers.installed import DRIVERS, driver_of
from .drivers.interface import Array, Driver, batch, initial_parameters, joined
from .spy import Spy

OPS = (Sum, Average, Min, Max, Product)
STEPS = 30
SHAPES = [(), (3, 5), (0,), (4, 0, 2), (40_001,)]


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Driver:
    return driver_of(request.param)


def values(rank: int, shape: tuple[int, ...], dtype: str) -> Array:
    """Small whole numbers, exact in every dtype and under every operator."""
    low = 0 if dtype in ("uint8", "bool") else -3
    return np.random.default_rng(rank).integers(low, 4, shape).astype(dtype)


def expected(parts: Sequence[Array], op: ReduceOp) -> Array:
    stacked = np.stack(parts).astype(np.float64)
    forms: dict[ReduceOp, Callable[[int], Any]] = {Min: stacked.min, Max: stacked.max, Product: stacked.prod}
    if op in forms:
        result = forms[op](0)
    else:
        result = stacked.sum(0) / (len(parts) if op is Average else 1)
        if parts[0].dtype.kind in "iu":
            result = np.trunc(result)
    return np.asarray(result).astype(parts[0].dtype)


def test_values_dtypes_and_shapes(ranks: Ranks, driver: Driver) -> None:
    cases = [
        (way, dtype, op, number)
        for number, way in enumerate(driver.alternatives)
        for dtype in driver.dtypes
        for op in OPS
        if (dtype, op) != ("bool", Average)
    ]

    def work(session: Session) -> None:
        for way, dtype, op, number in cases:
            for shape in SHAPES[number % 2 :: 2]:
                mine = values(session.rank, shape, dtype)
                name = None if number else f"{dtype}{op}{shape}"
                found = driver.alternatives[way](session, mine, op=op, name=name)
                wanted = expected([values(rank, shape, dtype) for rank in range(2)], op)
                where = f"{way}, {dtype}, {op.name}, {shape}"
                assert (found.dtype, found.shape) == (mine.dtype, shape), where
                assert np.array_equal(mine, values(session.rank, shape, dtype)), where
                np.testing.assert_allclose(found, wanted, rtol=4e-3 if op is Average else 0, err_msg=where)

    ranks(2, work)


def test_every_way_to_call_averages_by_default_and_scales(ranks: Ranks, driver: Driver) -> None:
    def work(session: Session) -> None:
        mine = np.array([2.0, 4.0], np.float32) * (session.rank + 1)
        for call in driver.alternatives.values():
            assert call(session, mine).tolist() == [3.0, 6.0]
            assert call(session, mine, average=False, name="sum").tolist() == [6.0, 12.0]
            scaled = call(session, mine, op=Sum, prescale_factor=0.5, postscale_factor=10.0, name="scaled")
            assert scaled.tolist() == [30.0, 60.0]

    ranks(2, work)


def test_one_worker_gets_its_own_values(ranks: Ranks, driver: Driver) -> None:
    def work(session: Session) -> None:
        for name, call in driver.alternatives.items():
            assert call(session, np.array([1.5, -2.0]), name=name).tolist() == [1.5, -2.0]
            tripled = call(session, np.ones(1), op=Sum, prescale_factor=3.0)
            assert tripled.tolist() == [3.0]
        assert driver.broadcast(session, np.ones(2), 0, None).tolist() == [1.0, 1.0]

    ranks(1, work)


def test_names_match_tensors_that_ranks_send_in_different_orders(ranks: Ranks, driver: Driver) -> None:
    def work(session: Session) -> dict[str, Array]:
        names = ["x", "y", "z"] if session.rank == 0 else ["z", "x", "y"]
        return driver.together(session, {name: np.array(float(ord(name))) for name in names})

    for found in ranks(2, work):
        assert {name: float(value) for name, value in found.items()} == {
            name: 2.0 * ord(name) for name in "xyz"
        }


def test_all_are_started_before_one_is_waited_for(ranks: Ranks, driver: Driver) -> None:
    names = [f"tensor {number}" for number in range(40)]

    def work(session: Session) -> list[str]:
        spy = Spy(session)
        order = names if session.rank else names[::-1]
        found = driver.together(session, {name: np.full(3, float(len(name))) for name in order})
        assert all(value.tolist() == [2.0 * len(name)] * 3 for name, value in found.items())
        return sorted(name for name, _ in spy.submitted)

    for found in ranks(2, work):
        assert found == sorted(f"push_pull.{name}" for name in names)


def test_broadcast_gives_the_roots_values(ranks: Ranks, driver: Driver) -> None:
    def work(session: Session) -> None:
        for dtype in driver.dtypes:
            for root, name in ((0, None), (1, f"named {dtype}")):
                found = driver.broadcast(session, values(session.rank, (3, 4), dtype), root, name)
                assert found.dtype == dtype
                assert np.array_equal(found, values(root, (3, 4), dtype))

    ranks(2, work)


def test_variables_become_the_roots(ranks: Ranks, driver: Driver) -> None:
    def work(session: Session) -> None:
        shapes = [(2, 3), (), (4,)]
        found = driver.broadcast_variables(session, [values(session.rank, s, "float32") for s in shapes], 1)
        for shape, value in zip(shapes, found, strict=True):
            assert np.array_equal(value, values(1, shape, "float32"))

    ranks(2, work)


def test_objects_travel(ranks: Ranks, driver: Driver) -> None:
    value = {"epoch": 3, "names": ("a", {"b"}), "weights": np.arange(3.0)}

    def work(session: Session) -> Any:
        return driver.module.broadcast_object(value if session.rank == 1 else None, 1, session=session)

    for found in ranks(2, work):
        assert found["epoch"] == 3
        assert found["names"] == ("a", {"b"})
        assert found["weights"].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("op", [Sum, Average])
def test_the_gradient_of_a_push_pull_is_the_push_pull_of_the_gradient(
    ranks: Ranks, driver: Driver, op: ReduceOp
) -> None:
    def work(session: Session) -> None:
        weights = np.array([1.0, 10.0, 100.0], np.float32) * (session.rank + 1)
        for name in (None, "named"):
            found = driver.gradient(session, np.ones(3, np.float32), weights, op=op, name=name)
            assert found.tolist() == ([3.0, 30.0, 300.0] if op is Sum else [1.5, 15.0, 150.0])

    ranks(2, work)


def test_wrong_arguments(ranks: Ranks, driver: Driver) -> None:
    def work(session: Session) -> None:
        one = np.ones(1, np.float32)
        for call in driver.alternatives.values():
            with pytest.raises(ValueError, match="only op="):
                call(session, one, average=True, op=Sum)
            with pytest.raises(ValueError, match="must be Average, Sum"):
                call(session, one, op="sum")
            with pytest.raises(TypeError, match="name="):
                call(session, one, name=3)
            with pytest.raises(ValueError, match="booleans have no average"):
                call(session, np.ones(1, bool))
        with pytest.raises(ValueError, match="root_rank=5"):
            driver.broadcast(session, one, 5, None)

    ranks(1, work)


def test_what_cannot_be_sent_says_so(ranks: Ranks, driver: Driver) -> None:
    def work(session: Session) -> None:
        for value, error, message in driver.unsendable().values():
            with pytest.raises(error, match=message):
                driver.module.push_pull(value, name="wrong", session=session)
            with pytest.raises(error, match=message):
                driver.module.broadcast(value, 0, name="wrong", session=session)

    ranks(1, work)


@pytest.mark.parametrize("what", ["shape", "dtype", "op"])
def test_ranks_that_differ_all_get_an_error_that_names_both(ranks: Ranks, driver: Driver, what: str) -> None:
    def work(session: Session) -> None:
        rank = session.rank
        shape, dtype = 2 + rank * (what == "shape"), "float64" if rank and what == "dtype" else "float32"
        op = Max if rank and what == "op" else Sum
        for way, call in driver.alternatives.items():
            with pytest.raises(DeclarationError, match=r"rank \d.*rank \d"):
                call(session, np.ones(shape, dtype), op=op, name=way)
            session.barrier()
            assert call(session, np.ones(1, np.float32), name=f"after {way}").tolist() == [1.0]

    ranks(2, work)


def test_calls_before_init(driver: Driver) -> None:
    for name in ("rank", "size", "local_rank", "local_size"):
        with pytest.raises(NotInitialized, match=r"call init\(\) first"):
            getattr(driver.module, name)()
    with pytest.raises(NotInitialized):
        driver.module.broadcast_object(1)
    assert not driver.module.is_initialized()


def test_training_equals_one_process_and_the_first_layer_is_the_most_urgent(
    ranks: Ranks, driver: Driver
) -> None:
    alone = driver.train(None, [joined(2, step) for step in range(STEPS)])
    assert not np.allclose(alone[0], initial_parameters()[0])

    def work(session: Session) -> tuple[list[Array], dict[str, int]]:
        spy = Spy(session)
        trained = driver.train(session, [batch(session.rank, step) for step in range(STEPS)])
        sent = {name: priority for name, priority in spy.submitted if name.startswith("gradient")}
        return trained, {name: priority for name, priority in sent.items() if "#" not in name}

    for trained, priorities in ranks(2, work):
        for found, wanted in zip(trained, alone, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        by_urgency = sorted(priorities, key=lambda name: -priorities[name])
        assert len(set(priorities.values())) == len(driver.gradients_in_order)
        for name, ending in zip(by_urgency, driver.gradients_in_order, strict=True):
            assert name.endswith(ending)


def test_training_with_sums_and_compression(ranks: Ranks, driver: Driver) -> None:
    doubled = driver.train(None, [joined(2, step) for step in range(3)])

    def work(session: Session) -> list[Array]:
        compression = driver.module.Compression.fp16
        own = [batch(session.rank, step) for step in range(3)]
        return driver.train(session, own, compression=compression, gradient_predivide_factor=2.0)

    for trained in ranks(2, work):
        for found, wanted in zip(trained, doubled, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=2e-2, atol=2e-2)


def test_what_an_adapter_lacks_of_horovods_collectives_is_said(driver: Driver) -> None:
    lacking = {"jax", "mxnet"} & {driver.module.__name__.split(".")[1]}
    for name in ("allgather", "alltoall", "reducescatter", "join", "add_process_set"):
        assert hasattr(driver.module, name) == (not lacking)
        if lacking:
            with pytest.raises(
                AttributeError, match=rf"no attribute '{name}': .*allgather_object.*byteps\.torch"
            ):
                getattr(driver.module, name)
