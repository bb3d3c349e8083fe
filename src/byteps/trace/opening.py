"""Where a timeline goes: each process has a file of its own, named after its role."""

from __future__ import annotations

import logging
import os
import socket
import time
from pathlib import Path

from byteps.config import Config
from byteps.errors import remedy
from byteps.trace.later import DYNAMIC, LaterTrace
from byteps.trace.recorder import Recorder, Trace
from byteps.trace.spool import Head, Spool
from byteps.trace.window import Window

_DEFAULT_NAME = "timeline"
_SUFFIX = ".json.gz"

_log = logging.getLogger("byteps.trace")


def own_path(file: str, role: str, number: int) -> Path:
    """The file of one process: ``a/run.json`` is ``a/run.rank0.json.gz`` for rank 0.

    Args:
        file: as the user gave it; an existing folder, or what ends in a slash, gets a file in it.
        role: "worker" or "server".
        number: its rank or server number.
    """
    path = Path(file)
    if file.endswith("/") or path.is_dir():
        path /= _DEFAULT_NAME
    stem = path.name.removesuffix(".gz").removesuffix(".json")
    who = f"rank{number}" if role == "worker" else f"{role}{number}"
    return path.with_name(f"{stem}.{who}{_SUFFIX}")


def open_trace(config: Config, role: str, number: int, size: int, coordinated: bool = True) -> Trace:
    """Prepare to record, if the settings ask for it. A file that cannot be made is no reason not to train.

    Args:
        config: with ``timeline`` and the steps to record.
        role: "worker" or "server".
        number: the rank or server number.
        size: number of workers.
        coordinated: whether there is a coordinator whose clock can be asked for.
    """
    if not config.timeline or (config.timeline == DYNAMIC and role != "worker"):
        return Trace()

    def recorder(file: str) -> Recorder:
        start_ns, first_step = time.monotonic_ns(), max(1, config.trace_start_step)
        head = Head(role, number, size, socket.gethostname(), os.getpid(), start_ns, coordinated, first_step)
        return _open(file, head, Window(config.trace_start_step, config.trace_end_step))

    if config.timeline == DYNAMIC:
        return LaterTrace(recorder)
    try:
        return recorder(config.timeline)
    except OSError as error:
        path = own_path(config.timeline, role, number)
        _log.warning("no timeline is recorded: cannot write %s: %s%s", path, error.strerror, remedy(error))
        return Trace()


def _open(file: str, head: Head, window: Window) -> Recorder:
    path = own_path(file, head.role, head.number)
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True)
        _log.warning("the folder of the timeline, %s, did not exist and was made", path.parent)
    spool = Spool(path.with_name(path.name + ".part"))
    spool.begin(head)
    return Recorder(spool, path, window)
