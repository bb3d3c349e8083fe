"""Every error that byteps raises, sorted by what the caller can do about it.

Errors that mean "your call was wrong" also derive from ``ValueError``, as Horovod's do, so scripts that catch
the built-in classes keep working. All others are ``RuntimeError``.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a file that can grow no further for now."""


class BytePSError(RuntimeError):
    """Base of all errors raised by byteps."""


class ConfigError(BytePSError, ValueError):
    """A setting has a value that cannot work. Correct the setting that the message names."""


class NotInitialized(BytePSError, ValueError):
    """A call that needs a session came before ``init()`` or after ``shutdown()``."""

    def __init__(self) -> None:
        super().__init__("byteps has not been initialized; call init() first")


class DeclarationError(BytePSError, ValueError):
    """A tensor's name, shape, dtype or op does not match what this or another rank declared.

    Attributes:
        tensors: Names of those that were refused, where several were declared together.
    """

    def __init__(self, message: str, tensors: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.tensors = frozenset(tensors)


class DuplicateNameError(BytePSError, ValueError):
    """A tensor of this name is still in flight on this rank. Wait for its handle or use another name."""


class HandshakeError(BytePSError):
    """A peer could not prove that it belongs to this job: token, version or identity differ."""


class ProtocolError(BytePSError):
    """A peer sent something that no correct peer sends. Both ends probably run different versions."""


class JoinError(BytePSError):
    """This process could not become a member of the job."""


class PeerLost(BytePSError):
    """A worker, a server or the coordinator died or stopped answering. The job cannot go on."""


class PeerLeft(BytePSError):
    """A rank shut down in order, so a round that needs its contribution can never complete."""


class SessionClosed(BytePSError):
    """The session was shut down while the call was in progress, or before it began."""


class SchedulerClosed(BytePSError):
    """A task came to a scheduler that had been closed, or was cut short by that."""


class StallTimeout(BytePSError):
    """A live rank was later than ``stall_timeout_s`` allows."""


class TimelineError(BytePSError):
    """A file is no timeline, or timelines do not belong together."""


def remedy(error: OSError) -> str:
    """What to do about an error of the operating system, as the end of a sentence; empty where unknown."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "; raise the limit of open files (ulimit -n)"
    if error.errno in NO_SPACE:
        return "; make room there, or write elsewhere"
    return ""
