"""Environments that show a part of what is installed: what some distributions need, and nothing else.

Whoever installs byteps for one framework has none of the others. A view is a virtual environment whose
packages are links to those of this interpreter's, so it takes no room and less than a second to make.
"""

from __future__ import annotations

import contextlib
import venv
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def needed(roots: Iterable[str]) -> dict[str, Distribution]:
    """The distributions of requirements and of what they need, by name.

    Args:
        roots: Like ``byteps[test]``.

    Raises:
        PackageNotFoundError: One of the roots is not installed.
    """
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(root) for root in roots]
    for root in waiting:
        distribution(root.name)
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            with contextlib.suppress(PackageNotFoundError):  # what needs it was installed without
                found[name] = distribution(name)
                waiting += _requirements(found[name], extra)
    return found


def _requirements(of: Distribution, extra: str) -> Iterator[Requirement]:
    """What it needs itself, or for one of its extras."""
    for text in of.requires or ():
        requirement = Requirement(text)
        if requirement.marker is None:
            if not extra:
                yield requirement
        elif requirement.marker.evaluate({"extra": extra}) and (
            not extra or not requirement.marker.evaluate({"extra": ""})
        ):
            yield requirement


def make(folder: Path, roots: Iterable[str]) -> Path:
    """Make a view.

    Args:
        folder: Is not there yet.
        roots: See ``needed``.

    Returns:
        Its interpreter.
    """
    venv.create(folder, symlinks=True)
    packages = next(folder.glob("lib/python3*/site-packages"))
    for one in needed(roots).values():
        for path in _paths(one):
            link = packages / path.name
            if not link.exists():
                link.symlink_to(path)
        for script in one.entry_points.select(group="console_scripts"):
            _write_script(folder / "bin", script.name, script.module, script.attr)
    return folder / "bin" / "python"


def _paths(of: Distribution) -> set[Path]:
    """The files and folders in site-packages that a distribution has brought."""
    tops = {file.parts[0] for file in of.files or () if not file.is_absolute()} - {"..", "__pycache__"}
    return {Path(str(of.locate_file(top))) for top in tops}


def _write_script(folder: Path, name: str, module: str, function: str) -> None:
    path = folder / name
    path.write_text(
        f"#!{folder}/python\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"
    )
    path.chmod(0o755)
