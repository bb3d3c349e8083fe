"""The command ``byteps doctor``."""

from __future__ import annotations

import argparse
import json
import socket
from collections.abc import Sequence

from byteps.config import Config, Resolved, resolve
from byteps.config.fields import FIELDS
from byteps.doctor import findings as report
from byteps.doctor.findings import Finding, Level, Pair, fail
from byteps.errors import ConfigError
from byteps.launch.settings import add_settings, given
from byteps.worker import uses_collectives

_EPILOG = """\
It looks at the installation, limits, clocks, settings, token, addresses and, if one is configured, the
coordinator. OK is fine, WARN works but perhaps not as meant, FAIL cannot work; each but OK comes with a line
of advice. The exit code is 0 when nothing failed, else 1.

To try every worker with every server as well, with latency and GB/s of each pair:
  - on one machine, let it start a short job:  --np N --servers S
  - on several, start it in place of the training script, with your launcher. A process that is told its rank,
    the number of workers and the coordinator takes part in that job; --local keeps it out.

examples:
  byteps doctor                                        this host
  byteps doctor --np 2 --servers 2                     ... and a job on it
  byteps doctor --np 2 --communicator allreduce        ... whose workers sum among themselves
  byteps run -np 2 byteps doctor                       the same, started by hand
  torchrun --nnodes 2 --nproc-per-node 1 --rdzv-endpoint HOST:PORT --rdzv-backend c10d -m byteps doctor
  srun -N 4 --ntasks-per-node 1 byteps doctor          with BYTEPS_COORDINATOR set and servers running
  byteps doctor --coordinator 10.0.0.1:PORT            can this host reach it, with this token?
  byteps doctor --json | jq '.findings[] | select(.level != "OK")'
"""


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Options of ``byteps doctor``."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "-np", "--np", dest="workers", type=int, default=0, metavar="N", help="try a job of N workers here"
    )
    parser.add_argument(
        "--servers",
        type=int,
        default=0,
        metavar="S",
        help="with S servers (default: as many as workers; none with --communicator allreduce)",
    )
    parser.add_argument("--local", action="store_true", help="look at this host only, join no job")
    parser.add_argument("--json", action="store_true", help="print one JSON object, on one line per rank")
    parser.add_argument("--only-pairs", action="store_true", help=argparse.SUPPRESS)
    add_settings(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    if min(arguments.workers, arguments.servers) < 0 or (arguments.servers and not arguments.workers):
        raise ConfigError("give --np N, at least 1, and with it perhaps --servers S, at least 1")
    resolved, found = _resolved(arguments)
    config = resolved.config
    joins = not found and not arguments.local and not arguments.workers and _is_worker(config)
    joins = joins or arguments.only_pairs
    if not arguments.only_pairs and (not joins or config.local_rank <= 0):
        found = [*_local(resolved, ask=not joins), *found]
    pairs: list[Pair] = []
    rank = config.rank
    if arguments.workers:
        from byteps.doctor.trial import try_job

        servers = arguments.servers or (0 if uses_collectives(config) else arguments.workers)
        more, pairs = try_job(arguments.workers, servers, given(arguments))
        found += more
    elif joins:
        from byteps.doctor.pairs import check_pairs

        more, pairs, rank = check_pairs(config, resolved.origins["join_timeout_s"] != "default")
        found += more
    if joins and rank > 0:
        found = [finding for finding in found if finding.level is not Level.OK]
        pairs = []
    _show(arguments, found, pairs, rank if joins else -1)
    return 1 if report.failed(found) else 0


def _resolved(arguments: argparse.Namespace) -> tuple[Resolved, list[Finding]]:
    """The settings; the defaults and a failure where they cannot be understood."""
    try:
        return resolve(cli=given(arguments)), []
    except ConfigError as error:
        advice = "correct it; the other checks were made with the defaults"
        return Resolved(Config(), dict.fromkeys(FIELDS, "default"), []), [
            fail("settings", str(error), advice)
        ]


def _is_worker(config: Config) -> bool:
    """Whether this process was started as a member of a job."""
    return config.rank >= 0 and config.size > 1 and bool(config.coordinator or config.launcher == "torchrun")


def _local(resolved: Resolved, *, ask: bool) -> list[Finding]:
    """What can be seen from this process alone; ``ask``: also of the coordinator."""
    from byteps.doctor.host import Clocks, check_host
    from byteps.doctor.installation import check_installation
    from byteps.doctor.rdma import check_rdma
    from byteps.doctor.settings import check_settings

    clocks = Clocks()
    found = [*check_installation(), *check_host(resolved.config), *check_rdma(resolved.config)]
    found += check_settings(resolved.config, resolved.warnings)
    if ask:
        from byteps.doctor.coordinator import check_coordinator

        found += check_coordinator(resolved.config)
    return [*found, clocks.check()]


def _show(arguments: argparse.Namespace, found: Sequence[Finding], pairs: Sequence[Pair], rank: int) -> None:
    """Print; ranks other than 0 speak only if something is wrong."""
    if rank > 0 and not found:
        return
    if arguments.json:
        print(
            json.dumps({"host": socket.gethostname(), "rank": rank, **report.as_json(found, pairs)}),
            flush=True,
        )
        return
    where = f"rank {rank} on {socket.gethostname()}: " if rank > 0 else ""
    text = [f"{where}{line}" for line in report.lines(found)]
    print("\n".join([*text, f"{where}{report.summary(found)}"]), flush=True)
