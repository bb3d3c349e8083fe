"""The frame of every command: errors of byteps become one line and an exit code, Ctrl-C ends quietly."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress

from byteps.errors import BytePSError, ConfigError, remedy

WRONG_USE_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130
BROKEN_PIPE_EXIT_CODE = 141


def guarded(title: str, command: Callable[[], int]) -> int:
    """Run a command.

    Args:
        title: its name in messages.
        command: the command; it returns its exit code.

    Returns:
        The exit code: the command's own; 2 for a wrong setting, 1 for another error, also one of the system,
        130 after Ctrl-C, 141 when nobody reads the output any more.
    """
    try:
        code = command()
        sys.stdout.flush()
        return code
    except BytePSError as error:
        _complain(f"{title}: error: {error}")
        return WRONG_USE_EXIT_CODE if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE
    except BrokenPipeError:
        # The reader has gone, as in `byteps config | head`.
        _drop_output()
        return BROKEN_PIPE_EXIT_CODE
    except OSError as error:
        _complain(f"{title}: error: {error}{remedy(error)}")
        _drop_output()
        return 1


def _complain(line: str) -> None:
    with suppress(OSError):  # stderr may be what cannot be written
        print(line, file=sys.stderr)


def _drop_output() -> None:
    """Python would try once more at its end to write what it still holds, and complain."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
