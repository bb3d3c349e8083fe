"""Runs the suite, session by session, and sums up: ``python -m tests.environments WHEELS MXNET_ENVIRONMENT``.

Each framework's session runs where none of the others is, the core's where there is none at all (``views``).
What takes several of them, and all jobs of processes, run where all are. MXNet has an environment of its own,
as it needs a numpy that no other framework takes. byteps is everywhere the one wheel in the folder WHEELS.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from xml.etree import ElementTree

from tests import views

CONTRACT = "tests/adapters/test_contract.py"
MXNET_TESTS = (CONTRACT, "tests/mxnet")
TOOLS = ("byteps[test]", "mlxtend", "pandas")
FAILED = ("failures", "errors")


@dataclass(frozen=True, slots=True)
class Session:
    """Tests of one framework, or of none.

    Args:
        name: Of the framework.
        distributions: What it needs; of names joined by ``|`` the first that is installed.
        tests: Folders, files and patterns of files.
    """

    name: str
    distributions: tuple[str, ...]
    tests: tuple[str, ...]

    def paths(self) -> set[str]:
        """The tests' folders and files."""
        return {str(path) for pattern in self.tests for path in Path().glob(pattern)}

    def roots(self) -> list[str]:
        """What its environment shows."""
        return [*TOOLS, *(_installed(names.split("|")) for names in self.distributions)]


# In the folders of one session, files that another one names are the other's.
SESSIONS = (
    Session("core", (), ("tests/unit", "tests/session")),
    Session(
        "torch",
        ("torch",),
        (
            CONTRACT,
            "tests/adapters/test_torch*.py",
            "tests/session/test_absence.py",
            "tests/unit/test_emulated.py",
        ),
    ),
    Session("tensorflow", ("tensorflow-cpu|tensorflow",), (CONTRACT, "tests/adapters/test_tensorflow*.py")),
    Session("jax", ("jax", "optax"), (CONTRACT, "tests/adapters/test_jax.py")),
)


def words_for(session: Session | None) -> list[str]:
    """What pytest is told for a session; None: for all that no session names."""
    own = session.paths() if session else set()
    others = {path for other in SESSIONS for path in other.paths()} - own
    return [*sorted(own), *(f"--ignore={path}" for path in sorted(others))]


def _installed(names: list[str]) -> str:
    for name in names[:-1]:
        try:
            distribution(name)
        except PackageNotFoundError:
            continue
        return name
    return names[-1]


def run(python: Path, *words: str) -> tuple[int, str]:
    """Run tests by an interpreter; pytest's exit code, and how many tests passed in words."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        code = subprocess.run(
            [python, "-m", "pytest", f"--junit-xml={report}", *words], check=False
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


def main(wheels: str, mxnet: str) -> int:
    """Run all and print one line for each session; the first exit code that is not 0."""
    results: dict[str, tuple[int, str]] = {}
    (wheel,) = Path(wheels).glob("byteps-*.whl")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        package = views.install(wheel, folder / "package")
        for session in SESSIONS:
            view = views.make(folder / session.name, package, session.roots())
            results[session.name] = run(view, *words_for(session))
        results["together"] = run(views.make_of_all(folder / "together", package), *words_for(None))
        python = Path(mxnet) / "bin" / "python"
        if python.exists():
            view = views.make_of_all(folder / "mxnet", package, str(python))
            results["mxnet"] = run(view, *MXNET_TESTS)
        else:
            results["mxnet"] = 0, f"not run, as it is not installed in {mxnet}: it needs Python 3.11 or older"
    print("", *(f"{name}: {words}" for name, (_, words) in results.items()), sep="\n", flush=True)
    return next((code for code, _ in results.values() if code), 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
