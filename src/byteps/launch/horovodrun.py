"""The options of ``horovodrun`` that ``byteps run`` takes as well: honoured, or ignored with the reason."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from byteps.config import child_environment
from byteps.errors import ConfigError

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
ON_PATH = Path(__file__).parents[1] / "compat" / "on_path"
"""A folder for PYTHONPATH with a ``horovod`` in it that byteps stands in for."""

_SETTINGS = (
    ("--timeline-filename", "timeline", "FILE"),
    ("--start-timeout", "join_timeout_s", "S"),
    ("--stall-check-warning-time-seconds", "stall_warning_s", "S"),
    ("--stall-check-shutdown-time-seconds", "stall_timeout_s", "S"),
    ("--gloo-timeout-seconds", "peer_timeout_s", "S"),
)
"""Options that set a field, and what stands for their value in the help."""

_FLAGS = (
    ("--no-stall-check", "stall_warning_s", "0"),
    ("--log-without-timestamp", "log_hide_time", True),
    ("--log-with-timestamp", "log_hide_time", False),
    ("--verbose", "log_level", "info"),
)
"""Options without a value that set a field to one."""

_IGNORED: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("tensors are partitioned, not fused", ("--fusion-threshold-mb",), 1),
    ("tensors are sent as they become ready", ("--cycle-time-ms",), 1),
    ("tensors are declared once", ("--cache-capacity",), 1),
    ("tensors are declared once", ("--disable-cache",), 0),
    (
        "every process talks to the servers itself",
        (
            *("--hierarchical-allreduce", "--no-hierarchical-allreduce", "--torus-allreduce"),
            *("--hierarchical-allgather", "--no-hierarchical-allgather", "--no-torus-allreduce"),
        ),
        0,
    ),
    ("--tune is what tunes sizes", ("--autotune", "--no-autotune"), 0),
    (
        "--tune is what tunes sizes",
        (
            *("--autotune-log-file", "--autotune-warmup-samples", "--autotune-steps-per-sample"),
            *("--autotune-bayes-opt-max-samples", "--autotune-gaussian-process-noise"),
        ),
        1,
    ),
    ("there are no cycles to mark", ("--timeline-mark-cycles", "--no-timeline-mark-cycles"), 0),
    ("nothing uses MPI", ("--mpi-threads-disable", "--no-mpi-threads-disable", "--tcp"), 0),
    ("nothing uses MPI", ("--mpi-args", "--binding-args"), 1),
    ("nothing uses NCCL", ("--num-nccl-streams",), 1),
    ("--visible-cpu-cores says which CPUs a process gets", ("--thread-affinity",), 1),
    ("the job runs on this machine", ("--network-interfaces", "--network-interface"), 1),
    ("the job runs on this machine", ("--ssh-port", "--ssh-identity-file"), 1),
    ("lines go to this terminal, with the rank in front", ("--output-filename",), 1),
    ("`--log-level info` lines have a time", ("--prefix-output-with-timestamp",), 0),
)
"""Why options are ignored, which they are, and how many values they take."""

_REFUSED: tuple[tuple[str, tuple[str, ...], int], ...] = (
    ("membership is fixed", ("--min-np", "--min-num-proc", "--max-np", "--max-num-proc"), 1),
    ("membership is fixed", ("--slots-per-host", "--elastic-timeout", "--reset-limit"), 1),
    ("membership is fixed", ("--host-discovery-script",), 1),
    ("membership is fixed", ("--blacklist-cooldown-range",), 2),
    ("give the options themselves, or byteps.toml", ("--config-file",), 1),
    ("nothing uses MPI; leave it out", ("--mpi", "--jsrun"), 0),
)
"""Options without which a job would not be the one that was asked for."""

_DEST = "horovodrun_"


def add_horovodrun(parser: argparse.ArgumentParser) -> None:
    """Give a parser horovodrun's options; those that byteps has itself are not among them."""
    group = parser.add_argument_group("options of horovodrun", "For commands written for Horovod.")
    group.add_argument("-H", "--hosts", dest=_DEST + "hosts", metavar="HOST:SLOTS", help="only localhost")
    group.add_argument(
        "-hostfile", "--hostfile", dest=_DEST + "hostfile", metavar="FILE", help="with localhost slots=N only"
    )
    group.add_argument("--gloo", dest=_DEST + "gloo", action="store_true", help="has no effect")
    for option, field, value in _SETTINGS:
        group.add_argument(option, dest=_DEST + field, metavar=value, help=f"sets {field}")
    for option, field, constant in _FLAGS:
        text = f"sets {field} to {constant}"
        group.add_argument(option, dest=_DEST + field, action="store_const", const=constant, help=text)
    hidden = argparse.SUPPRESS
    for action, options_of in ((_Ignore, _IGNORED), (_Refuse, _REFUSED)):
        for reason, options, count in options_of:
            group.add_argument(*options, action=action, nargs=count, const=reason, dest=hidden, help=hidden)


def settings_of(arguments: argparse.Namespace) -> dict[str, object]:
    """The settings that horovodrun's options gave, by field name.

    Raises:
        ConfigError: There are fewer slots than workers, or another host than this.
    """
    given = {
        name.removeprefix(_DEST): value
        for name, value in vars(arguments).items()
        if name.startswith(_DEST) and value not in (None, argparse.SUPPRESS)
    }
    given.pop("gloo", None)
    hosts, file = given.pop("hosts", None), given.pop("hostfile", None)
    for text in [*([hosts] if hosts else []), *([_hosts_in(file)] if file else [])]:
        slots = local_slots(text)
        if slots < arguments.workers:
            raise ConfigError(f"{text} has {slots} slots, but there are to be {arguments.workers} workers")
    return given


def local_slots(hosts: str) -> int:
    """How many slots ``localhost:4`` has.

    Raises:
        ConfigError: Another host is named, or a number of slots is none.
    """
    total = 0
    for entry in hosts.split(","):
        name, _, count = entry.strip().rpartition(":") if ":" in entry else (entry.strip(), "", "1")
        if name not in LOCAL_NAMES:
            raise ConfigError(
                f"{name} is not this machine: byteps starts the workers of one machine. Use torchrun, Slurm "
                "or your cluster's engine to start some on each (docs/running.md)"
            )
        if not count.isdigit():
            raise ConfigError(f"{entry!r} should be host:slots")
        total += int(count)
    return total


def as_horovod(environment: Mapping[str, str]) -> dict[str, str]:
    """A worker's variables under which ``import horovod`` finds byteps, and those that Horovod would set."""
    paths = [str(ON_PATH), child_environment(environment).get("PYTHONPATH", "")]
    changed = {**environment, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"):
        changed[f"HOROVOD_{name}"] = environment[f"BYTEPS_{name}"]
    return {**changed, "HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "1"}


def _hosts_in(file: str) -> str:
    """A hostfile's lines (``localhost slots=4``) as ``--hosts`` would have them."""
    with open(file, encoding="utf-8") as lines:
        words = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    return ",".join(f"{one[0]}:{one[1].removeprefix('slots=') if len(one) > 1 else 1}" for one in words)


class _Ignore(argparse.Action):
    """An option without meaning; ``const`` says why."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        print(f"byteps run: warning: {option} is ignored: {self.const}", file=sys.stderr)


class _Refuse(argparse.Action):
    """An option that asks for something else than there is; ``const`` says why."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        parser.error(f"cannot take {option}: {self.const}")
