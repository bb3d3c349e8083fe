"""The examples that need nothing else run, and show what they say."""

from __future__ import annotations

import re
import sys

from tests.house.tree import ROOT

from .jobs import Job


def test_an_urgent_file_cuts_in() -> None:
    code, output, errors = Job([sys.executable, str(ROOT / "examples" / "schedule_anything.py")]).finish()
    assert code == 0, errors
    lines = re.findall(r"^(\S+) +urgent: +(\d+) ms +all: +(\d+) ms$", output, re.MULTILINE)
    urgent_ms = {policy: float(urgent) for policy, urgent, _ in lines}
    all_ms = {policy: float(total) for policy, _, total in lines}
    assert urgent_ms["fifo"] == all_ms["fifo"]
    assert urgent_ms["priority"] < 0.3 * urgent_ms["fifo"]
    assert all_ms["priority"] < 1.5 * all_ms["fifo"]
