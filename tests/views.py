"""Environments that show what is installed elsewhere: what some distributions need and nothing else, or all.

Whoever installs byteps for one framework has none of the others. A view is a virtual environment whose
packages are those of another interpreter, so it takes no room and less than a second to make. byteps itself
is the one that ``install`` has unpacked from a wheel.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import venv
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

BYTEPS = "byteps"


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


def install(wheel: Path, folder: Path) -> Path:
    """Unpack a wheel of byteps for all views; returns where."""
    where = ["--quiet", "--no-deps", "--no-index", "--no-warn-script-location", "--target", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "install", *where, str(wheel)], check=True)
    return folder


def make(folder: Path, package: Path, roots: Iterable[str]) -> Path:
    """Make a view of some distributions of this interpreter.

    Args:
        folder: Is not there yet.
        package: See ``install``.
        roots: See ``needed``.

    Returns:
        Its interpreter.
    """
    venv.create(folder, symlinks=True)
    packages = _show(package, folder)
    for name, one in needed(roots).items():
        for path in _paths(one) if name != BYTEPS else ():
            link = packages / path.name
            if not link.exists():
                link.symlink_to(path)
        _write_scripts(one, folder / "bin")
    return folder / "bin" / "python"


def make_of_all(folder: Path, package: Path, python: str = sys.executable) -> Path:
    """Make a view of all that an interpreter has installed; arguments and result are those of ``make``.

    A ``.pth`` file names the interpreter's folders of packages. Python does not look for further ones there,
    such as that of an editable install.
    """
    subprocess.run([python, "-m", "venv", "--symlinks", "--without-pip", str(folder)], check=True)
    packages = _show(package, folder)
    asked = "import json, sys; print(json.dumps([path for path in sys.path if path.endswith('-packages')]))"
    shown = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout
    (packages / "shown.pth").write_text("".join(f"{path}\n" for path in json.loads(shown)))
    _write_scripts(distribution(BYTEPS), folder / "bin")
    return folder / "bin" / "python"


def _show(package: Path, folder: Path) -> Path:
    """Link byteps into a new environment; its folder of packages."""
    packages = next(folder.glob("lib/python3*/site-packages"))
    for path in package.glob(f"{BYTEPS}*"):
        (packages / path.name).symlink_to(path)
    return packages


def _paths(of: Distribution) -> set[Path]:
    """The files and folders in site-packages that a distribution has brought."""
    tops = {file.parts[0] for file in of.files or () if not file.is_absolute()} - {"..", "__pycache__"}
    return {Path(str(of.locate_file(top))) for top in tops}


def _write_scripts(of: Distribution, folder: Path) -> None:
    for script in of.entry_points.select(group="console_scripts"):
        path = folder / script.name
        call = f"import sys\nfrom {script.module} import {script.attr}\nsys.exit({script.attr}())\n"
        path.write_text(f"#!{folder}/python\n{call}")
        path.chmod(0o755)
