"""What the two ends of a data connection say between the handshake and the first frame, sans-IO.

::

    worker -> Offer     the transport it is set to, and where it waits to be handed memory
    server -> Answer    what will be used, or why it refuses
    worker -> Settled   only after an answer that names shared memory: whether it can use it

Each is a length (u16, little-endian) and a msgpack array. The steps have the form of the handshake's.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from byteps.errors import HandshakeError

_LENGTH = struct.Struct("<H")
_LIMIT_BYTES = 16 * 1024
_MAX_REASON = 2000

Message = TypeVar("Message", bound=msgspec.Struct)
Setting = Literal["auto", "tcp", "shm"]
Reason = Annotated[str, Meta(max_length=_MAX_REASON)]


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """Worker -> server: how this worker may go on.

    Attributes:
        setting: The worker's ``transport``.
        window: Name of the socket at which it waits for memory; see ``memory.Window``. Empty: there is none.
        reason: Why there is none although the setting allows it.
    """

    setting: Setting
    window: Annotated[str, Meta(pattern=r"^(byteps-[0-9a-f]{32})?\Z")] = ""
    reason: Reason = ""


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """Server -> worker: how they go on.

    Attributes:
        transport: What will be used.
        reason: Why not something better, or why the server refuses to go on.
        refused: There is nothing that both may use; the server closes the connection.
        near: The two share a host, though they may not share memory.
    """

    transport: Literal["tcp", "shm"]
    reason: Reason = ""
    refused: bool = False
    near: bool = False


class Settled(msgspec.Struct, frozen=True, array_like=True):
    """Worker -> server: the last word. With a reason, memory cannot be used after all."""

    reason: Reason = ""


def say(message: msgspec.Struct) -> Generator[int | bytes, bytes, None]:
    """Steps that send one message."""
    payload = msgspec.msgpack.encode(message)
    yield _LENGTH.pack(len(payload)) + payload


def hear(kind: type[Message]) -> Generator[int | bytes, bytes, Message]:
    """Steps that receive one message.

    Raises:
        HandshakeError: something else came.
    """
    (length,) = _LENGTH.unpack((yield _LENGTH.size))
    if not 0 < length <= _LIMIT_BYTES:
        raise HandshakeError(
            f"it sent {length} bytes for {kind.__name__}; install the same byteps on all hosts"
        )
    payload = yield length
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except msgspec.DecodeError as error:
        raise HandshakeError(
            f"it sent no {kind.__name__} ({error}); install the same byteps on all hosts"
        ) from error


def allowed(one: str, other: str) -> tuple[str, ...]:
    """The transports that two settings allow, the best first; none if the two contradict each other."""
    every = ("shm", "tcp")
    return tuple(kind for kind in every if one in ("auto", kind) and other in ("auto", kind))


def shortened(reason: str) -> str:
    """A reason that fits in a message."""
    return reason[:_MAX_REASON]
