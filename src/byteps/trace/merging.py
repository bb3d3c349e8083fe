"""Joins the timelines of ranks and servers on the coordinator's clock."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from byteps.errors import TimelineError
from byteps.trace.chrome import LINE_BEGIN, VERSION, header
from byteps.trace.reading import Timeline, read_timeline, split_time

_LEVEL = 3


def merge(paths: Sequence[Path], out: Path) -> list[str]:
    """Write one timeline of several.

    Args:
        paths: of timelines, merged ones too.
        out: of the result.

    Returns:
        What the user should know about the files.

    Raises:
        TimelineError: a file is no timeline, or two are of the same process.
        OSError: a file cannot be read or written. Then nothing is left at ``out``.
    """
    if out.exists() and any(path.exists() and out.samefile(path) for path in paths):
        raise TimelineError(f"{out} is one of the files to merge; give another name for the result")
    timelines = [read_timeline(path) for path in paths]
    processes = check_processes(timelines)
    start_wall_ns = min(timeline.start_wall_ns for timeline in timelines)
    try:
        with gzip.open(out, "wt", compresslevel=_LEVEL, encoding="utf-8") as file:
            file.write(header({"version": VERSION, "start_wall_ns": start_wall_ns, "processes": processes}))
            _write_events(file, timelines, start_wall_ns)
    except BaseException:
        if out.is_file():  # and no device
            out.unlink()
        raise
    return [note for timeline in timelines for note in timeline.notes] + clock_notes(processes)


def check_processes(timelines: Sequence[Timeline]) -> list[dict[str, Any]]:
    """All processes of some timelines.

    Raises:
        TimelineError: one is in two of them.
    """
    found: dict[int, tuple[Path, dict[str, Any]]] = {}
    for timeline in timelines:
        for process in timeline.processes:
            before = found.setdefault(process["pid"], (timeline.path, process))
            if before[0] != timeline.path:
                raise TimelineError(
                    f"{before[0]} and {timeline.path} are both of {process['role']} {process['number']}; "
                    f"give the files of one job"
                )
    return [process for _, (_, process) in sorted(found.items())]


def clock_notes(processes: Sequence[dict[str, Any]]) -> list[str]:
    """What to say about how well the clocks of these processes are known."""
    hosts = {process["host"] for process in processes}
    alone = [f"{p['role']} {p['number']}" for p in processes if p["clock"] != "coordinator"]
    if len(hosts) < 2 or not alone:
        return []
    return [
        f"the clocks of {', '.join(alone)} were never compared with the coordinator's: their events may be "
        f"out of place by as much as the clocks of their hosts differ"
    ]


def _write_events(file: IO[str], timelines: Sequence[Timeline], start_wall_ns: int) -> None:
    separator = ""
    for timeline in timelines:
        later_us = (timeline.start_wall_ns - start_wall_ns) / 1000
        for line in timeline.lines:
            at_us, rest = split_time(line)
            file.write(f"{separator}{LINE_BEGIN}{at_us + later_us:.3f}{rest}")
            separator = ",\n"
    file.write("\n]}\n")
