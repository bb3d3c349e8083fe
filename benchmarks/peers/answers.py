"""How a worker process is told what to do: a line of JSON on standard input, a line of JSON back.

It also runs in the environments of peers, so it needs nothing but Python.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any


def answer_requests(handle: Callable[[dict[str, Any]], object]) -> None:
    """Answer one request after the other until standard input ends.

    Whatever else the process prints goes to standard error.

    Args:
        handle: Gets a request, returns its answer.
    """
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        # Not `for line in sys.stdin`, which reads ahead.
        for line in iter(sys.stdin.readline, ""):
            print(json.dumps(handle(json.loads(line))), file=answers, flush=True)


def time_exchanges(prepare: Callable[[int], Callable[[], object]]) -> None:
    """Answer requests for ``repeats`` exchanges of ``nbytes`` with how long each took, in seconds.

    Args:
        prepare: Gets a size in bytes and returns a call that does one exchange of it.
    """
    prepared: dict[int, Callable[[], object]] = {}

    def handle(request: dict[str, Any]) -> list[float]:
        nbytes = request["nbytes"]
        if nbytes not in prepared:
            prepared[nbytes] = prepare(nbytes)
        return [_timed(prepared[nbytes]) for _ in range(request["repeats"])]

    answer_requests(handle)


def wait_until(moment: float) -> None:
    """Do nothing until a moment of the monotonic clock, which all processes of a machine share."""
    time.sleep(max(0.0, moment - time.monotonic()))  # workload


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
