"""What all measurements share: starting a job on this machine, and the table at the end."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure and what it has to hold.

    Args:
        what: What was measured.
        value: The figure.
        bound: What it must not exceed, or with ``least`` what it must reach; None: for information.
        unit: Its unit.
        least: Whether the bound is a lower one.
    """

    what: str
    value: float
    bound: float | None = None
    unit: str = ""
    least: bool = False

    @property
    def passed(self) -> bool:
        """Whether the figure keeps its bound."""
        if self.bound is None:
            return True
        return self.value >= self.bound if self.least else self.value <= self.bound

    def cells(self) -> tuple[str, str, str, str]:
        """The row as text: what, value, bound, verdict."""
        verdict = "" if self.bound is None else "pass" if self.passed else "FAIL"
        sign = ">=" if self.least else "<="
        bound = "" if self.bound is None else f"{sign} {self.bound:.4g} {self.unit}"
        return self.what, f"{self.value:.4g} {self.unit}", bound, verdict


def job_command(module: str, folder: Path, *, workers: int, servers: int) -> list[str]:
    """The command that runs ``python -m module --worker FOLDER`` as a whole job on this machine."""
    worker = [sys.executable, "-m", module, "--worker", str(folder)]
    counts = ["-np", str(workers), "--servers", str(servers)]
    return [sys.executable, "-m", "byteps", "run", *counts, *worker]


def run_job(module: str, *, workers: int = 2, servers: int = 2) -> Any:
    """Run a job and return what its rank 0 left with ``save_result``.

    Raises:
        SystemExit: The job failed; its output says why.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = job_command(module, Path(folder), workers=workers, servers=servers)
        if subprocess.run(command, cwd=ROOT, stdout=sys.stderr, timeout=900, check=False).returncode != 0:
            raise SystemExit(f"the job of {module} failed; its output above says why")
        return json.loads(_result_file(Path(folder)).read_text(encoding="utf-8"))


def save_result(folder: Path, result: object) -> None:
    """Hand a result over from rank 0 to the process that called ``run_job``."""
    _result_file(folder).write_text(json.dumps(result), encoding="utf-8")


def _result_file(folder: Path) -> Path:
    return folder / "result.json"


def main(
    description: str, measure: Callable[[], Sequence[Row]], worker: Callable[[Path], None] | None = None
) -> None:
    """Parse the command line; run the measurement and print its table, or be one of its workers.

    The exit code is 1 if a figure misses its bound.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--worker", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker and worker:
        worker(arguments.worker)
        return
    rows = measure()
    machine = (
        f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}, Python {platform.python_version()}"
    )
    if arguments.json:
        table = [{**asdict(row), "passed": row.passed} for row in rows]
        print(json.dumps({"what": description, "machine": machine, "rows": table}, indent=2))
    else:
        print_table(description, machine, rows)
    sys.exit(not all(row.passed for row in rows))


def print_table(title: str, machine: str, rows: Sequence[Row]) -> None:
    """Print the figures below each other, in the form that Markdown shows as a table."""
    print(f"\n{title}\n({machine})\n")
    lines = [("figure", "value", "bound", ""), *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    lines.insert(1, ("-" * widths[0], "-" * widths[1], "-" * widths[2], "-" * widths[3]))
    for line in lines:
        cells = " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print(f"| {cells} |")
