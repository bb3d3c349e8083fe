"""Runs the suite in each environment and sums up: ``python -m tests.environments MXNET_ENVIRONMENT``.

MXNet needs a numpy that no other framework takes. In its environment run the contract suite, over MXNet, and
``tests/mxnet``; in this interpreter's runs everything else.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

MXNET_TESTS = ("tests/adapters/test_contract.py", "tests/mxnet")
FAILED = ("failures", "errors")


def run(python: str, *tests: str) -> tuple[int, str]:
    """Run tests by an interpreter; pytest's exit code, and how many tests passed in words."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        code = subprocess.run(
            [python, "-m", "pytest", f"--junit-xml={report}", *tests], check=False
        ).returncode
        return code, counts(report) if report.exists() else "pytest wrote no report"


def counts(report: Path) -> str:
    """What a report of pytest's says, for example ``120 passed, 1 failed, 0 skipped in 33 s``."""
    found = ElementTree.parse(report).getroot().find("testsuite")
    assert found is not None, report
    total, skipped = int(found.attrib["tests"]), int(found.attrib["skipped"])
    failed = sum(int(found.attrib[kind]) for kind in FAILED)
    passed = total - skipped - failed
    return f"{passed} passed, {failed} failed, {skipped} skipped in {float(found.attrib['time']):.0f} s"


def main(mxnet: str) -> int:
    """Run all and print one line for each environment; the first exit code that is not 0."""
    code, words = run(sys.executable)
    lines, codes = [f"core, torch, tensorflow, keras, jax: {words}"], [code]
    python = Path(mxnet) / "bin" / "python"
    if python.exists():
        code, words = run(str(python), *MXNET_TESTS)
        lines, codes = [*lines, f"mxnet: {words}"], [*codes, code]
    else:
        lines.append(f"mxnet: not run, as it is not installed in {mxnet}: it needs Python 3.11 or older")
    print("", *lines, sep="\n", flush=True)
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
