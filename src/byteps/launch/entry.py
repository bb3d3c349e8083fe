"""The frame of every command: errors of byteps become one line and an exit code, Ctrl-C ends quietly."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from byteps.errors import BytePSError, ConfigError

WRONG_USE_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130
BROKEN_PIPE_EXIT_CODE = 141


def guarded(title: str, command: Callable[[], int]) -> int:
    """Run a command.

    Args:
        title: its name in messages.
        command: the command; it returns its exit code.

    Returns:
        The exit code: the command's own; 2 for a wrong setting, 1 for another error, 130 after Ctrl-C,
        141 when nobody reads the output any more.
    """
    try:
        return command()
    except BytePSError as error:
        print(f"{title}: error: {error}", file=sys.stderr)
        return WRONG_USE_EXIT_CODE if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        return INTERRUPTED_EXIT_CODE
    except BrokenPipeError:
        # The reader has gone, as in `byteps config | head`; Python would complain once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE_EXIT_CODE
