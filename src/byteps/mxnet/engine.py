"""Operations of MXNet's engine that are carried out elsewhere and end when we say so.

The engine starts an operation when the arrays that it works on are ready, and lets whoever needs them go on
when it ends. That is the Dependency Proxy of ByteScheduler (Peng et al., SOSP 2019):
each update, and each layer of the next forward pass, waits for its own gradient and for nothing else. This
module alone knows MXNet's C interface, that of version 1.9 (``mxnet/c_api.h``, ``mxnet/engine.h``).
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final

from mxnet.base import _LIB, check_call

from byteps.errors import BytePSError

_HOST: Final = (1, 0)
"""Type and number of the device whose queues an operation goes through."""
_PRIORITIZED: Final = 3
"""``FnProperty::kCPUPrioritized``: threads apart from those that compute, most urgent operation first."""
_RUNTIME_ERROR_BYTES: Final = 16


class Completion:
    """Ends one operation, from any thread, once."""

    def __init__(self, address: int) -> None:
        # engine::CallbackOnComplete: a function and two of its arguments; the third is an error.
        self._function, self._engine, self._operation = (ctypes.c_void_p * 3).from_address(address)

    def __call__(self, error: BaseException | None = None) -> None:
        """The operation is over.

        Args:
            error: Why it failed: raised by whoever waits for an array that it writes, or that depends on one.
        """
        function = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3)(self._function or 0)
        if error is None:
            function(self._engine, self._operation, None)
            return
        # dmlc::Error is a std::runtime_error. MXNet makes a Python exception of what stands before the colon.
        library = ctypes.CDLL("libstdc++.so.6")
        made = ctypes.create_string_buffer(_RUNTIME_ERROR_BYTES)
        text = f"{type(error).__name__}: {error}".encode()
        library._ZNSt13runtime_errorC1EPKc(made, ctypes.c_char_p(text))
        function(self._engine, self._operation, ctypes.addressof(made))
        library._ZNSt13runtime_errorD1Ev(made)


class Operation:
    """What the engine is to do.

    Attributes:
        begin: Called by one of the engine's threads; returns at once and does not raise.
        ended: Called when the engine has forgotten the operation, which it may have skipped.
    """

    def __init__(self, begin: Callable[[Completion], None], ended: Callable[[], None]) -> None:
        self.begin = begin
        self.ended = ended

    def push(self, arrays: Sequence[Any], priority: int = 0) -> None:
        """Hand it to the engine; returns at once, also while another thread computes what it needs.

        Args:
            arrays: What it reads and writes; none may come twice.
            priority: Of its start, among operations that are ready.

        Raises:
            MXNetError: The engine does not take it.
        """
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))  # the engine's, until it forgets the operation
        check_call(
            _LIB.MXEnginePushAsyncND(
                _begin,
                ctypes.c_void_p(id(self)),
                _forget,
                (ctypes.c_int * 2)(*_HOST),
                None,
                0,
                (ctypes.c_void_p * len(arrays))(*[array.handle for array in arrays]),
                len(arrays),
                ctypes.byref(ctypes.c_int(_PRIORITIZED)),
                priority,
                b"byteps",
                False,
            )
        )


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.py_object)
def _begin(context: int, on_complete: int, operation: Operation) -> None:
    operation.begin(Completion(on_complete))


@ctypes.CFUNCTYPE(None, ctypes.py_object)
def _forget(operation: Operation) -> None:
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(operation))
    operation.ended()


def is_calling() -> bool:
    """Whether a thread of the engine is in one of the two functions above, which it cannot leave without the
    interpreter's lock. Other threads begin elsewhere.
    """
    here = is_calling.__code__.co_filename
    others = [frame for ident, frame in sys._current_frames().items() if ident != threading.get_ident()]
    return any(_first(frame).f_code.co_filename == here for frame in others)


def _first(frame: FrameType) -> FrameType:
    while frame.f_back is not None:
        frame = frame.f_back
    return frame


def address_of(array: Any) -> int:
    """Where an array's elements are in the host's memory. Called while an operation has the array.

    Raises:
        BytePSError: They lie there in an order of oneDNN's.
    """
    packed = ctypes.c_void_p()
    # DLPack looks where they are; MXNDArrayGetData would wait for what is being carried out here.
    if _LIB.MXNDArrayToDLPack(array.handle, ctypes.byref(packed)) != 0:
        raise BytePSError(
            f"the elements of an array of shape {array.shape} lie in an order of oneDNN's, as a "
            "convolution leaves them: send array.copy() instead, or set MXNET_MKLDNN_ENABLED=0"
        )
    address = ctypes.c_void_p.from_address(packed.value or 0).value
    check_call(_LIB.MXNDArrayCallDLPackDeleter(packed))
    return address or 0
