"""``byteps tune``: what a search has tried and found."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from byteps.errors import ConfigError
from byteps.tuning import records
from byteps.tuning.picture import svg
from byteps.tuning.report import lines

_EPILOG = """\
tuning goes on while a job trains:
  byteps run -np 4 --tune python train.py
  BYTEPS_TUNE=1 torchrun --nproc-per-node 4 train.py

examples:
  byteps tune report                          the newest search of this host's coordinators
  byteps tune report --results DIR            of the folder that `tune_results` names
  byteps tune report FILE --plot trials.svg   of one file; also as a picture
"""


def add_tune(parser: argparse.ArgumentParser) -> None:
    """Options of ``byteps tune``."""
    parser.epilog = _EPILOG
    commands = parser.add_subparsers(dest="tune_command", metavar="COMMAND", required=True)
    report = commands.add_parser("report", help="show trials and their surface", allow_abbrev=False)
    report.add_argument("file", type=Path, nargs="?", metavar="FILE", help="trials (default: the newest)")
    report.add_argument(
        "--results", type=Path, metavar="DIR", help="look for the newest here, not in ~/.cache/byteps/tuning"
    )
    report.add_argument("--plot", type=Path, metavar="OUT.svg", help="draw trials and surface")
    report.add_argument("--json", action="store_true", help="print the file itself")
    report.set_defaults(run=_report)


def _report(arguments: argparse.Namespace) -> int:
    path = arguments.file or _newest(arguments.results or records.default_folder())
    try:
        found = records.load(path)
        if arguments.plot:
            arguments.plot.write_text(svg(found), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot use {error.filename}: {error.strerror}") from error
    if arguments.json:
        sys.stdout.write(path.read_text(encoding="utf-8"))
    else:
        print("\n".join(lines(found)))
    return 0


def _newest(folder: Path) -> Path:
    paths = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
    if not paths:
        raise ConfigError(f"no trials in {folder}; run a job with --tune, or say --results DIR or FILE")
    return paths[-1]
