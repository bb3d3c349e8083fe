"""Rounds of a job with one worker."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from byteps import _native
from byteps.communicator.interface import OK, Buffer, Transfer
from byteps.dtypes import ReduceOp
from byteps.errors import DeclarationError
from byteps.wire import Message, Retract, TensorSpec


class _Done:
    """A round that was over as soon as it began."""

    status, peer, round, unresolved = OK, 0, 1, 0

    def poll(self) -> bool:
        return True

    def wait(self, timeout_s: float) -> bool:
        return True


class Alone:
    """Rounds of a job with one worker: the result is the scaled contribution."""

    serves_subsets = True

    def __init__(self) -> None:
        self._specs: dict[str, TensorSpec] = {}

    def declare(self, specs: Sequence[TensorSpec]) -> None:
        """See ``Communicator.declare``."""
        for spec in specs:
            if objection := spec.objection(size=1):
                raise DeclarationError(f"tensor {spec.name!r} ({spec.describe()}) {objection}")
            known = self._specs.setdefault(spec.name, spec)
            if known != spec:
                del self._specs[spec.name]
                raise DeclarationError(
                    f"tensor {spec.name!r} was declared as {known.describe()} and is now used as "
                    f"{spec.describe()}; use another name for another shape, dtype or op"
                )

    def submit(
        self, spec: TensorSpec, source: Buffer | None, destination: Buffer | None, priority: int
    ) -> Transfer:
        """See ``Communicator.submit``."""
        self.declare([spec])
        if destination is not None and spec.nbytes > 0:
            self._reduce(spec, source, destination)
        return _Done()

    def finished(self, spec: TensorSpec) -> None:
        """See ``Communicator.finished``."""
        self._specs.pop(spec.name, None)

    def refuse(self, spec: TensorSpec, message: str) -> None:
        """See ``Communicator.refuse``. There is nobody to refuse anything to."""

    def explain(self, name: str) -> str:
        """See ``Communicator.explain``."""
        return f"tensor {name!r} was withdrawn"

    def blame(self, peer: int) -> str:
        """See ``Communicator.blame``."""
        return "nothing can break"

    def missing(self, name: str, timeout_s: float | None = None) -> list[tuple[int, float]]:
        """See ``Communicator.missing``."""
        return []

    def traffic(self) -> str:
        """See ``Communicator.traffic``."""
        return "one worker: nothing is sent"

    def retract(self, message: Retract) -> None:
        """See ``Communicator.retract``."""

    def notice(self, message: Message) -> None:
        """See ``Communicator.notice``."""

    def fail(self) -> None:
        """See ``Communicator.fail``."""

    def abandon(self) -> None:
        """See ``Communicator.abandon``."""

    def close(self) -> None:
        """See ``Communicator.close``."""

    @staticmethod
    def _reduce(spec: TensorSpec, source: Buffer | None, destination: Buffer) -> None:
        if source is None:
            ctypes.memset(destination.address, 0, destination.nbytes)
        elif spec.op != ReduceOp.COPY and (spec.prescale, spec.postscale) != (1.0, 1.0):
            _native.reduce(
                spec.dtype,
                spec.op,
                [_view(source)],
                _view(destination),
                prescale=spec.prescale,
                postscale=spec.postscale,
            )
        elif source.address != destination.address:
            ctypes.memmove(destination.address, source.address, destination.nbytes)


def _view(buffer: Buffer) -> ctypes.Array[ctypes.c_char]:
    return (ctypes.c_char * buffer.nbytes).from_address(buffer.address)
