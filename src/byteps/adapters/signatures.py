"""Calls that take the same arguments: one function resolves them, and the calls have its signature."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
OperationT = TypeVar("OperationT")
TensorsT = TypeVar("TensorsT")
ResultT = TypeVar("ResultT")


def takes(
    arguments: Callable[P, tuple[OperationT, TensorsT]],
) -> Callable[[Callable[[OperationT, TensorsT], ResultT]], Callable[P, ResultT]]:
    """Give a function the signature of another, which resolves the arguments for it.

    Args:
        arguments: What users may say, to an operation and what it is applied to.
    """

    def decorate(body: Callable[[OperationT, TensorsT], ResultT]) -> Callable[P, ResultT]:
        @functools.wraps(body)
        def call(*args: P.args, **kwargs: P.kwargs) -> ResultT:
            return body(*arguments(*args, **kwargs))

        returned = inspect.signature(body).return_annotation
        call.__signature__ = inspect.signature(arguments).replace(  # type: ignore[attr-defined]
            return_annotation=returned
        )
        return call

    return decorate
