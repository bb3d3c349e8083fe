"""Control messages and their frames: round trips, cutting, limits and refusal of anything else."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps import wire
from byteps.dtypes import DType, ReduceOp
from byteps.errors import ProtocolError

SPEC = wire.TensorSpec("fc.weight", DType.FLOAT32, (3, 4), ReduceOp.AVERAGE)
SETTINGS = wire.JobSettings(lanes=2, partition_bytes=1 << 22, deterministic=True)
EXAMPLES: list[wire.Message] = [
    wire.Join("worker", "f00d", rank=3, size=4, num_servers=2, node="node7", pid=4242, settings=SETTINGS),
    wire.Join("server", "cafe", address="2001:db8::7", port=65535),
    wire.Welcome(1, 2, 1, 2, 1, [wire.ServerAddress("127.0.0.1", 4000)], SETTINGS),
    wire.JoinRefused("full"),
    wire.Declare(7, [SPEC], [2]),
    wire.Declared(7, [wire.Placement(4, 2, [wire.Part(0, 1, 48)]), wire.Refusal("a", "differs")]),
    wire.Refuse("fc.weight", 2, "rank 1 passed a list"),
    wire.Retract(4, "fc.weight", "rank 1 passed a list"),
    wire.Finished([4, 2**40]),
    wire.Install(9, [wire.InstalledTensor(4, 1, 1, 0.5, 2.0, [(0, 1, 48)])], [1, 2]),
    wire.Installed(9),
    wire.Barrier(10),
    wire.BarrierDone(10),
    wire.AskMissing(11, 4),
    wire.Missing(11, [1, 2], [0.5, float("inf")]),
    wire.Leave(),
    wire.Departed(1),
    wire.Lost("worker", 1, "connection closed"),
    wire.End(),
    wire.AskClock(3),
    wire.Clock(3, 1.5e9),
    wire.Heartbeat(),
    wire.Retune(4, wire.Knobs(1 << 20, 0, 1 << 16), [wire.Move(3, 9, [(0, 1, 65536)], 7)], 1e9, 6),
    wire.Agreed(4, [7]),
    wire.Taken(4),
    wire.Proceed(4),
    wire.Measured(4, [0.25, 0.5], True, [9], 1e8, 5e-5),
    wire.Forward("order", b"\x00\xff", -1, 0),
    wire.OutOfData(2),
    wire.AllOutOfData(1),
]
TYPE_NUMBERS = {kind: number for number, kind in enumerate(get_args(wire.Message), 1)}


def frame(kind: type[wire.Message], payload: bytes) -> bytes:
    return struct.pack("<IB", len(payload), TYPE_NUMBERS[kind]) + payload


def test_the_examples_cover_every_message_type() -> None:
    assert {type(message) for message in EXAMPLES} == set(get_args(wire.Message))


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda message: type(message).__name__)
def test_a_message_survives_the_wire(message: wire.Message) -> None:
    decoder = wire.Decoder()
    assert decoder.feed(wire.encode(message)) == [message]
    assert not decoder.pending


@given(st.lists(st.integers(0, 400), max_size=30))
def test_frames_may_be_cut_anywhere(cuts: list[int]) -> None:
    stream = b"".join(wire.encode(message) for message in EXAMPLES)
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    decoder = wire.Decoder()
    messages = [
        message for begin, end in pairwise(edges) for message in decoder.feed(memoryview(stream)[begin:end])
    ]
    assert messages == EXAMPLES
    assert not decoder.pending


def test_a_begun_frame_is_pending() -> None:
    decoder = wire.Decoder()
    assert decoder.feed(wire.encode(wire.Leave())[:-1]) == []
    assert decoder.pending


@pytest.mark.parametrize("kind", get_args(wire.Message))
def test_a_frame_over_its_limit_is_refused_by_its_prefix(kind: type[wire.Message]) -> None:
    prefix = struct.pack("<IB", wire.limit_bytes(kind) + 1, TYPE_NUMBERS[kind])
    with pytest.raises(ProtocolError, match=rf"^{kind.__name__} of {wire.limit_bytes(kind) + 1} bytes"):
        wire.Decoder().feed(prefix)
    assert wire.Decoder().feed(struct.pack("<IB", wire.limit_bytes(kind), TYPE_NUMBERS[kind])) == []


def test_limits_are_those_of_the_documentation() -> None:
    assert wire.limit_bytes(wire.Join) == 4096
    assert {wire.limit_bytes(kind) for kind in (wire.Declare, wire.Declared, wire.Install)} == {64 << 20}
    assert wire.limit_bytes(wire.Leave) == 65536


def test_a_message_over_its_limit_is_not_sent() -> None:
    with pytest.raises(ProtocolError, match=r"Join of .* over its limit of 4096"):
        wire.encode(wire.Join("worker", "x" * 5000))


@pytest.mark.parametrize("number", [0, len(TYPE_NUMBERS) + 1, 255])
def test_an_unknown_type_is_refused(number: int) -> None:
    with pytest.raises(ProtocolError, match=f"type {number}.*same byteps version"):
        wire.Decoder().feed(struct.pack("<IB", 0, number))


def test_a_payload_of_another_type_is_refused() -> None:
    payload = wire.encode(wire.End())[5:]
    with pytest.raises(ProtocolError, match="bad Leave message"):
        wire.Decoder().feed(frame(wire.Leave, payload))


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        (wire.TensorSpec("a", len(DType), (1,), 0), "dtype"),
        (wire.TensorSpec("a", 0, (1,), len(ReduceOp)), "op"),
        (wire.TensorSpec("a", 0, (-1,), 0), "size"),
        (wire.TensorSpec("", 0, (1,), 0), "name"),
        (wire.TensorSpec("a", 0, (1,) * 65, 0), "dimensions"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_out_of_range_are_refused(spec: wire.TensorSpec, what: str) -> None:
    with pytest.raises(ProtocolError, match="bad Declare message"):
        wire.Decoder().feed(wire.encode(wire.Declare(1, [spec], [0])))


@given(st.sampled_from(list(TYPE_NUMBERS)), st.binary(max_size=200))
def test_rubbish_is_a_protocol_error_and_nothing_else(kind: type[wire.Message], payload: bytes) -> None:
    try:
        messages = wire.Decoder().feed(frame(kind, payload))
    except ProtocolError:
        return
    assert [type(message) for message in messages] == [kind]


def test_deeply_nested_rubbish_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        wire.Decoder().feed(frame(wire.Finished, b"\x91" * 60000))


def test_a_spec_knows_its_size() -> None:
    assert (SPEC.length, SPEC.nbytes) == (12, 48)
    assert wire.TensorSpec("a", DType.FLOAT16, (), ReduceOp.SUM).nbytes == 2
    assert wire.TensorSpec("a", DType.FLOAT16, (3, 0), ReduceOp.SUM).nbytes == 0


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (SPEC, "float32[3, 4] Average"),
        (wire.TensorSpec("a", DType.INT8, (), ReduceOp.COPY, root=2), "int8[] Copy from root 2"),
        (
            wire.TensorSpec("a", DType.BOOL, (5,), ReduceOp.SUM, 0.5, 3.0),
            "bool[5] Sum prescale 0.5 postscale 3",
        ),
    ],
)
def test_a_spec_describes_what_must_match(spec: wire.TensorSpec, text: str) -> None:
    assert spec.describe() == text
