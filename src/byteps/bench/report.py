"""The reports of the benchmarks: as a table for people, as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from byteps.diagnostics import count, duration, size, table
from byteps.errors import BytePSError

STDOUT = "-"


def check_target(target: str | None) -> None:
    """Find out before a long measurement whether its report can be written.

    Raises:
        BytePSError: it cannot.
    """
    if target not in (None, STDOUT):
        _write(Path(str(target)), "", "a")


def publish(report: Mapping[str, Any], target: str | None) -> None:
    """Print the table; with a target write JSON there, to stdout in place of the table for ``-``.

    Raises:
        BytePSError: the file cannot be written.
    """
    text = json.dumps(report, indent=2)
    if target == STDOUT:
        print(text, flush=True)
        return
    print("\n".join(lines(report)), flush=True)
    if target is not None:
        _write(Path(target), text + "\n", "w")


def _write(path: Path, text: str, mode: str) -> None:
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise BytePSError(
            f"cannot write the report to {path}: {error.strerror}; choose another --json file"
        ) from error


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The report for people, line by line."""
    roles = f"{count(report['workers'], 'worker')}, {count(report['servers'], 'server')}"
    yield f"byteps bench {report['bench']}: {roles}"
    yield from (_push_pull if report["bench"] == "pushpull" else _train)(report)


def _push_pull(report: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        (
            row["dtype"],
            size(row["bytes"]),
            duration(row["median_s"]),
            duration(row["p95_s"]),
            f"{row['gb_per_s']:.3f}",
            f"{100 * row['share_of_limit']:.0f} %",
            "-" if row["server_cpu_s_per_gb"] is None else f"{row['server_cpu_s_per_gb']:.3f}",
        )
        for row in report["rows"]
    ]
    yield ""
    yield from table(("dtype", "size", "median", "p95", "GB/s", "of limit", "server CPU s/GB"), rows)
    yield ""
    for entry in report["latency"]:
        times = f"{duration(entry['median_s'])} median, {duration(entry['p95_s'])} p95"
        yield f"latency (one {entry['dtype']}): {times}"
    rounds, limit, seen = report["iterations"], report["limit"], report["servers_beside_workers"]
    yield f"times: of the slowest rank, {count(rounds, 'round')} each; every sum was checked"
    yield "GB/s: tensor size over median; each worker sends and receives that much at once"
    yield f"limit: {limit['gb_per_s']:.3f} GB/s each way per worker ({limit['from']})"
    yield _usage(seen, report["servers"])


def _usage(seen: int, servers: int) -> str:
    if seen == 0:
        return "server CPU: unknown, no server is on a worker's host (or is another user's)"
    part = "" if seen == servers else f"; {seen} of {servers} servers, those on the workers' hosts"
    return f"server CPU: seconds per GB that reached the servers{part}"


def _train(report: Mapping[str, Any]) -> Iterator[str]:
    megabytes = report["gradient_bytes"] / 1e6
    kind = f"{report['model']}, {report['parameters']:,} parameters, {megabytes:.1f} MB of gradients"
    yield f"{kind}, {count(report['batch_size'], 'sample')} per step and worker, on {report['device']}"
    yield ""
    rows = [
        (
            label,
            f"{report['samples_per_s'][key]:.2f}",
            f"{report['samples_per_s'][key] / report['workers']:.2f}",
            duration(report["step_s"][key]),
        )
        for label, key in (("with communication", "with"), ("without", "without"))
    ]
    yield from table(("", "samples/s", "per worker", "step"), rows)
    yield ""
    blocks = f"{count(report['blocks'], 'block')} of {count(report['steps'], 'step')} each"
    yield f"scaling: {100 * report['share']:.1f} % of the speed without communication"
    yield f"medians of {blocks}, with and without by turns in the same processes"


def read(path: Path) -> dict[str, Any] | None:
    """The report that rank 0 has left in a file; None if it has left none."""
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return report


def hand_over(report: Mapping[str, Any], path: Path) -> None:
    """Leave the report for the process that started the job."""
    path.write_text(json.dumps(report), encoding="utf-8")
