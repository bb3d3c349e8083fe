"""Who this process is in the job, as the launcher that started it says.

Rank, size and their kin come from one launcher only: a mixture of two (torchrun inside a Slurm step, mpirun
inside a Slurm job) would be a job that nobody started. The launcher nearest to the process is asked first.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from byteps.config.fields import FIELDS
from byteps.config.parsing import parse

IDENTITY = ("rank", "size", "local_rank", "local_size", "node_rank", "nodes")


@dataclasses.dataclass(frozen=True)
class Setting:
    """A value and where it was given."""

    value: Any
    origin: str


Settings = dict[str, Setting]

LAUNCHERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "horovod",
        (
            "HOROVOD_RANK",
            "HOROVOD_SIZE",
            "HOROVOD_LOCAL_RANK",
            "HOROVOD_LOCAL_SIZE",
            "HOROVOD_CROSS_RANK",
            "HOROVOD_CROSS_SIZE",
        ),
    ),
    (
        "torchrun",
        ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    ),
    (
        "mpi",
        (
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ),
    ),
    (
        "slurm",
        (
            "SLURM_PROCID",
            "SLURM_NTASKS",
            "SLURM_LOCALID",
            "SLURM_NTASKS_PER_NODE",
            "SLURM_NODEID",
            "SLURM_NNODES",
        ),
    ),
    ("mpi", ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")),
)
"""Each launcher's variables in the order of ``IDENTITY``. Only one that gives rank and size is believed."""

# Slurm numbers the batch script and the interactive shell of a job from here on: they are no task of an srun.
_SLURM_SPECIAL_STEP = 4294967290


def identity(environ: Mapping[str, str], given: Mapping[str, Setting], role: str) -> Settings:
    """Find the launcher that started this process and what it says about rank, size and nodes.

    Args:
        environ: the environment.
        given: what stronger sources say. With rank and size there, no launcher is asked.
        role: only workers have an identity; a coordinator learns the size where it can be computed.

    Returns:
        Settings of the ``IDENTITY`` fields and of ``launcher``.

    Raises:
        ConfigError: a variable holds no number.
    """
    if "rank" in given and "size" in given:
        return {"launcher": Setting("byteps", given["rank"].origin)}
    launched = _launched(environ) if role == "worker" else {}
    if environ.get("DMLC_NUM_WORKER") and (environ.get("DMLC_WORKER_ID") or not launched):
        return _dmlc(environ, given, role)
    return launched


def _launched(environ: Mapping[str, str]) -> Settings:
    """The identity that the nearest of ``LAUNCHERS`` gives, or nothing."""
    for launcher, variables in LAUNCHERS:
        names = dict(zip(IDENTITY, variables, strict=False))
        if not (environ.get(names["rank"]) and environ.get(names["size"])):
            continue
        if launcher == "slurm" and not _is_slurm_task(environ):
            continue
        found = {
            field: _number(field, environ[name], name)
            for field, name in names.items()
            if environ.get(name) and name != "SLURM_NTASKS_PER_NODE"
        }
        if launcher == "slurm":
            found.update(_slurm_local_size(environ))
        return {**found, "launcher": Setting(launcher, names["rank"])}
    return {}


def _dmlc(environ: Mapping[str, str], given: Mapping[str, Setting], role: str) -> Settings:
    """BytePS's way: machines are numbered, and processes within each; all machines run equally many."""
    machines = _number("nodes", environ["DMLC_NUM_WORKER"], "DMLC_NUM_WORKER")
    launcher = Setting("dmlc", "DMLC_NUM_WORKER")
    if role != "worker" and "local_size" not in given:
        return {"nodes": machines, "launcher": launcher}
    local_size = given["local_size"].value if "local_size" in given else 1
    size = Setting(machines.value * local_size, "DMLC_NUM_WORKER x BYTEPS_LOCAL_SIZE")
    found = {"nodes": machines, "size": size, "launcher": launcher}
    machine = environ.get("DMLC_WORKER_ID", "0" if machines.value == 1 else "")
    if role != "worker" or not machine:
        return found
    local_rank = given["local_rank"].value if "local_rank" in given else 0
    node_rank = _number("node_rank", machine, "DMLC_WORKER_ID")
    rank = node_rank.value * local_size + local_rank
    return {
        **found,
        "rank": Setting(rank, "DMLC_WORKER_ID x BYTEPS_LOCAL_SIZE + BYTEPS_LOCAL_RANK"),
        "local_rank": Setting(local_rank, "DMLC_NUM_WORKER"),
        "local_size": Setting(local_size, "DMLC_NUM_WORKER"),
        "node_rank": node_rank,
    }


def _is_slurm_task(environ: Mapping[str, str]) -> bool:
    """Whether srun started this: a batch script sees the job's task count too, yet is no task itself."""
    step = environ.get("SLURM_STEP_ID", "")
    if not step:
        return "SLURM_JOB_ID" not in environ
    return not step.isdigit() or int(step) < _SLURM_SPECIAL_STEP


def _slurm_local_size(environ: Mapping[str, str]) -> Settings:
    """Tasks on this node. Slurm lists them by node, as in ``2(x3),1``; the request alone is less exact."""
    node = environ.get("SLURM_NODEID", "0")
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"):
        counts: list[str] = []
        for tasks, repeat in re.findall(r"(\d+)(?:\(x(\d+)\))?", environ.get(name, "")):
            counts += [tasks] * int(repeat or 1)
        if node.isdigit() and int(node) < len(counts):
            return {"local_size": _number("local_size", counts[int(node)], name)}
        if name == "SLURM_NTASKS_PER_NODE" and counts:
            return {"local_size": _number("local_size", counts[0], name)}
    return {}


def _number(field: str, text: str, name: str) -> Setting:
    return Setting(parse(FIELDS[field], text, name), name)
