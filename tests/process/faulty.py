"""A worker for the fault tests. Its argument says what it does once it has exchanged something.

SIGTERM has it exit in order, SIGHUP raises an exception in its main thread, wherever that is.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

import numpy as np

from byteps.adapters import current
from byteps.session import Buffer, Session
from byteps.wire import TensorSpec

FLOAT32, SUM = 1, 0
MEGABYTE = 1 << 18
"""In elements."""


def say(text: str) -> None:
    """A line of output, at once: tests wait for it."""
    os.write(1, f"{text}\n".encode())


def pause() -> None:
    """Wait for a signal, for ever."""
    while True:
        signal.pause()


def exchange(
    session: Session, name: str, length: int = MEGABYTE, value: float | None = None, word: str = ""
) -> float:
    """Sum a tensor over all ranks.

    Args:
        value: of each element; rank + 1 by default.
        word: said while the round is in flight.

    Returns:
        One element of the sum.
    """
    data = np.full(length, session.rank + 1 if value is None else value, np.float32)
    memory = Buffer(data.ctypes.data, data.nbytes, data)
    handle = session.submit(TensorSpec(name, FLOAT32, (length,), SUM), memory, memory)
    if word:
        say(word)
    handle.wait()
    return float(data[-1])


def wait(session: Session) -> None:
    """Be in a round to which the other ranks do not contribute."""
    say(f"sum {exchange(session, 'layer4.weight', word='ready')}")


def barrier(session: Session) -> None:
    """Be at a barrier."""
    say("ready")
    session.barrier()


def busy(session: Session) -> None:
    """Keep the links full until something ends it."""
    number = 0
    while True:
        exchange(session, "layer4.weight", 4 * MEGABYTE, word="ready" if number == 3 else "")
        number += 1


def rest(session: Session) -> None:
    """Do nothing that concerns the others."""
    say("ready")
    pause()


def leave(session: Session) -> None:
    """End in order, but slowly: see ``main``."""


def shut_down(session: Session) -> None:
    """Leave the job when told to, with the process going on."""
    say("ready")
    signal.sigwait([signal.SIGUSR2])
    current.shutdown()
    say("shut down")


def steady(session: Session) -> None:
    """Round after round until one rank is told to stop; says how many per half second."""
    told = False
    since_s, rounds = time.monotonic(), 0
    while not told:
        told = exchange(session, "stop", 1, float(bool(signal.sigpending() & {signal.SIGUSR2}))) > 0
        if exchange(session, "layer4.weight") != sum(range(1, session.size + 1)):
            raise RuntimeError("a wrong sum")
        rounds += 1
        if time.monotonic() - since_s > 0.5:
            say(f"rate {rounds}")
            since_s, rounds = time.monotonic(), 0


def hold(session: Session) -> None:
    """Sit in a C call, with the GIL, for three times ``peer_timeout_s``. Then come to the others."""
    say("holds")
    ctypes.PyDLL(None).usleep(int(3e6 * session.config.peer_timeout_s))
    wait(session)


PROGRAMS: dict[str, Callable[[Session], None]] = {
    program.__name__: program for program in (wait, barrier, busy, rest, leave, shut_down, steady, hold)
}


def linger() -> None:
    """Registered before ``init()``, so called after byteps has left the job."""
    signals = [signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP]
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    say("left")
    signal.sigwait(signals)


def exit_in_order(number: int, frame: FrameType | None) -> None:
    """What SIGTERM leads to."""
    sys.exit(0)


def fail(number: int, frame: FrameType | None) -> None:
    """What SIGHUP leads to."""
    raise RuntimeError("boom")


def main(program: str) -> None:
    """Join, exchange a first tensor, then do what the program is: one for all, or one for each rank."""
    programs = program.split(",")
    program = programs[int(os.environ["BYTEPS_RANK"]) % len(programs)]
    signal.signal(signal.SIGTERM, exit_in_order)
    signal.signal(signal.SIGHUP, fail)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    if program == "absent":
        say("ready")
        pause()
    if program == "leave":
        atexit.register(linger)
    session = current.init()
    exchange(session, "layer4.weight" if program != "busy" else "warm-up")
    PROGRAMS[program](session)


if __name__ == "__main__":
    main(sys.argv[1])
