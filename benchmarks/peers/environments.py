"""Where the peers live, and how each gets there.

``python -m benchmarks.peers install horovod|mxnet`` makes one virtual environment per peer in the folder that
``BYTEPS_PEERS`` names, by default ``~/.cache/byteps-peers``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.common import ROOT
from byteps.config.environment import child_environment, environment

TORCH = "torch==2.13.0"
HOROVOD = "0.28.1"
MXNET = "1.9.1"
# The newest numpy that MXNet 1.9.1 can be imported with.
MXNET_NUMPY = "1.23.5"
HOROVOD_NEEDS = ("numpy", "setuptools<81", "wheel", "cmake<4", "cloudpickle", "psutil", "pyyaml", "packaging")
HOROVOD_SWITCHES: Mapping[str, str] = {
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
}


class PeerMissing(RuntimeError):
    """A peer is not installed; the text says how to get it."""


def folder() -> Path:
    """Where the environments are."""
    return Path(environment().get("BYTEPS_PEERS") or Path.home() / ".cache" / "byteps-peers").absolute()


def python_of(peer: str) -> str:
    """The Python interpreter of a peer's environment.

    Raises:
        PeerMissing: It is not installed.
    """
    if not _stamp(peer).exists():
        raise PeerMissing(f"{peer} is not installed: python -m benchmarks.peers install {peer}")
    return str(_python(peer))


def raw_program() -> str:
    """The program of plain sockets, compiled if it is not there yet or its source has changed.

    Raises:
        SystemExit: No compiler, or it fails.
    """
    source = ROOT / "benchmarks" / "raw.cc"
    program = folder() / f"raw-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}"
    if not program.exists():
        compiler = environment().get("CXX", "g++")
        if shutil.which(compiler) is None:
            raise SystemExit(f"no C++ compiler ({compiler}) to build {source}: apt-get install g++")
        program.parent.mkdir(parents=True, exist_ok=True)
        _run([compiler, "-std=c++20", "-O2", "-pthread", str(source), "-o", f"{program}.new"])
        Path(f"{program}.new").rename(program)
    return str(program)


def install_horovod() -> None:
    """Build Horovod with gloo for the torch of this interpreter, or for one of its own.

    Its two CMake files ask for C++14, which current torch headers refuse; they are changed to ask for C++20.
    """
    peer = "horovod"
    _create(peer)
    found = importlib.util.find_spec("torch")
    if found is not None and found.origin is not None:
        # A .pth file shows the new environment this interpreter's packages, behind its own.
        packages = Path(found.origin).parents[1]
        (_site_packages(peer) / "torch.pth").write_text(f"{packages}\n", encoding="utf-8")
    else:
        _pip(peer, TORCH)
    _pip(peer, "--ignore-installed", *HOROVOD_NEEDS)
    downloads = folder() / "downloads"
    options = ["--no-deps", "--no-build-isolation", "--no-binary", peer]
    _run([str(_python(peer)), "-m", "pip", "download", *options, "-d", str(downloads), f"{peer}=={HOROVOD}"])
    with tarfile.open(downloads / f"{peer}-{HOROVOD}.tar.gz") as archive:
        archive.extractall(downloads)
    source = downloads / f"{peer}-{HOROVOD}"
    for name in ("CMakeLists.txt", f"{peer}/torch/CMakeLists.txt"):
        _ask_for_cpp20(source / name)
    path = f"{_python(peer).parent}:{environment().get('PATH', '')}"
    _pip(peer, "--no-deps", "--no-build-isolation", str(source), environ={**HOROVOD_SWITCHES, "PATH": path})
    _finish(peer, "import horovod.torch as hvd; assert hvd.gloo_built()")


def install_mxnet() -> None:
    """MXNet, whose ``dist_sync`` store is ps-lite, with the newest numpy that it can be imported with."""
    peer = "mxnet"
    _create(peer)
    _pip(peer, f"mxnet=={MXNET}", f"numpy=={MXNET_NUMPY}")
    _finish(peer, "import mxnet; assert mxnet.runtime.Features().is_enabled('DIST_KVSTORE')")


def _ask_for_cpp20(path: Path) -> None:
    old, new = "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"
    text = path.read_text(encoding="utf-8")
    if old not in text and new not in text:
        raise SystemExit(f"{path} does not say {old!r}; is this Horovod {HOROVOD}?")
    path.write_text(text.replace(old, new), encoding="utf-8")


def _create(peer: str) -> None:
    _stamp(peer).unlink(missing_ok=True)
    venv.create(folder() / peer, with_pip=True, clear=True, symlinks=True)


def _finish(peer: str, check: str) -> None:
    """Mark a peer as installed if a program of its own says so."""
    _run([str(_python(peer)), "-c", check])
    _stamp(peer).touch()


def _pip(peer: str, *words: str, environ: Mapping[str, str] | None = None) -> None:
    _run([str(_python(peer)), "-m", "pip", "install", "--progress-bar", "off", *words], environ)


def _run(command: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
    print("+", *command, file=sys.stderr, flush=True)
    code = subprocess.run(command, env=child_environment(environ or {}), check=False).returncode
    if code != 0:
        raise SystemExit(f"{command[0]} failed with exit code {code}; its output above says why")


def _python(peer: str) -> Path:
    return folder() / peer / "bin" / "python"


def _site_packages(peer: str) -> Path:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return folder() / peer / "lib" / version / "site-packages"


def _stamp(peer: str) -> Path:
    return folder() / f"{peer}.installed"
