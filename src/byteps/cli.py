"""The ``byteps`` command.

Each sub-command is a line in ``COMMANDS``; its module is imported when the command is used, so that
``byteps --help`` costs little more than starting Python.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from byteps.launch.entry import WRONG_USE_EXIT_CODE, guarded

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("byteps.launch.local:add_run", "train on this machine: coordinator, servers and N workers"),
    "server": ("byteps.launch.roles:add_server", "run one server of a job, in the foreground"),
    "coordinator": ("byteps.launch.roles:add_coordinator", "run a job's coordinator, in the foreground"),
    "doctor": (
        "byteps.doctor.command:add_doctor",
        "check this host, the settings and every pair of processes",
    ),
    "bench": ("byteps.bench.command:add_bench", "measure push_pull, or training, in a job of your own"),
    "trace": ("byteps.trace.command:add_trace", "join recorded timelines, or say where the time went"),
    "tune": ("byteps.tuning.command:add_tune", "show what a search for better sizes has tried and found"),
    "profile": (
        "byteps.planner.profiling:add_profile",
        "record the layers and times of a training script in this process",
    ),
    "plan": (
        "byteps.planner.command:add_plan",
        "say what a cluster would gain, and how many servers to rent",
    ),
    "topology": (
        "byteps.launch.topology:add_topology",
        "draw this machine's CPUs, GPUs and network cards, and say which process would run where",
    ),
    "config": ("byteps.launch.settings:add_config", "show the value of each setting and where it came from"),
}
"""Name of a sub-command: the function that adds its options to a parser, and one line of help."""

_DESCRIPTION = """\
byteps keeps the training processes of a job in step: workers push their gradients to CPU servers,
the servers sum them and send the sums back, the most urgent first.
"""

_EXAMPLES = """\
first steps:
  byteps run -np 2 python train.py        two workers on this machine, everything else started for you
  byteps run -np 2 --help                 what else `run` can do
  torchrun --nproc-per-node 2 train.py    works as it is; so does torchrun over several nodes

dedicated CPU servers, each command on the machine that it is for:
  export BYTEPS_AUTH_TOKEN_FILE=token     the same secret on all machines
  byteps coordinator --bind-host 10.0.0.1 --num-workers 2 --num-servers 2
  byteps server --coordinator 10.0.0.1:PORT        (the coordinator prints its port)
  BYTEPS_COORDINATOR=10.0.0.1:PORT BYTEPS_RANK=0 BYTEPS_SIZE=2 python train.py

what is set, and by what; and does it all work:
  byteps config
  byteps doctor --np 2 --servers 2

how fast is it, and where does the time go:
  byteps bench pushpull --np 2 --servers 2
  byteps run -np 2 --timeline run.json.gz python train.py
  byteps trace summary run.*.json.gz

could other sizes make it faster; a search while it trains:
  byteps run -np 2 --tune python train.py
  byteps tune report

what would a cluster gain, and how many servers are worth their price:
  byteps plan --model vgg16 --workers 8 --link-gbit 20
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ``byteps`` command.

    Args:
        argv: the arguments after the program's name; those of this process by default.

    Returns:
        The exit code.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    parser = _parser(words)
    arguments = parser.parse_args(words)
    if arguments.version:
        return _print_version()
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return WRONG_USE_EXIT_CODE
    return guarded(f"byteps {arguments.command}", lambda: int(arguments.run(arguments)))


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="byteps",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    # The options before a command take no values, so the first word that names a command is the command.
    chosen = next((word for word in words if word in COMMANDS), None)
    for name, (function, text) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if name == chosen:
            _load(function)(command)
    return parser


def _load(reference: str) -> Callable[[argparse.ArgumentParser], None]:
    """The function that ``module:name`` stands for."""
    from importlib import import_module

    module, _, name = reference.partition(":")
    function: Callable[[argparse.ArgumentParser], None] = getattr(import_module(module), name)
    return function


def _print_version() -> int:
    # Imported here because it is slow and only this needs it.
    from importlib.metadata import version

    print(f"byteps {version('byteps')}")
    return 0
