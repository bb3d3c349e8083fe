"""A short job on this machine, started with ``byteps run``, whose workers are doctors themselves."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping

from byteps.children import as_environment
from byteps.config import child_environment
from byteps.doctor.findings import Finding, Pair, fail, failed, from_json

_TIMEOUT_S = 120.0
_REPORT = re.compile(r"^\[worker \d+\] (\{.*\})$", re.MULTILINE)
_ADVICE = "run it by hand to see more: {}"


def try_job(workers: int, servers: int, settings: Mapping[str, object]) -> tuple[list[Finding], list[Pair]]:
    """Start a job, let each worker exchange data with each server, and collect what they found.

    Args:
        workers: how many.
        servers: how many; 0 where the workers sum among themselves.
        settings: for all processes, by field name.
    """
    counts = ["-np", str(workers), *(["--servers", str(servers)] if servers else [])]
    command = [sys.executable, "-m", "byteps"]
    words = [*command, "run", *counts, "--", *command, "doctor", "--only-pairs", "--json"]
    by_hand = f"byteps run {' '.join(counts)} byteps doctor"
    # One worker and one server are a pair too.
    environment = child_environment(as_environment({**settings, "force_distributed": True}))
    try:
        ended = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        text = f"not finished within {_TIMEOUT_S:g} s"
        return [fail("job", text, _ADVICE.format(by_hand))], []
    findings: list[Finding] = []
    pairs: list[Pair] = []
    for report in _REPORT.findall(ended.stdout):
        found, measured = from_json(json.loads(report))
        findings += found
        pairs += measured
    if ended.returncode != 0 and not failed(findings):
        last = " / ".join(ended.stderr.strip().splitlines()[-3:])
        findings.append(
            fail("job", f"ended with exit code {ended.returncode}: {last}", _ADVICE.format(by_hand))
        )
    return findings, pairs
