"""A job of one worker: no coordinator, no server, the same values."""

from __future__ import annotations

import numpy as np
import pytest

from byteps.config import Config
from byteps.dtypes import DType, ReduceOp
from byteps.errors import ConfigError, DeclarationError, JoinError, SessionClosed
from byteps.joining import connect
from byteps.wire import TensorSpec

from .arrays import Array, exchange, expected, held, small_values, spec, start


def alone(
    dtype: DType, op: ReduceOp, prescale: float, postscale: float, in_place: bool
) -> tuple[Array, Array]:
    session = connect(Config())
    root = 0 if op is ReduceOp.COPY else -1
    what = spec("x", 1000, dtype, op, prescale=prescale, postscale=postscale, root=root)
    own = small_values(dtype, 1000, [1])
    wanted = expected(what, [own])
    into = own if in_place else np.full_like(own, 1)
    start(session, what, own, into).wait()
    session.shutdown()
    return into, wanted


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("scales", [(1.0, 1.0), (0.5, 1.0), (2.0, 0.25)])
@pytest.mark.parametrize("op", list(ReduceOp))
@pytest.mark.parametrize("dtype", [kind for kind in DType if kind is not DType.BOOL])
def test_one_worker_gets_its_scaled_value(
    dtype: DType, op: ReduceOp, scales: tuple[float, float], in_place: bool
) -> None:
    got, wanted = alone(dtype, op, *scales, in_place)
    assert np.array_equal(got, wanted)


def test_one_worker_alone_leaves_nothing_behind() -> None:
    before = held()
    session = connect(Config())
    assert (session.rank, session.size, session.local_rank, session.local_size) == (0, 1, 0, 1)
    session.barrier()
    empty = np.ones(5, np.float32)
    start(session, spec("nothing", 5), None, empty).wait()
    start(session, spec("no result", 5), empty, None).wait()
    start(session, spec("empty", 0), np.ones(0, np.float32), None).wait()
    assert np.all(empty == 0)
    session.shutdown()
    assert held() == before


def test_one_worker_alone_is_held_to_its_declarations() -> None:
    session = connect(Config())
    exchange(session, spec("x", 5), np.ones(5, np.float32))
    with pytest.raises(DeclarationError, match=r"'x'.*float32\[5\] Sum.*float32\[6\] Sum"):
        exchange(session, spec("x", 6), np.ones(6, np.float32))
    assert np.all(exchange(session, spec("x", 6), np.ones(6, np.float32)) == 1), "the name is free again"
    session.shutdown()
    with pytest.raises(SessionClosed):
        exchange(session, spec("x", 6), np.ones(6, np.float32))


def test_several_workers_need_a_coordinator() -> None:
    with pytest.raises(JoinError, match="BYTEPS_COORDINATOR"):
        connect(Config(size=2))


def test_encryption_of_data_is_not_pretended() -> None:
    with pytest.raises(ConfigError, match="WireGuard"):
        connect(Config(encrypt_data=True))


def test_what_no_job_can_use_is_refused_as_in_any_job() -> None:
    session = connect(Config())
    impossible = [
        TensorSpec("a", DType.BOOL, (3,), ReduceOp.AVERAGE),
        TensorSpec("b", DType.FLOAT32, (3,), ReduceOp.COPY, root=1),
        TensorSpec("c", DType.FLOAT32, (3,), ReduceOp.SUM, prescale=float("nan")),
    ]
    for one in impossible:
        with pytest.raises(DeclarationError, match=f"'{one.name}'"):
            session.declare([one])
    session.shutdown()
