"""``byteps topology``: draws this machine, or a recorded one, and says which process would run where."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from byteps.config import child_environment
from byteps.config.fields import FIELDS
from byteps.diagnostics import count
from byteps.errors import ConfigError
from byteps.launch.local import default_servers
from byteps.launch.settings import add_settings, resolve_given
from byteps.topology import Machine, Wishes, chosen_gpus, draw, from_json, plan, read_machine, to_json

_SETTINGS = (
    *("numa_on", "numa_default_quota", "numa_root_quota", "numa_id", "multithreaded_cpu"),
    *("visible_cpu_cores", "cpu_blacklist", "interface"),
)

_EXAMPLES = """\
examples:
  byteps topology                          this machine, and what `byteps run` would do on it
  byteps topology -np 4 --servers 0        what `bpslaunch` would do with four workers
  byteps topology --record machine.json    a description to keep, or to send to somebody
  byteps topology --from machine.json      the same picture elsewhere
"""


def add_topology(parser: argparse.ArgumentParser) -> None:
    """Options of ``byteps topology``."""
    parser.epilog = _EXAMPLES
    parser.add_argument(
        *("-np", "--np"),
        dest="workers",
        type=int,
        metavar="N",
        help="number of workers (default: one per GPU; without GPUs one per NUMA node)",
    )
    parser.add_argument(
        "--servers", type=int, metavar="S", help="number of servers (default: as `byteps run`)"
    )
    parser.add_argument(
        "--from", dest="source", metavar="FILE", help="a recorded machine instead of this one"
    )
    parser.add_argument("--record", metavar="FILE", help="write the machine's description to a file")
    parser.add_argument("--json", action="store_true", help="print machine and plan as one JSON object")
    add_settings(parser, without=[name for name in FIELDS if name not in _SETTINGS])
    parser.set_defaults(run=_show)


def _show(arguments: argparse.Namespace) -> int:
    config = resolve_given(arguments).config
    source = arguments.source
    machine = from_json(Path(source).read_bytes(), source) if source else read_machine()
    if arguments.record:
        Path(arguments.record).write_text(to_json(machine), encoding="utf-8")
    # What this process hides of its own GPUs says nothing about another machine's.
    gpus = chosen_gpus(machine.gpus, {} if source else child_environment({}))
    workers = _workers(machine, gpus) if arguments.workers is None else arguments.workers
    servers = arguments.servers
    if servers is None:
        servers = default_servers(workers, len(machine.allowed_cpus())) if workers > 1 else 0
    if min(workers, servers) < 0:
        raise ConfigError(f"{workers} workers and {servers} servers: neither can be below 0")
    made = plan(machine, Wishes.of(config, machine, workers, servers, gpus))
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode({"machine": machine, "plan": made}), indent=2).decode())
    else:
        print(f"{count(workers, 'worker')}, {count(servers, 'server')} on\n{draw(machine, made)}", end="")
    return 0


def _workers(machine: Machine, gpus: tuple[int, ...]) -> int:
    return len(gpus) or sum(bool(node.cpus() & machine.allowed_cpus()) for node in machine.nodes)
