"""``bpslaunch``: BytePS's way to start, one call per machine and role, told apart by ``DMLC_*`` variables."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from byteps.children import as_environment
from byteps.config import Config, child_environment, resolve, visible_devices
from byteps.errors import ConfigError
from byteps.launch.entry import guarded
from byteps.launch.local import (
    Job,
    default_servers,
    launch,
    pinning_for,
    program,
    run_workers,
    worker_environment,
)
from byteps.launch.roles import run_coordinator, run_server_role
from byteps.launch.settings import IDENTITY, add_settings, given, resolve_given
from byteps.launch.supervisor import Supervisor

_TITLE = "bpslaunch"
_UNCOUNTED_DEVICES = ("all", "none", "void")

_DESCRIPTION = """\
Start this machine's part of a job as BytePS did. DMLC_ROLE says which part: worker, server or scheduler
(our word for the last is coordinator). A worker starts one process per entry of NVIDIA_VISIBLE_DEVICES,
else BYTEPS_LOCAL_SIZE processes, else one.
"""

_EXAMPLES = """\
variables, the same on all machines but for DMLC_ROLE and DMLC_WORKER_ID:
  DMLC_NUM_WORKER, DMLC_NUM_SERVER          how many machines of each kind
  DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT       where the scheduler listens; you choose the port
  DMLC_WORKER_ID                            0, 1, ... on the worker machines
  BYTEPS_AUTH_TOKEN_FILE                    the shared secret; without one only --insecure leaves loopback

examples:
  DMLC_ROLE=scheduler bpslaunch
  DMLC_ROLE=server bpslaunch
  DMLC_ROLE=worker DMLC_WORKER_ID=0 bpslaunch python train.py
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ``bpslaunch`` command.

    Args:
        argv: the arguments after the program's name; those of this process by default.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(
        prog=_TITLE,
        usage="bpslaunch [settings] [--] [program [arguments ...]]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    # The scheduler's port is DMLC_PS_ROOT_PORT.
    add_settings(parser, without=(*IDENTITY, "port"))
    parser.add_argument("program", nargs=argparse.REMAINDER, help="what a worker runs")
    arguments = parser.parse_args(argv)
    return guarded(_TITLE, lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    variables = child_environment({})
    config = resolve_given(arguments).config
    distributed = variables.get("DMLC_NUM_WORKER") != "1" or config.force_distributed
    _check(variables, distributed)
    if config.role == "worker":
        return _run_worker(arguments, _local_size(variables, config), distributed)
    if not distributed:
        print(f"{_TITLE}: one worker machine needs no {config.role}; nothing to do")
        return 0
    return run_server_role(config) if config.role == "server" else run_coordinator(config)


def _check(variables: Mapping[str, str], distributed: bool) -> None:
    """Name everything that is missing at once.

    Raises:
        ConfigError: a variable that this role needs is not set.
    """
    needed = ["DMLC_ROLE"]
    if distributed:
        needed += ["DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT"]
        if variables.get("DMLC_ROLE", "worker") == "worker":
            needed.append("DMLC_WORKER_ID")
    missing = [name for name in needed if not variables.get(name)]
    if missing:
        raise ConfigError(f"not set: {', '.join(missing)}; `{_TITLE} --help` says what each is")


def _local_size(variables: Mapping[str, str], config: Config) -> int:
    devices = variables.get("NVIDIA_VISIBLE_DEVICES", "").strip()
    if devices and devices not in _UNCOUNTED_DEVICES:
        return visible_devices(variables)
    return config.local_size or 1


def _run_worker(arguments: argparse.Namespace, local_size: int, distributed: bool) -> int:
    command = program(arguments.program, f"{_TITLE} python train.py")
    settings = given(arguments)
    config = resolve(cli={**settings, "role": "worker", "local_size": local_size}).config
    if not distributed:
        servers = config.num_servers or default_servers(local_size)
        return launch(Job(_TITLE, command, local_size, servers, settings, config))
    first = config.node_rank * local_size
    if local_size == 1:
        first = config.rank
    shared = as_environment(settings)
    environments = [
        {**shared, **worker_environment(first + local_rank, config.size, local_rank, local_size)}
        for local_rank in range(local_size)
    ]
    supervisor = Supervisor(_TITLE)
    pinning = pinning_for(config, local_size, 0, supervisor)
    with supervisor.running():
        return run_workers(
            supervisor, command, environments, pinning, chatty=config.log_level in ("debug", "info")
        )
