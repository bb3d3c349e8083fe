"""Handles of asynchronous operations."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from byteps.torch.transfers import Pending


class TensorHandle:
    """An operation in flight; ``synchronize(handle)`` gives its result, once.

    Attributes:
        name: The tensor's name on the wire.
    """

    __slots__ = ("_pending", "_result", "name")

    def __init__(self, name: str, pending: Pending, result: Callable[[], Tensor]) -> None:
        self.name = name
        self._pending: Pending | None = pending
        self._result = result

    def poll(self) -> bool:
        """See ``byteps.torch.poll``."""
        return self._checked().transfer.poll()

    def synchronize(self) -> Tensor:
        """See ``byteps.torch.synchronize``."""
        self._checked().finish()
        self._pending = None
        return self._result()

    def _checked(self) -> Pending:
        if self._pending is None:
            raise ValueError(
                f"the handle of {self.name!r} has been synchronised already: it gives one result"
            )
        return self._pending


def poll(handle: TensorHandle) -> bool:
    """Whether ``synchronize(handle)`` would return, or raise, at once.

    Raises:
        ValueError: This is no handle of an operation in flight.
    """
    return _checked_handle(handle).poll()


def synchronize(handle: TensorHandle) -> Tensor:
    """Wait for an asynchronous operation.

    Returns:
        Its result; for in-place calls the tensor that was given.

    Raises:
        ValueError: This is no handle, or its result was fetched already.
        BytePSError: The operation failed, for example because a rank died.
    """
    return _checked_handle(handle).synchronize()


def _checked_handle(handle: object) -> TensorHandle:
    if not isinstance(handle, TensorHandle):
        raise ValueError(f"{handle!r} is not a handle: pass what an _async call returned")
    return handle
