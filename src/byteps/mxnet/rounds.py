"""Rounds of MXNet arrays: started and ended by the engine's own dependencies, waited for by nobody else."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, Final

import mxnet as mx

from byteps import errors
from byteps.adapters.calls import Call
from byteps.adapters.current import current, is_initialized
from byteps.communicator.waiters import Waiters
from byteps.errors import BytePSError
from byteps.mxnet.engine import Completion, Operation, address_of, is_calling
from byteps.mxnet.tensors import spec_of
from byteps.session import Buffer, Handle, Session

_A_MOMENT_S: Final = 1e-3
_LONGEST_END_S: Final = 10.0
"""How long a process that ends waits for operations that cannot succeed any more."""


class EngineRounds:
    """The rounds of one session.

    Args:
        session: Where to send. Before it ends, rounds in flight are finished.
    """

    def __init__(self, session: Session) -> None:
        self._waiters = Waiters()
        self._tokens: dict[str, Any] = {}
        self._changed = threading.Condition()
        self._pending = 0
        self._failed = False
        session.unfinished.add(self)
        session.on_shutdown.append(self._end)

    def begin(self, call: Call, array: Any) -> None:
        """Have the engine carry out a round; returns at once.

        Args:
            call: The round.
            array: What this rank contributes, and gets the result. Whoever reads it from now on waits. If the
                round fails they get the error.
        """
        spec = spec_of(array, call)

        def submit() -> Handle:
            memory = Buffer(address_of(array), spec.nbytes, array)
            source = memory if call.sends else None
            target = None if call.root == call.session.rank else memory
            return call.session.submit(spec, source, target, priority=call.priority)

        begin = functools.partial(self._start, submit, threading.get_ident())
        with self._changed:
            self._pending += 1
        writes = [array] if call.ephemeral else [array, self._token(call.name)]
        Operation(begin, self._forget).push(writes, call.priority)

    def _start(self, submit: Callable[[], Handle], caller: int, completion: Completion) -> None:
        try:
            handle = submit()
        except BaseException as error:  # raised by whoever reads the result
            self._fail(completion, error)
            return
        if handle.poll() or threading.get_ident() == caller:  # MXNet's NaiveEngine knows no later
            self._finish(handle, completion)
        else:
            self._waiters.do(functools.partial(self._finish, handle, completion))

    def _finish(self, handle: Handle, completion: Completion) -> None:
        try:
            handle.wait()
        except BaseException as error:  # raised by whoever reads the result
            self._fail(completion, error)
        else:
            completion()

    def _fail(self, completion: Completion, error: BaseException) -> None:
        self._failed = True
        completion(error)

    def finish_rounds(self) -> None:
        """See ``Unfinished``. The engine's threads have left Python, too: see ``finish_rounds``."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending)
            while is_calling():
                self._changed.wait(_A_MOMENT_S)

    def _token(self, name: str) -> Any:
        """What a round writes besides, so that the next one of this name starts when it is over."""
        if name not in self._tokens:
            self._tokens[name] = mx.nd.empty((1,))
        return self._tokens[name]

    def _forget(self) -> None:
        with self._changed:
            self._pending -= 1
            self._changed.notify_all()

    def _end(self) -> None:
        """No thread of the engine may call back when Python is gone."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending, _LONGEST_END_S)
        self._waiters.close()
        if self._failed:
            with contextlib.suppress(BytePSError, mx.MXNetError):
                mx.nd.waitall()  # or MXNet raises at the end of the process what nobody has read


def begin(call: Call, array: Any) -> None:
    """See ``EngineRounds.begin``."""
    (_known(call.session) or EngineRounds(call.session)).begin(call, array)


def _known(session: Session) -> EngineRounds | None:
    return next((each for each in list(session.unfinished) if isinstance(each, EngineRounds)), None)


def make_errors_known() -> None:
    """Let MXNet raise what failed as the exception that it was, not as an ``MXNetError``."""
    for kind in vars(errors).values():
        if inspect.isclass(kind) and issubclass(kind, errors.BytePSError):  # NotInitialized: before any round
            mx.error.register(kind.__name__)(functools.partial(_made_again, kind))


def _made_again(kind: type[errors.BytePSError], text: str) -> errors.BytePSError:
    return kind(text.removeprefix(f"{kind.__name__}: "))


def finish_rounds() -> None:
    """Wait for the rounds of the current session, if there are any; what went wrong is said to their readers.

    Before a fork, for example of a DataLoader's workers: MXNet ends its threads then, while the thread that
    forks holds the interpreter's lock, and theirs may be about to begin a round, which needs it.
    """
    rounds = _known(current()) if is_initialized() else None
    if rounds is not None:
        rounds.finish_rounds()
