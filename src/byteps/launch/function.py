"""``byteps.run``: call a function on every rank of a job on this machine, and get the results.

The function travels in a file, by cloudpickle where that is installed, else by pickle. Then functions of a
script must be found again in it, so what starts the job stands under ``if __name__ == "__main__"``, as for
multiprocessing.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing.spawn
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from byteps.children import as_environment
from byteps.config import child_environment, resolve
from byteps.config.fields import FIELDS
from byteps.errors import BytePSError, ConfigError
from byteps.launch.horovodrun import local_slots

_CALL = "call"
_IGNORED = frozenset(
    {
        *("use_gloo", "disable_cache", "ssh_port", "ssh_identity_file"),
        *("network_interface", "network_interfaces", "executable", "output_filename"),
    }
)
_HONOURED = frozenset({"start_timeout", "verbose"})


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int | None = None,
    *,
    num_proc: int | None = None,
    servers: int | None = None,
    hosts: str | None = None,
    env: Mapping[str, str] | None = None,
    **settings: object,
) -> list[Any]:
    """Call a function on every rank of a job on this machine.

    Args:
        func: Called as ``func(*args, **kwargs)`` in each process; it calls ``init()`` itself.
        args, kwargs: Its arguments.
        np: Number of workers, at least 1; 1 if not given.
        num_proc: The same, as newer Horovod scripts say it.
        servers: Number of servers, at least 1; chosen as ``byteps run`` does if not given. With
            ``communicator="allreduce"`` there are none.
        hosts: Accepted for Horovod scripts: ``localhost:4``.
        env: Variables for the workers on top of this process's.
        settings: Fields of ``byteps.config.Config`` by name, and Horovod's ``start_timeout`` (seconds) and
            ``verbose``. Its other arguments get a warning.

    Returns:
        What the function returned, by rank; None for one that ended by ``sys.exit()``.

    Raises:
        BytePSError: A rank failed; its traceback is in the message.
        ConfigError: An argument cannot work.
    """
    workers = np if np is not None else num_proc if num_proc is not None else 1
    if workers < 1:
        raise ConfigError(f"np={workers} is not at least 1")
    known = _known(settings)
    options = ["-np", str(workers), *_servers(servers, known)]
    if hosts is not None and local_slots(hosts) < workers:
        raise ConfigError(f"hosts={hosts!r} has fewer than {workers} slots")
    with tempfile.TemporaryDirectory(prefix="byteps-run-") as folder:
        path = Path(folder)
        (path / _CALL).write_bytes(_pickled(func, tuple(args), dict(kwargs or {})))
        this = [sys.executable, "-m"]
        command = [*this, "byteps", "run", *options, "--", *this, __name__, folder]
        variables = {**as_environment(known), **(env or {})}
        ended = subprocess.run(command, env=child_environment(variables), check=False)
        return _results(path, workers, ended.returncode)


def _results(folder: Path, workers: int, code: int) -> list[Any]:
    """What all ranks have left.

    Raises:
        BytePSError: One has failed, or left nothing.
    """
    failures = [text for text in (_read(folder / f"error.{rank}") for rank in range(workers)) if text]
    if failures or code:
        raise BytePSError(failures[0].decode() if failures else f"the job ended with exit code {code}")
    results = [_read(folder / f"result.{rank}") for rank in range(workers)]
    if b"" in results:
        raise BytePSError(f"rank {results.index(b'')} ended well but without a result: os._exit()?")
    return [pickle.loads(result) for result in results]


def _servers(servers: int | None, settings: Mapping[str, object]) -> list[str]:
    """The option of ``byteps run``."""
    none_wanted = servers == 0 and resolve(settings).config.communicator == "allreduce"
    if servers is None or none_wanted:
        return []
    if servers < 1:
        raise ConfigError(
            f"servers={servers} is not at least 1; leave it out, or say communicator='allreduce', which has "
            "none"
        )
    return ["--servers", str(servers)]


def _known(settings: Mapping[str, object]) -> dict[str, object]:
    ignored = sorted(name for name in settings if name in _IGNORED and settings[name] is not None)
    if ignored:
        warnings.warn(f"byteps.run ignores {', '.join(ignored)}: the job runs on this machine", stacklevel=3)
    unknown = sorted(set(settings) - _IGNORED - _HONOURED - set(FIELDS))
    if unknown:
        raise ConfigError(
            f"byteps.run has no argument {', '.join(unknown)}: it takes settings (`byteps config` lists them)"
        )
    horovods: dict[str, object] = {}
    if settings.get("start_timeout") is not None:
        horovods["join_timeout_s"] = settings["start_timeout"]
    if settings.get("verbose"):
        horovods["log_level"] = "info"
    return {**horovods, **{name: value for name, value in settings.items() if name in FIELDS}}


def _pickled(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """A call, and what a new process needs to find its function."""
    main = sys.modules["__main__"]
    script = getattr(main, "__file__", None)
    prepared: dict[str, Any] = {"sys_path": sys.path, "dir": os.getcwd()}
    pickler: Any = pickle
    with contextlib.suppress(ImportError):
        pickler = importlib.import_module("cloudpickle")
    if pickler is pickle and script is not None and func.__module__ == "__main__":
        prepared["init_main_from_path"] = os.path.abspath(script)
    try:
        return pickle.dumps((prepared, pickler.dumps((func, args, kwargs))))
    except Exception as error:
        raise ConfigError(
            f"cannot send {func!r} to the workers: {error}; define it at the top level of a module, or "
            "install cloudpickle"
        ) from error


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _worker(folder: Path) -> None:
    """One rank: call the function, and leave what it returns or raises in a file."""
    rank = child_environment({})["BYTEPS_RANK"]
    try:
        prepared, call = pickle.loads((folder / _CALL).read_bytes())
        multiprocessing.spawn.prepare(prepared)
        func, args, kwargs = pickle.loads(call)
        (folder / f"result.{rank}").write_bytes(pickle.dumps(_called(func, args, kwargs)))
    except Exception:
        (folder / f"error.{rank}").write_text(f"rank {rank} failed:\n{traceback.format_exc()}")
        raise


def _called(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a function returns; nothing if it ends the process well instead."""
    try:
        return func(*args, **kwargs)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
        return None


if __name__ == "__main__":
    _worker(Path(sys.argv[1]))
