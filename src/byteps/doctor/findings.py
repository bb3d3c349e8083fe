"""What the doctor has found, and how it is printed."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

_LEVEL_WIDTH = 6


class Level(enum.Enum):
    """How bad a finding is. Only ``FAIL`` counts for the exit code."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: what it is, in a word or two.
        level: how bad it is.
        text: what was found.
        advice: what to do about it, in one line; empty where all is well.
    """

    check: str
    level: Level
    text: str
    advice: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """A worker and a server, and how fast they exchange data.

    Attributes:
        worker: rank.
        server: number.
        latency_s: time of a push_pull of four bytes (median).
        bytes_per_s: of a larger push_pull: each way, at the same time.
    """

    worker: int
    server: int
    latency_s: float
    bytes_per_s: float


def ok(check: str, text: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, text)


def warn(check: str, text: str, advice: str) -> Finding:
    """It works, but not as well as it could, or perhaps not as meant."""
    return Finding(check, Level.WARN, text, advice)


def fail(check: str, text: str, advice: str) -> Finding:
    """A job cannot work like this."""
    return Finding(check, Level.FAIL, text, advice)


def failed(findings: Sequence[Finding]) -> bool:
    """Whether anything has failed."""
    return any(finding.level is Level.FAIL for finding in findings)


def lines(findings: Sequence[Finding]) -> list[str]:
    """One line per finding and, where there is something to do, one of advice."""
    width = max((len(finding.check) for finding in findings), default=0)
    found = []
    for finding in findings:
        found.append(f"{finding.level.value:<{_LEVEL_WIDTH}}{finding.check:<{width}}  {finding.text}")
        if finding.advice:
            found.append(f"{'':<{_LEVEL_WIDTH + width}}  -> {finding.advice}")
    return found


def summary(findings: Sequence[Finding]) -> str:
    """The last line: ``21 checks: 20 OK, 1 WARN, 0 FAIL``."""
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    told = ", ".join(f"{number} {level.value}" for level, number in counts.items())
    return f"{len(findings)} checks: {told}"


def as_json(findings: Sequence[Finding], pairs: Sequence[Pair]) -> dict[str, object]:
    """All of it for programs."""
    return {
        "ok": not failed(findings),
        "findings": [{**dataclasses.asdict(one), "level": one.level.value} for one in findings],
        "pairs": [dataclasses.asdict(pair) for pair in pairs],
    }


def from_json(report: dict[str, list[dict[str, object]]]) -> tuple[list[Finding], list[Pair]]:
    """The reverse of ``as_json``."""
    findings = [
        Finding(str(one["check"]), Level(one["level"]), str(one["text"]), str(one["advice"]))
        for one in report["findings"]
    ]
    return findings, [Pair(**pair) for pair in report["pairs"]]  # type: ignore[arg-type]
