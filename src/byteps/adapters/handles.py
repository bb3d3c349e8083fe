"""Handles of asynchronous operations, as Horovod and BytePS scripts hold them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from byteps.adapters.later import Later

ResultT = TypeVar("ResultT")
OtherT = TypeVar("OtherT")


class ResultHandle(Generic[ResultT]):
    """An operation in flight; ``synchronize(handle)`` gives its result, once.

    Attributes:
        name: The tensor's name on the wire.
    """

    __slots__ = ("_later", "_result", "name")

    def __init__(self, name: str, later: Later[object], result: Callable[[], ResultT]) -> None:
        self.name = name
        self._later: Later[object] | None = later
        self._result = result

    def poll(self) -> bool:
        """See the function ``poll``."""
        return self._checked().poll()

    def synchronize(self) -> ResultT:
        """See the function ``synchronize``."""
        self._checked().wait()
        self._later = None
        return self._result()

    def wait(self) -> None:
        """Wait until the operation is over; its result can still be fetched. Raises what went wrong."""
        self._checked().wait()

    def map(self, change: Callable[[ResultT], OtherT]) -> ResultHandle[OtherT]:
        """A handle in place of this one, whose result is made of this one's."""
        later, self._later = self._checked(), None
        result = self._result
        return ResultHandle(self.name, later, lambda: change(result()))

    def _checked(self) -> Later[object]:
        if self._later is None:
            raise ValueError(
                f"the handle of {self.name!r} has been synchronised already: it gives one result"
            )
        return self._later


def poll(handle: ResultHandle[ResultT]) -> bool:
    """Whether ``synchronize(handle)`` would return, or raise, at once.

    Raises:
        ValueError: This is no handle of an operation in flight.
    """
    return _checked_handle(handle).poll()


def synchronize(handle: ResultHandle[ResultT]) -> ResultT:
    """Wait for an asynchronous operation.

    Returns:
        Its result; for in-place calls the tensor that was given; for grouped calls a list.

    Raises:
        ValueError: This is no handle, or its result was fetched already.
        BytePSError: The operation failed, for example because a rank died.
    """
    return _checked_handle(handle).synchronize()


def _checked_handle(handle: ResultHandle[ResultT]) -> ResultHandle[ResultT]:
    if not isinstance(handle, ResultHandle):
        raise ValueError(f"{handle!r} is not a handle: pass what an _async call returned")
    return handle
