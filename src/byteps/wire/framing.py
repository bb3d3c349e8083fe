"""Frames around messages: ``encode`` gives bytes, ``Decoder`` takes bytes; sockets are elsewhere.

A frame is a prefix (payload length, u32, and message type, u8, little-endian) and a msgpack payload. The
prefix alone is enough to refuse a frame that is longer than its type may be.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from byteps.errors import ProtocolError
from byteps.wire.messages import (
    AllOutOfData,
    AskClock,
    AskMissing,
    Barrier,
    BarrierDone,
    Clock,
    Departed,
    End,
    Forward,
    Heartbeat,
    Join,
    JoinRefused,
    Leave,
    Lost,
    Message,
    Missing,
    OutOfData,
    Welcome,
)
from byteps.wire.tensors import Declare, Declared, Finished, Install, Installed, Refuse, Retract
from byteps.wire.tuning import Agreed, Measured, Proceed, Retune, Taken

_KIB: Final = 1024
_MIB: Final = 1024 * 1024

# A type's number is its position, from 1; new types go to the end.
_LIMITS: Final[tuple[tuple[type[Message], int], ...]] = (
    (Join, 4 * _KIB),
    (Welcome, 1 * _MIB),
    (JoinRefused, 64 * _KIB),
    (Declare, 64 * _MIB),
    (Declared, 64 * _MIB),
    (Refuse, 64 * _KIB),
    (Retract, 64 * _KIB),
    (Finished, 1 * _MIB),
    (Install, 64 * _MIB),
    (Installed, 64 * _KIB),
    (Barrier, 64 * _KIB),
    (BarrierDone, 64 * _KIB),
    (AskMissing, 64 * _KIB),
    (Missing, 1 * _MIB),
    (Leave, 64 * _KIB),
    (Departed, 64 * _KIB),
    (Lost, 64 * _KIB),
    (End, 64 * _KIB),
    (AskClock, 64 * _KIB),
    (Clock, 64 * _KIB),
    (Heartbeat, 64 * _KIB),
    (Forward, 1 * _MIB),
    (Retune, 64 * _MIB),
    (Agreed, 16 * _MIB),
    (Taken, 64 * _KIB),
    (Proceed, 64 * _KIB),
    (Measured, 16 * _MIB),
    (OutOfData, 64 * _KIB),
    (AllOutOfData, 64 * _KIB),
)
_NUMBERS: Final = {kind: number for number, (kind, _) in enumerate(_LIMITS, 1)}
_PREFIX: Final = struct.Struct("<IB")


def limit_bytes(kind: type[Message]) -> int:
    """Longest payload that a message of this type may have."""
    return _LIMITS[_NUMBERS[kind] - 1][1]


def encode(message: Message) -> bytes:
    """The frame of a message, prefix included.

    Raises:
        ProtocolError: The message is longer than its type may be.
    """
    payload = msgspec.msgpack.encode(message)
    kind = type(message)
    if len(payload) > limit_bytes(kind):
        raise ProtocolError(
            f"{kind.__name__} of {len(payload)} bytes is over its limit of {limit_bytes(kind)}; "
            "declare fewer tensors at once, or use larger partitions"
        )
    return _PREFIX.pack(len(payload), _NUMBERS[kind]) + payload


class Decoder:
    """Turns a byte stream, cut up anyhow, into messages. After an error the stream is of no use."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def pending(self) -> bool:
        """Whether a frame has begun that has not ended yet."""
        return bool(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> list[Message]:
        """Messages that are complete now.

        Raises:
            ProtocolError: Unknown type, a frame over its type's limit, or a payload that does not fit.
        """
        self._buffer += data
        messages: list[Message] = []
        start = 0
        while len(self._buffer) - start >= _PREFIX.size:
            length, number = _PREFIX.unpack_from(self._buffer, start)
            _check_prefix(length, number)
            begin = start + _PREFIX.size
            if len(self._buffer) - begin < length:
                break
            messages.append(_decode(number, bytes(self._buffer[begin : begin + length])))
            start = begin + length
        del self._buffer[:start]
        return messages


def _check_prefix(length: int, number: int) -> None:
    """Refuse a frame by its first five bytes, before room is made for the rest."""
    if not 1 <= number <= len(_LIMITS):
        raise ProtocolError(
            f"unknown control message type {number}; use the same byteps version in all processes of the job"
        )
    kind, limit = _LIMITS[number - 1]
    if length > limit:
        raise ProtocolError(f"{kind.__name__} of {length} bytes is over its limit of {limit}")


def _decode(number: int, payload: bytes) -> Message:
    kind: type[Message] = _LIMITS[number - 1][0]
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(f"bad {kind.__name__} message: {error}") from error
