"""``byteps run``: a whole job on this machine, with nothing to set."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from byteps.children import ChildRole, as_environment
from byteps.config import Config, child_environment, format_address
from byteps.diagnostics import count
from byteps.errors import ConfigError, remedy
from byteps.launch.horovodrun import add_horovodrun, as_horovod, settings_of
from byteps.launch.settings import IDENTITY, add_settings, given, resolve_given
from byteps.launch.supervisor import ROLE_GRACE_S, Supervisor
from byteps.network import loopback
from byteps.security import token_to_make
from byteps.topology import Pinning
from byteps.topology.picture import places as lines_of

_ADDRESSES = ("bind_host", "advertise_host", "interface")
_READY_TIMEOUT_S = 60.0
_TIMELINE_GRACE_S = 60.0  # a server writes its timeline when the job is over
_CORES_PER_SERVER = 8
_COORDINATOR_VARIABLES = ("BYTEPS_COORDINATOR", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT")
_CHATTY = ("trace", "debug", "info")


@dataclass(frozen=True, slots=True)
class Job:
    """What to run on this machine.

    Attributes:
        title: name of the command in messages.
        command: program and arguments of a worker.
        workers: how many.
        servers: how many.
        settings: settings for all processes, by field name.
        config: the settings as the launcher itself resolved them.
        as_horovod: whether workers find byteps under the name of Horovod.
    """

    title: str
    command: Sequence[str]
    workers: int
    servers: int
    settings: Mapping[str, object]
    config: Config
    as_horovod: bool = False


def add_run(parser: argparse.ArgumentParser) -> None:
    """Options of ``byteps run``."""
    parser.usage = "byteps run -np N [--servers S] [settings] [--] program [arguments ...]"
    parser.epilog = (
        "The first process that fails ends the job; its exit code is kept (128 + n for signal n).\n"
        "The others have 3 s to say whom they have lost; then they are stopped.\n"
        "Ctrl-C sends SIGTERM to the workers; what still runs after 10 s, or at a second Ctrl-C, is killed.\n"
        "SIGUSR1 (kill -USR1 PID of this command) has every process say what is in flight and where it is.\n"
        "Workers get no input. Progress bars work; PYTHONUNBUFFERED=1 is set so that lines come at once.\n\n"
        "examples:\n"
        "  byteps run -np 2 python train.py\n"
        "  byteps run -np 4 --servers 2 python train.py --lr 0.1\n"
        "  byteps run -np 2 --log-level info -- python -m mypackage.train\n"
        "  byteps run -np 2 --timeline run.json.gz python train.py   (then: byteps trace summary run.*)\n"
        "  byteps run -np 4 --extra-servers 1 --interface eth0 python train.py   (docs/running.md)\n"
        "  CUDA_VISIBLE_DEVICES=0,1 byteps run -np 2 python train.py    (the script chooses by local_rank())"
    )
    parser.add_argument(
        *("-np", "--np", "--num-proc"),
        dest="workers",
        type=_positive,
        required=True,
        metavar="N",
        help="number of workers",
    )
    parser.add_argument(
        "--as-horovod",
        action="store_true",
        help="`import horovod` finds byteps, in an unchanged script",
    )
    parser.add_argument(
        "--servers",
        type=_positive,
        metavar="S",
        help=f"number of servers (default: N, but at most 2 or one per {_CORES_PER_SERVER} cores; none with "
        "--communicator allreduce)",
    )
    add_settings(parser, without=IDENTITY)
    add_horovodrun(parser)
    parser.add_argument("program", nargs=argparse.REMAINDER, help="the training program and its arguments")
    parser.set_defaults(run=_run)


def _servers(wanted: int | None, workers: int, config: Config) -> int:
    """How many servers to start."""
    if config.communicator != "allreduce":
        return wanted or default_servers(workers)
    if wanted:
        raise ConfigError(f"--servers {wanted} contradicts communicator = allreduce, which has no servers")
    return 0


def _check_extra_servers(config: Config, options: Mapping[str, object]) -> None:
    """Servers elsewhere need an address; without such servers all is loopback."""
    chosen = [name for name in _ADDRESSES if getattr(config, name)]
    if not config.extra_servers:
        if given_ones := sorted(set(chosen) & set(options)):
            raise ConfigError(
                f"{', '.join(given_ones)}: a job on one machine talks over loopback; leave it out, or say "
                "with --extra-servers how many servers other machines run"
            )
        return
    if not chosen:
        raise ConfigError(
            "extra_servers needs --interface or --bind-host: where servers elsewhere reach this job"
        )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def _run(arguments: argparse.Namespace) -> int:
    settings = {**settings_of(arguments), **given(arguments)}
    resolved = resolve_given(arguments, **settings)
    _check_extra_servers(resolved.config, settings)
    job = Job(
        title="byteps run",
        command=program(arguments.program, "byteps run -np 2 python train.py"),
        workers=arguments.workers,
        servers=_servers(arguments.servers, arguments.workers, resolved.config),
        settings=settings,
        config=resolved.config,
        as_horovod=arguments.as_horovod,
    )
    return launch(job)


def program(words: Sequence[str], example: str) -> list[str]:
    """The worker's command line from the words that the user gave.

    Args:
        words: the words; a leading ``--`` is dropped, a Python file gets this interpreter in front.
        example: shown if there is no program.

    Raises:
        ConfigError: there is no program.
    """
    command = list(words[1:] if words[:1] == ["--"] else words)
    if not command:
        raise ConfigError(f"which program should the workers run? For example: {example}")
    return [sys.executable, *command] if command[0].endswith(".py") else command


def default_servers(workers: int, cores: int = 0) -> int:
    """How many servers keep ``workers`` workers on one machine busy without taking its cores from them.

    Args:
        workers: how many.
        cores: of the machine; 0: this one's.
    """
    return min(workers, max(2, (cores or _cores()) // _CORES_PER_SERVER))


def launch(job: Job) -> int:
    """Run a job on this machine until it has ended, and return its exit code.

    Raises:
        BytePSError: the coordinator could not be started.
    """
    shared = as_environment(job.settings)
    roles: list[ChildRole] = []
    # A server is ready when all workers have joined. Without servers, nobody can tell.
    supervisor = Supervisor(
        job.title,
        in_use=lambda: not job.servers or any(role.is_ready() for role in roles[1:]),
        role_grace_s=_TIMELINE_GRACE_S if job.config.timeline else ROLE_GRACE_S,
    )
    # One worker needs nobody to talk to.
    distributed = job.workers > 1 or job.config.force_distributed
    pinning = pinning_for(job.config, job.workers, job.servers if distributed else 0, supervisor)
    with supervisor.running():
        if distributed:
            if token := token_to_make(job.config):
                shared["BYTEPS_AUTH_TOKEN"] = token
            shared["BYTEPS_NUM_SERVERS"] = str(job.servers + job.config.extra_servers)
            shared["BYTEPS_COORDINATOR"] = _start_roles(job, supervisor, shared, roles, pinning)
        else:
            shared.update(dict.fromkeys(_COORDINATOR_VARIABLES, ""))
        environments = [
            {**shared, **worker_environment(rank, job.workers, rank, job.workers)}
            for rank in range(job.workers)
        ]
        if job.as_horovod:
            environments = [as_horovod(environment) for environment in environments]
        chatty = job.config.log_level in _CHATTY
        code = run_workers(supervisor, job.command, environments, pinning, chatty=chatty)
    for role in roles:
        role.wait()
    return code


def pinning_for(config: Config, workers: int, servers: int, supervisor: Supervisor) -> Pinning:
    """Which CPUs the processes of a job on this machine get; the supervisor warns, and says more if it is to.

    Raises:
        ConfigError: what the settings say cannot be had here.
    """
    pinning = Pinning.of(
        config, child_environment({}), workers, servers, lambda line: supervisor.say(f"warning: {line}")
    )
    for line in lines_of(pinning.plan) if config.log_level in _CHATTY else ():
        supervisor.say(line)
    return pinning


def _start_roles(
    job: Job, supervisor: Supervisor, shared: Mapping[str, str], roles: list[ChildRole], pinning: Pinning
) -> str:
    """Start coordinator and servers, append them to ``roles``, and return the coordinator's address."""
    here = loopback()
    extra = job.config.extra_servers
    addresses = {} if extra else {"bind_host": here, "advertise_host": here, "interface": ""}
    everywhere = {
        **shared,
        **as_environment(addresses),
        # Left over from a job around this one, these would contradict what is set here.
        **as_environment(dict.fromkeys(("local_rank", "local_size", "node_rank", "nodes"), "")),
    }

    def start(role: str, name: str, environment: Mapping[str, str], *options: str) -> ChildRole:
        with pinning.place(name):
            child = ChildRole(
                role, environment, options=options, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        supervisor.add(name, child.popen)
        roles.append(child)
        return child

    counts = {**everywhere, **as_environment({"rank": "", "size": job.workers})}
    coordinator = start("coordinator", "coordinator", counts, "--port", str(job.config.port))
    host, port = coordinator.wait_ready(_READY_TIMEOUT_S).split()
    address = format_address(host, int(port))
    if extra:
        supervisor.say(f"start {count(extra, 'more server')}: BYTEPS_COORDINATOR={address} byteps server")
    for number in range(job.servers):
        own = as_environment({"rank": number, "size": "", "coordinator": address})
        start("server", f"server {number}", {**everywhere, **own})
    return address


def worker_environment(rank: int, size: int, local_rank: int, local_size: int) -> dict[str, str]:
    """Variables that tell a worker which one it is; all nodes run ``local_size`` workers."""
    variables = as_environment(
        {
            "role": "worker",
            "rank": rank,
            "size": size,
            "local_rank": local_rank,
            "local_size": local_size,
            "node_rank": rank // local_size,
            "nodes": size // local_size,
        }
    )
    # Through a pipe Python would hold lines back until it has a block of them, and lose them in a crash.
    variables["PYTHONUNBUFFERED"] = child_environment({}).get("PYTHONUNBUFFERED") or "1"
    return variables


def run_workers(
    supervisor: Supervisor,
    command: Sequence[str],
    environments: Sequence[Mapping[str, str]],
    pinning: Pinning,
    *,
    chatty: bool,
) -> int:
    """Start one worker per environment and run the job to its end.

    Args:
        supervisor: of the job; its ``running()`` is in force.
        command: program and arguments.
        environments: each worker's variables, in the order of local ranks.
        pinning: where they run.
        chatty: say what was chosen.

    Returns:
        The job's exit code; 127 (not found) or 126 if the program cannot be started, as a shell has it.
    """
    places = [f"worker {local_rank}" for local_rank in range(len(environments))]
    defaults = [_thread_default(len(environments), len(pinning.cpus(place))) for place in places]
    if chatty and all(defaults):
        threads = sorted({each["OMP_NUM_THREADS"] for each in defaults})
        supervisor.say(f"OMP_NUM_THREADS={' or '.join(threads)} for each worker; set it to choose")
    for place, default, environment in zip(places, defaults, environments, strict=True):
        number = environment["BYTEPS_RANK"]
        try:
            with pinning.place(place):
                supervisor.start(f"worker {number}", command, {**default, **environment})
        except OSError as error:
            supervisor.say(f"cannot start {command[0]!r}: {error.strerror}{remedy(error)}")
            return 127 if isinstance(error, FileNotFoundError) else 126
    return supervisor.run()


def _thread_default(workers: int, pinned_to: int) -> dict[str, str]:
    """Each of several workers would start a thread per core; give each its share of the cores instead.

    Args:
        workers: how many.
        pinned_to: how many CPUs this one may use; 0: all.
    """
    if workers == 1 or "OMP_NUM_THREADS" in child_environment({}):
        return {}
    cores = _cores()
    return {"OMP_NUM_THREADS": str(max(1, min(cores // workers, pinned_to or cores)))}


def _cores() -> int:
    return len(os.sched_getaffinity(0))
