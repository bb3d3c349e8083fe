"""Operations of several rounds or steps: some begun together, some done later by a thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar

from byteps.errors import DeclarationError
from byteps.session import Handle, Session
from byteps.wire import TensorSpec

ResultT = TypeVar("ResultT")
ResultT_co = TypeVar("ResultT_co", covariant=True)
StartedT = TypeVar("StartedT", bound="Waits")


class Later(Protocol[ResultT_co]):
    """A result that is on its way."""

    def poll(self) -> bool:
        """Whether ``wait`` would return, or raise, at once."""
        ...

    def wait(self) -> ResultT_co:
        """Wait for the result. Raises what went wrong."""
        ...


class Waits(Protocol):
    """Something in flight."""

    def wait(self) -> object:
        """Wait until it is over. Raises what went wrong."""
        ...


class Rounds(Generic[ResultT]):
    """The result of rounds that have all begun.

    Args:
        handles: The rounds.
        result: Makes the result once they are over.
    """

    def __init__(self, handles: Sequence[Handle], result: Callable[[], ResultT]) -> None:
        self._handles = list(handles)
        self._result = result

    def poll(self) -> bool:
        """See ``Later.poll``."""
        return all(handle.poll() for handle in self._handles)

    def wait(self) -> ResultT:
        """See ``Later.wait``."""
        handles, self._handles = self._handles, []
        wait_all(handles)
        return self._result()


class InBackground(Generic[ResultT]):
    """The result of a function that a thread of its own calls.

    Later steps of an operation must not wait until somebody asks for its result: another rank may need this
    rank's part of them before it comes to where this rank is. A thread each, as any may wait for any rank.

    Args:
        finish: Returns the result.
    """

    def __init__(self, finish: Callable[[], ResultT]) -> None:
        self._future: Future[ResultT] = Future()
        # Nothing that waits for another rank may keep this process from ending.
        threading.Thread(target=self._run, args=(finish,), name="byteps-later", daemon=True).start()

    def poll(self) -> bool:
        """See ``Later.poll``."""
        return self._future.done()

    def wait(self) -> ResultT:
        """See ``Later.wait``."""
        return self._future.result()

    def _run(self, finish: Callable[[], ResultT]) -> None:
        try:
            self._future.set_result(finish())
        except BaseException as error:  # raised by wait()
            self._future.set_exception(error)


def begin_all(
    session: Session, specs: Sequence[TensorSpec], begin: Callable[[int], StartedT]
) -> list[StartedT]:
    """Begin rounds that belong together: all ranks agree about all of them or about none.

    If they do not agree, every tensor is still gone through once: a rank that left some out would get their
    errors at the next use.

    Args:
        session: Of this rank.
        specs: The tensors; their ``context`` sees to it that they match together.
        begin: Begins the round of the tensor at a position.

    Raises:
        DeclarationError: The ranks do not agree. No round is in flight then.
    """
    started: list[StartedT] = []
    failure: DeclarationError | None = None
    refused: frozenset[str] = frozenset()
    try:
        session.declare(specs)
    except DeclarationError as error:
        failure, refused = error, error.tensors
    for position, spec in enumerate(specs):
        if spec.name in refused:
            continue
        try:
            started.append(begin(position))
        except DeclarationError as error:
            failure = failure or error
    if failure is None:
        return started
    for one in started:
        with contextlib.suppress(DeclarationError):
            one.wait()
    raise failure


def wait_all(handles: Sequence[Waits]) -> None:
    """Wait for all rounds, also for those after one that failed; raises the first failure."""
    failure: Exception | None = None
    for handle in handles:
        try:
            handle.wait()
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
