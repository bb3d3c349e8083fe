"""What the documents say: links lead somewhere, scripts run as they are printed, figures are filled in."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .tree import ROOT, report

DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\((?!\w+://)([^)#]*)(?:#([^)]*))?\)")
SCRIPT = re.compile(r"```python\n(.*?)```", re.DOTALL)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def _anchors(document: Path) -> set[str]:
    """The anchors that a Markdown viewer gives to a document's headings."""
    headings = HEADING.findall(document.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    broken = []
    for document in DOCUMENTS:
        for path, anchor in LINK.findall(document.read_text(encoding="utf-8")):
            target = document.parent / path if path else document
            if not target.exists() or (anchor and anchor not in _anchors(target)):
                broken.append(f"{document.relative_to(ROOT)}: {path}#{anchor}")
    assert not broken, report("Broken links", broken, "Correct the path or the heading.")


def test_no_figure_is_missing() -> None:
    open_places = [
        d.relative_to(ROOT).as_posix() for d in DOCUMENTS if "FIGURE" in d.read_text(encoding="utf-8")
    ]
    assert not open_places, report(
        "Figures to fill in", open_places, "Run the command beside it: `make bench`."
    )


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("document", ["README.md", "docs/tutorial.md"])
def test_the_printed_script_runs(document: str, workers: int, tmp_path: Path) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.findall(text)[0], encoding="utf-8")
    command = [sys.executable, "-m", "byteps", "run", "-np", str(workers), "--servers", "1"]
    result = subprocess.run(
        [*command, sys.executable, str(script)], capture_output=True, text=True, timeout=50, check=False
    )
    assert result.returncode == 0, result.stderr
    assert f"{workers} workers" in result.stdout
