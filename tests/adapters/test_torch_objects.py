"""Python objects on all ranks: what arrives is what was sent, and nothing runs code unasked."""

from __future__ import annotations

import datetime
import threading
from collections import OrderedDict
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import byteps.torch as bps
from byteps.adapters.objects import ObjectCodec
from byteps.session import Session

from .conftest import Ranks

NUMBERS = st.integers() | st.floats(allow_nan=False) | st.complex_numbers(allow_nan=False)
SCALARS = st.none() | st.booleans() | st.text() | st.binary() | NUMBERS
KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.text()) | st.none()
OBJECTS = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(KEYS, inner)
        | st.dictionaries(KEYS, inner).map(OrderedDict)
        | st.frozensets(KEYS)
        | st.sets(KEYS)
        | st.binary().map(bytearray)
    ),
    max_leaves=20,
)
CODEC = ObjectCodec()


@given(OBJECTS)
def test_plain_objects_come_back_with_their_types(value: object) -> None:
    found = CODEC.decode(CODEC.encode(value, allow_pickle=False), allow_pickle=False)
    assert type(found) is type(value)
    assert found == value


@pytest.mark.parametrize("dtype", ["?", "i1", "<u8", ">f4", "f2", "c16", "M8[s]", "U3", "S2"])
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_numpy_arrays_and_scalars(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    for value in (array, array[()], array.T):
        found: Any = CODEC.decode(CODEC.encode([value], allow_pickle=False), allow_pickle=False)
        assert found[0].dtype == value.dtype
        assert found[0].shape == value.shape
        assert np.array_equal(found[0], value)
        assert not isinstance(found[0], np.ndarray) or found[0].flags.writeable


def test_a_metric_of_numpy_stays_one() -> None:
    found = CODEC.decode(CODEC.encode({"loss": np.float64(0.25)}, allow_pickle=False), allow_pickle=False)
    assert found == {"loss": 0.25}


TENSORS = [
    torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).t(),
    torch.ones((), dtype=torch.float64),
    torch.zeros(0, 3),
    torch.tensor([True, False]),
    torch.tensor([1 + 2j]).conj(),
]


def test_every_rank_gets_the_roots_object(ranks: Ranks) -> None:
    value = {"epoch": 3, "best": (0.5, None), "tensors": TENSORS, "weight": torch.nn.Parameter(torch.ones(2))}

    def work(session: Session) -> Any:
        first = bps.broadcast_object("small", root_rank=0, session=session)
        assert first == "small"
        return bps.broadcast_object(value if session.rank == 1 else None, 1, name="o", session=session)

    for rank, found in enumerate(ranks(3, work)):
        assert (found is value) == (rank == 1)
        assert found["best"] == (0.5, None)
        for tensor, wanted in zip(
            [*found["tensors"], found["weight"]], [*TENSORS, torch.ones(2)], strict=True
        ):
            assert tensor.dtype == wanted.dtype
            assert tensor.shape == wanted.shape
            assert torch.equal(tensor, wanted)


def test_one_name_again_with_another_size(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        for size in (0, 1, 100_000, 3):
            found = bps.broadcast_object(b"x" * size if session.rank == 0 else None, 0, "o", session=session)
            assert found == b"x" * size

    ranks(2, work)


def test_objects_of_all_ranks_in_their_order(ranks: Ranks) -> None:
    def work(session: Session) -> list[object]:
        assert bps.allgather_object(session.rank, name="o", session=session) == [0, 1, 2]
        return bps.allgather_object(
            {"rank": session.rank, "data": b"x" * 30_000 * session.rank}, session=session
        )

    for found in ranks(3, work):
        assert found == [{"rank": rank, "data": b"x" * 30_000 * rank} for rank in range(3)]


def test_one_worker(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        value = [object()]
        assert bps.allgather_object([1], session=session) == [[1]]
        assert bps.broadcast_object(value, allow_pickle=True, session=session) is value

    ranks(1, work)


def test_pickle_when_all_ranks_ask_for_it(ranks: Ranks) -> None:
    moment = datetime.datetime(2026, 11, 30, tzinfo=datetime.timezone.utc)

    def work(session: Session) -> None:
        assert bps.broadcast_object(moment, 0, allow_pickle=True, session=session) == moment
        gathered = bps.allgather_object([moment, session.rank], allow_pickle=True, session=session)
        assert gathered == [[moment, 0], [moment, 1]]

    ranks(2, work)


def test_nothing_is_unpickled_unasked(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        if session.rank == 0:
            bps.broadcast_object({1}, 0, allow_pickle=True, session=session)
        else:
            with pytest.raises(ValueError, match="allow_pickle=True on every rank"):
                bps.broadcast_object(None, 0, session=session)

    ranks(2, work)


def test_an_object_that_cannot_be_sent_is_an_error_on_every_rank(ranks: Ranks) -> None:
    def work(session: Session) -> None:
        value = {"when": datetime.date(2026, 11, 30)} if session.rank == 1 else 1
        error = TypeError if session.rank == 1 else ValueError
        with pytest.raises(error, match=r"cannot send a datetime\.date.*allow_pickle"):
            bps.broadcast_object(value, 1, session=session)
        with pytest.raises(error, match=r"cannot send a datetime\.date.*allow_pickle"):
            bps.allgather_object(value, session=session)
        own = threading.Lock() if session.rank == 1 else 1
        with pytest.raises(error, match=r"cannot pickle this lock.*state_dict\(\)"):
            bps.broadcast_object(own, 1, allow_pickle=True, session=session)
        with pytest.raises(error, match=r"cannot pickle this lock.*state_dict\(\)"):
            bps.allgather_object(own, allow_pickle=True, session=session)
        assert bps.allgather_object("still working", session=session) == ["still working"] * 2

    ranks(2, work)


@pytest.mark.parametrize(
    "value",
    [np.array([object()]), np.zeros(2, [("a", "i4")]), torch.eye(2).to_sparse(), OrderedDict(a=object())],
    ids=["objects", "structured", "sparse", "nested"],
)
def test_what_msgpack_must_not_carry(ranks: Ranks, value: object) -> None:
    def work(session: Session) -> None:
        with pytest.raises(TypeError, match="cannot send"):
            bps.broadcast_object(value, session=session)

    ranks(1, work)


def test_an_extension_of_a_newer_version_is_refused() -> None:
    unknown = b"\x00" + msgspec.msgpack.encode(msgspec.msgpack.Ext(99, b"\x90"))
    with pytest.raises(ValueError, match="extension 99"):
        CODEC.decode(unknown, allow_pickle=False)
