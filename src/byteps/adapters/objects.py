"""Python objects as bytes: msgpack for plain data and arrays, pickle only when both sides ask for it.

msgpack alone would give back lists for tuples and know no sets or arrays, so what it lacks travels as
extension values. Nothing that arrives can run code, unless ``allow_pickle=True``.
"""

from __future__ import annotations

import enum
import pickle
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

_NATIVE: Final = frozenset({type(None), bool, float, str, bytes})
_INTEGER_RANGE: Final = range(-(2**63), 2**64)


class Kind(msgspec.Struct, frozen=True):
    """A type that msgpack does not know.

    Attributes:
        code: Number of the extension, 0 to 127; the same on all ranks.
        type: What it applies to.
        pack: Makes plain data (and other kinds) of a value.
        unpack: The opposite.
        subclasses: Whether instances of subclasses are meant too; they come back as what ``unpack`` makes.
    """

    code: int
    type: type
    pack: Callable[[Any], object]
    unpack: Callable[[Any], object]
    subclasses: bool = False


class Form(enum.IntEnum):
    """First byte of an encoded object."""

    MSGPACK = 0
    PICKLE = 1
    FAILURE = 2


def _pack_array(array: np.ndarray[Any, Any]) -> object:
    if array.dtype.kind not in "biufcSUmM":
        raise TypeError(f"cannot send a numpy array of dtype {array.dtype} by msgpack")
    return [array.dtype.str, list(array.shape), array.tobytes()]


def _unpack_array(packed: list[Any]) -> Any:
    dtype, shape, data = packed
    return np.frombuffer(data, dtype=np.dtype(dtype)).reshape(shape).copy()


def _pack_pairs(mapping: dict[Any, Any]) -> object:
    return [[key, value] for key, value in mapping.items()]


_KINDS: Final = (
    Kind(0, tuple, list, tuple),
    Kind(1, dict, _pack_pairs, dict),
    Kind(2, OrderedDict, _pack_pairs, OrderedDict),
    Kind(3, set, list, set),
    Kind(4, frozenset, list, frozenset),
    Kind(5, int, str, int),
    Kind(6, complex, lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    Kind(7, bytearray, bytes, bytearray),
    Kind(8, np.ndarray, _pack_array, _unpack_array, subclasses=True),
    Kind(9, np.generic, lambda value: _pack_array(np.asarray(value)), lambda p: _unpack_array(p)[()], True),
)


class ObjectCodec:
    """Encodes objects for other ranks.

    Args:
        kinds: Types that an adapter adds, with codes from 32.
    """

    def __init__(self, kinds: Sequence[Kind] = ()) -> None:
        self._kinds = (*_KINDS, *kinds)
        self._by_code = {kind.code: kind for kind in self._kinds}

    def encode(self, value: object, *, allow_pickle: bool) -> bytes:
        """Make bytes of an object.

        Raises:
            TypeError: It holds something that only pickle could send, and pickle is not allowed, or cannot.
        """
        if allow_pickle:
            try:
                return bytes([Form.PICKLE]) + pickle.dumps(value)
            except Exception as error:  # whatever the object's own methods raise
                raise TypeError(
                    f"cannot pickle this {type(value).__name__}: {error}. Send what it is made of, plain "
                    "data and arrays, such as a state_dict(), get_weights() or get_config()"
                ) from error
        return bytes([Form.MSGPACK]) + msgspec.msgpack.encode(self._plain(value))

    def decode(self, data: bytes, *, allow_pickle: bool) -> object:
        """Make the object again.

        Raises:
            ValueError: It was pickled but pickle is not allowed here, or the sender could not encode it.
        """
        form, body = Form(data[0]), memoryview(data)[1:]
        if form is Form.FAILURE:
            raise ValueError(bytes(body).decode())
        if form is Form.MSGPACK:
            return msgspec.msgpack.decode(body, ext_hook=self._unpack)
        if not allow_pickle:
            raise ValueError(
                "the sender pickled this object: pass allow_pickle=True on every rank or on none"
            )
        return pickle.loads(body)

    def failure(self, message: str) -> bytes:
        """Bytes that make ``decode`` raise ``ValueError(message)`` on the ranks that wait for an object."""
        return bytes([Form.FAILURE]) + message.encode()

    def _plain(self, value: object) -> object:
        """The same value in terms of what msgpack knows."""
        kind = type(value)
        if kind in _NATIVE or (kind is int and value in _INTEGER_RANGE):
            return value
        if isinstance(value, list) and kind is list:
            return [self._plain(item) for item in value]
        if isinstance(value, dict) and kind is dict and all(type(key) is str for key in value):
            return {key: self._plain(item) for key, item in value.items()}
        for known in self._kinds:
            if kind is known.type or (known.subclasses and isinstance(value, known.type)):
                return msgspec.msgpack.Ext(known.code, self._encode_plain(known.pack(value)))
        raise TypeError(
            f"cannot send a {kind.__module__}.{kind.__qualname__} by msgpack: send plain data and arrays, "
            "or pass allow_pickle=True on every rank (pickled data can run code on the ranks that receive it)"
        )

    def _encode_plain(self, value: object) -> bytes:
        return msgspec.msgpack.encode(self._plain(value))

    def _unpack(self, code: int, data: memoryview) -> object:
        if code not in self._by_code:
            raise ValueError(f"an object came with extension {code}, which this version does not know")
        return self._by_code[code].unpack(msgspec.msgpack.decode(data, ext_hook=self._unpack))
