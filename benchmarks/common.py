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
from typing import Any, NoReturn

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


def job_command(
    module: str, folder: Path, *, workers: int, servers: int, options: Sequence[str] = ()
) -> list[str]:
    """The command that runs ``python -m module --worker FOLDER`` as a whole job on this machine.

    Args:
        options: Of ``byteps run``, more of them.
    """
    worker = [sys.executable, "-m", module, "--worker", str(folder)]
    counts = ["-np", str(workers), "--servers", str(servers)]
    return [sys.executable, "-m", "byteps", "run", *counts, *options, *worker]


def run_job(module: str, *, workers: int = 2, servers: int = 2, options: Sequence[str] = ()) -> Any:
    """Run a job and return what its rank 0 left with ``save_result``.

    Args:
        options: Of ``byteps run``, more of them.

    Raises:
        SystemExit: The job failed; its output says why.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = job_command(module, Path(folder), workers=workers, servers=servers, options=options)
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
    report(description, measure(), as_json=arguments.json)


@dataclass(frozen=True, slots=True)
class Table:
    """More figures than have bounds.

    Args:
        columns: What each column is, with its unit.
        lines: The cells: texts and numbers.
    """

    columns: Sequence[str]
    lines: Sequence[Sequence[str | float]]

    def cells(self) -> list[tuple[str, ...]]:
        """Header and lines as text."""
        return [
            tuple(cell if isinstance(cell, str) else f"{cell:.3g}" for cell in line)
            for line in (self.columns, *self.lines)
        ]


def report(description: str, rows: Sequence[Row], *, as_json: bool, table: Table | None = None) -> NoReturn:
    """Print the figures and end the process with 1 if one misses its bound, else with 0."""
    machine = (
        f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}, Python {platform.python_version()}"
    )
    if as_json:
        entries = [{**asdict(row), "passed": row.passed} for row in rows]
        result: dict[str, Any] = {"what": description, "machine": machine, "rows": entries}
        if table is not None:
            result["table"] = [dict(zip(table.columns, line, strict=True)) for line in table.lines]
        print(json.dumps(result, indent=2))
    else:
        print(f"\n{description}\n({machine})")
        if table is not None:
            print_table(table.cells())
        print_table([("figure", "value", "bound", ""), *(row.cells() for row in rows)])
    sys.exit(not all(row.passed for row in rows))


def print_table(lines: Sequence[Sequence[str]]) -> None:
    """Print lines of cells, the first of them the header, in the form that Markdown shows as a table."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    ruler = ["-" * width for width in widths]
    print()
    for line in (lines[0], ruler, *lines[1:]):
        cells = " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print(f"| {cells} |")
