"""The command ``byteps bench``."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from byteps.bench.plan import PushPullPlan, TrainPlan, parse_dtypes, parse_sizes
from byteps.bench.report import check_target, hand_over, publish, read
from byteps.config import Config
from byteps.errors import BytePSError, ConfigError
from byteps.launch.settings import IDENTITY, add_settings, given, resolve_given

MODELS = ("vgg16", "resnet50", "bert-base", "gpt2-small", "tiny")

_EPILOG = """\
Both run inside a job that your launcher starts, on as many machines as you like, or start one on this machine
with --np. Rank 0 prints a table at the end, and how far it is on stderr meanwhile; --json is for programs.

examples:
  byteps bench pushpull --np 2 --servers 2             this machine: is byteps as fast as it should be?
  byteps run -np 2 byteps bench pushpull               the same, inside a job
  byteps bench train --np 2 --model resnet50           what does communication cost this training?

`byteps bench pushpull --help` and `byteps bench train --help` say what the columns mean.
"""

_PUSHPULL = """\
Every rank submits a numpy array of each size and waits for the sum. The sums are checked. It needs no torch.

columns:
  median, p95       time of one push_pull, on the slowest rank
  GB/s              size / median: what each worker sends and, at the same time, receives
  of limit          bytes on the wire, by byteps's own counters, over what the link can carry: --link-gbit if
                    you give it, else the fastest row of this run (then it shows which sizes are too small)
  server CPU s/GB   CPU seconds of the servers per GB that reached them. Known for servers on the workers'
                    hosts, whose processes can be seen; "-" where all are elsewhere

Servers share the work: with S dedicated servers for N > S workers, their links are full at S/N of the limit.

examples:
  byteps bench pushpull --np 2 --servers 2
  byteps bench pushpull --np 2 --sizes 64K:16M:2 --dtypes float32,float16,bfloat16
  torchrun --nnodes 2 --nproc-per-node 1 --rdzv-endpoint HOST:PORT --rdzv-backend c10d \\
      --no-python byteps bench pushpull --link-gbit 25 --json result.json
  BYTEPS_COORDINATOR=10.0.0.1:PORT srun -N 4 --ntasks-per-node 1 byteps bench pushpull --link-gbit 100
  byteps bench pushpull --np 2 --scheduling fifo       any setting can be compared
"""

_TRAIN = """\
Trains a real model on random data with DistributedOptimizer. Blocks of steps with and without communication
take turns in the same processes, so that the ratio holds although the machine may be shared. Learning is not
the point: without communication the ranks drift apart. "tiny" is a small network to try the command with.

examples:
  byteps bench train --np 2 --model resnet50
  torchrun --nproc-per-node 8 --no-python byteps bench train --model bert-base --batch-size 32
  byteps run -np 2 --servers 2 byteps bench train --model vgg16 --json result.json
"""


def add_bench(parser: argparse.ArgumentParser) -> None:
    """Options of ``byteps bench``."""
    parser.epilog = _EPILOG
    kinds = parser.add_subparsers(dest="bench", metavar="WHAT", title="what to measure", required=True)
    _add_pushpull(_kind(kinds, "pushpull", "time push_pull over sizes and element types", _PUSHPULL))
    _add_train(_kind(kinds, "train", "time training steps with and without communication", _TRAIN))


def _kind(kinds: Any, name: str, text: str, epilog: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = kinds.add_parser(
        name,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    return parser


def _add_pushpull(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sizes",
        nargs="+",
        default=["4K:256M"],
        metavar="SIZE",
        help="bytes: 64K, 4K:256M (times 4), 1M:16M:2 (times 2); default 4K:256M",
    )
    parser.add_argument(
        "--dtypes", nargs="+", default=["float32"], metavar="TYPE", help="such as float32,bfloat16,int8"
    )
    parser.add_argument("--iterations", type=_at_least(1), default=20, metavar="N", help="rounds per size")
    parser.add_argument(
        "--warmup", type=_at_least(0), default=5, metavar="N", help="rounds before them that do not count"
    )
    parser.add_argument(
        "--link-gbit", type=_rate, default=0.0, metavar="G", help="a worker's link, Gbit/s each way"
    )
    _add_common(parser)
    parser.set_defaults(run=_pushpull)


def _add_train(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", choices=MODELS, required=True, help="what to train")
    parser.add_argument(
        "--batch-size", type=_at_least(1), default=0, metavar="N", help="samples per step and worker"
    )
    parser.add_argument(
        "--sequence-length", type=_at_least(2), default=128, metavar="N", help="tokens per sample, if text"
    )
    parser.add_argument("--steps", type=_at_least(1), default=10, metavar="N", help="steps per block")
    parser.add_argument(
        "--blocks", type=_at_least(1), default=5, metavar="N", help="blocks with, and blocks without"
    )
    parser.add_argument("--warmup", type=_at_least(0), default=3, metavar="N", help="steps of each before")
    parser.add_argument("--device", default="", metavar="NAME", help="cpu or cuda; default: a GPU if any")
    _add_common(parser)
    parser.set_defaults(run=_train)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        *("-np", "--np"),
        dest="workers",
        type=_at_least(1),
        metavar="N",
        help="start a job of N workers on this machine",
    )
    parser.add_argument("--servers", type=_at_least(1), metavar="S", help="with S servers")
    parser.add_argument(
        "--json",
        nargs="?",
        const="-",
        metavar="FILE",
        help="write JSON there; without FILE instead of the table",
    )
    # Where the process that started this job waits for the report.
    parser.add_argument("--hand-over", help=argparse.SUPPRESS)
    add_settings(parser, without=IDENTITY - {"coordinator"})


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least {least}")
        return int(text)

    return number


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a rate in Gbit/s")
    return rate


def _pushpull(arguments: argparse.Namespace) -> int:
    plan = PushPullPlan(
        sizes=parse_sizes(arguments.sizes),
        dtypes=parse_dtypes(arguments.dtypes),
        iterations=arguments.iterations,
        warmup=arguments.warmup,
        link_gbit=arguments.link_gbit,
    )
    words = ["--sizes", *map(str, plan.sizes), "--dtypes", *(dtype.name.lower() for dtype in plan.dtypes)]
    words += ["--iterations", str(plan.iterations), "--warmup", str(plan.warmup)]
    words += ["--link-gbit", str(plan.link_gbit)] if plan.link_gbit else []
    if arguments.workers:
        return _start(arguments, words)

    def measured(config: Config) -> dict[str, Any] | None:
        from byteps.bench.membership import member
        from byteps.bench.pushpull import measure

        with member(config, "byteps run -np 2 byteps bench pushpull") as me:
            report = measure(me, plan)
            return report if me.session.rank == 0 else None

    return _take_part(arguments, measured)


def _train(arguments: argparse.Namespace) -> int:
    fields = [field.name for field in dataclasses.fields(TrainPlan)]
    plan = TrainPlan(**{name: getattr(arguments, name) for name in fields})
    if arguments.workers:
        chosen = {name: str(getattr(plan, name)) for name in fields if getattr(plan, name) not in ("", 0)}
        # Zero steps of warm-up are a choice, too.
        chosen["warmup"] = str(plan.warmup)
        return _start(
            arguments, [word for n, text in chosen.items() for word in ("--" + n.replace("_", "-"), text)]
        )

    def measured(config: Config) -> dict[str, Any] | None:
        from byteps.bench.membership import member
        from byteps.bench.training import measure

        with member(config, f"byteps run -np 2 byteps bench train --model {plan.model}") as me:
            report = measure(me, plan)
            return report if me.session.rank == 0 else None

    return _take_part(arguments, measured)


def _take_part(arguments: argparse.Namespace, measured: Callable[[Config], dict[str, Any] | None]) -> int:
    """Be a worker; rank 0 has a report at the end."""
    if arguments.servers:
        raise ConfigError("--servers says how many to start; give --np as well, or leave it to your launcher")
    config = resolve_given(arguments).config
    if config.rank <= 0 and not arguments.hand_over:
        check_target(arguments.json)
    report = measured(config)
    if report is not None and arguments.hand_over:
        hand_over(report, Path(arguments.hand_over))
    elif report is not None:
        publish(report, arguments.json)
    return 0


def _start(arguments: argparse.Namespace, words: Sequence[str]) -> int:
    """Start a job on this machine whose workers are this command, and publish what it found."""
    from byteps.launch.local import Job, default_servers, launch

    check_target(arguments.json)
    # One worker and its servers are a job, too.
    settings = {**given(arguments), "force_distributed": True}
    config = dataclasses.replace(resolve_given(arguments).config, force_distributed=True)
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "report.json"
        command = [
            sys.executable,
            "-m",
            "byteps",
            "bench",
            arguments.bench,
            *words,
            "--hand-over",
            str(found),
        ]
        servers = arguments.servers or default_servers(arguments.workers)
        code = launch(Job("byteps bench", command, arguments.workers, servers, settings, config))
        report = read(found)
    if code != 0:
        return code
    if report is None:
        raise BytePSError("the job ended in order, but rank 0 left no report; its output above says more")
    publish(report, arguments.json)
    return 0
