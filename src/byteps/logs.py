"""Log lines of byteps: on stderr, unless the program has set up logging for them itself."""

from __future__ import annotations

import logging

from byteps.config import Config

_LEVELS = {
    "trace": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}


def set_up_logging(config: Config) -> None:
    """Show the log lines of this process. Does nothing if a handler is there already."""
    log = logging.getLogger("byteps")
    if log.handlers:
        return
    handler = logging.StreamHandler()
    time = "" if config.log_hide_time else "%(asctime)s "
    handler.setFormatter(logging.Formatter(f"{time}%(levelname)s %(name)s: %(message)s"))
    log.addHandler(handler)
    log.setLevel(_LEVELS[config.log_level])
    log.propagate = False
