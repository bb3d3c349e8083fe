"""``byteps trace``: what to do with recorded timelines."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterable
from pathlib import Path

_EPILOG = """\
recording:
  byteps run -np 2 --timeline run.json.gz python train.py
  BYTEPS_TIMELINE=run.json.gz torchrun --nproc-per-node 2 train.py
  BYTEPS_TRACE_START_STEP=10 BYTEPS_TRACE_END_STEP=20 ...      only these steps

Each process writes a file of its own: run.rank0.json.gz, run.server0.json.gz, ... Perfetto
(https://ui.perfetto.dev, "Open trace file") shows one, or all of them joined.

examples:
  byteps trace merge run.*.json.gz -o all.json.gz
  byteps trace summary run.*.json.gz
  byteps trace summary all.json.gz --json | jq '.tensors[0]'
  byteps trace COMMAND --help
"""

_MERGE = """\
Joins the timelines of ranks and servers into one file for Perfetto, on the clock of the coordinator, with
which each process compared its own while it recorded. What a killed process left (a file that is cut off, or
one that ends in .part) is used as far as it goes, which is said.
"""

_SUMMARY = """\
Says where the time of training steps went: compute, communication that nothing hides, the tensors that
training waited for, how well the links were used. Give the files of all ranks and servers, or one that
`merge` made. Without servers' files, waiting for other ranks cannot be told from the way back.
"""


def add_trace(parser: argparse.ArgumentParser) -> None:
    """Options of ``byteps trace``."""
    parser.epilog = _EPILOG
    commands = parser.add_subparsers(dest="trace_command", metavar="COMMAND", required=True)
    merge = _add(commands, "merge", "join the timelines of a job into one", _MERGE)
    merge.add_argument(
        "-o", "--output", type=Path, required=True, metavar="OUT", help="the joined timeline, gzipped"
    )
    merge.set_defaults(run=_run_merge)
    summary = _add(commands, "summary", "say where the time went", _SUMMARY)
    summary.add_argument("--top", type=int, default=10, metavar="N", help="show N tensors (default: 10)")
    summary.add_argument("--json", action="store_true", help="print one JSON object; times in microseconds")
    summary.set_defaults(run=_run_summary)


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str, description: str
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=text,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_argument("files", nargs="+", type=Path, metavar="FILE", help="timelines of one job")
    return command


def _run_merge(arguments: argparse.Namespace) -> int:
    from byteps.trace.merging import merge

    _tell(merge(arguments.files, arguments.output))
    print(f"{arguments.output}: open it with https://ui.perfetto.dev", file=sys.stderr)
    return 0


def _run_summary(arguments: argparse.Namespace) -> int:
    from byteps.errors import TimelineError
    from byteps.trace.history import read_history
    from byteps.trace.merging import check_processes, clock_notes
    from byteps.trace.reading import read_timeline
    from byteps.trace.report import lines
    from byteps.trace.summary import summarise

    timelines = [read_timeline(path) for path in arguments.files]
    processes = check_processes(timelines)
    summary = summarise(read_history(timelines))
    _tell([note for timeline in timelines for note in timeline.notes] + clock_notes(processes))
    if not summary.ranks:
        raise TimelineError(
            "there is nothing to summarise: no worker's timeline with a complete round is among the files"
        )
    if arguments.json:
        print(json.dumps(dataclasses.asdict(summary), indent=2))
    else:
        print("\n".join(lines(summary, arguments.top)))
    return 0


def _tell(notes: Iterable[str]) -> None:
    for note in notes:
        print(f"byteps trace: note: {note}", file=sys.stderr)
