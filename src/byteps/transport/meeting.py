"""What the two ends of a data connection say between the handshake and the first frame, sans-IO.

::

    worker -> Offer     the transport it is set to, where it waits to be handed memory, its address in UCX
    server -> Answer    what will be used, or why it refuses
    worker -> Settled   only after an answer that names shared memory: whether it can use it

Each is a length (u16, little-endian) and a msgpack array. The steps have the form of the handshake's.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Generator
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from byteps.config import Config
from byteps.errors import HandshakeError

_LENGTH = struct.Struct("<H")
_LIMIT_BYTES = 16 * 1024
_MAX_REASON = 2000
_MAX_ADDRESS_BYTES = 8 * 1024

Message = TypeVar("Message", bound=msgspec.Struct)
Setting = Literal["auto", "tcp", "shm", "ucx"]
Reason = Annotated[str, Meta(max_length=_MAX_REASON)]
UcxAddress = Annotated[bytes, Meta(max_length=_MAX_ADDRESS_BYTES)]


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """Worker -> server: how this worker may go on.

    Attributes:
        setting: The worker's ``transport``.
        window: Name of the socket at which it waits for memory; see ``memory.Window``. Empty: there is none.
        reason: Why there is none although the setting allows it.
        ucx: The address of this end in UCX, where the setting is "ucx"; else empty.
    """

    setting: Setting
    window: Annotated[str, Meta(pattern=r"^(byteps-[0-9a-f]{32})?\Z")] = ""
    reason: Reason = ""
    ucx: UcxAddress = b""


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """Server -> worker: how they go on.

    Attributes:
        transport: What will be used.
        reason: Why not something better, or why the server refuses to go on.
        refused: There is nothing that both may use; the server closes the connection.
        near: The two share a host, though they may not share memory.
        ucx: The address of this end in UCX, if that will be used.
    """

    transport: Literal["tcp", "shm", "ucx"]
    reason: Reason = ""
    refused: bool = False
    near: bool = False
    ucx: UcxAddress = b""


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


def allowed(worker: str, server: str) -> tuple[str, ...]:
    """The transports that a worker's and a server's setting allow, the best first; none if they contradict.

    UCX is used where the worker asks for it, as it has no address in it otherwise.
    """
    if "ucx" in (worker, server):
        return ("ucx",) if worker == "ucx" and server in ("ucx", "auto") else ()
    every = ("shm", "tcp")
    return tuple(kind for kind in every if worker in ("auto", kind) and server in ("auto", kind))


def may_add_lanes(config: Config) -> bool:
    """Whether a second connection to each peer can be of use: by TCP, with a CPU for its thread."""
    return config.transport in ("auto", "tcp") and len(os.sched_getaffinity(0)) > 1


def shortened(reason: str) -> str:
    """A reason that fits in a message."""
    return reason[:_MAX_REASON]
