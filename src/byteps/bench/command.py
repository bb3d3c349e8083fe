"""The command ``byteps bench``."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from byteps.bench.options import PUSHPULL, TRAIN, add_pushpull, add_train
from byteps.bench.plan import PushPullPlan, TrainPlan, parse_dtypes, parse_sizes
from byteps.bench.report import check_target, hand_over, publish, read
from byteps.config import Config
from byteps.errors import BytePSError, ConfigError
from byteps.launch.settings import given, resolve_given

_EPILOG = """\
Both run inside a job that your launcher starts, on as many machines as you like, or start one on this machine
with --np. Rank 0 prints a table at the end, and how far it is on stderr meanwhile; --json is for programs.

examples:
  byteps bench pushpull --np 2 --servers 2             this machine: is byteps as fast as it should be?
  byteps run -np 2 byteps bench pushpull               the same, inside a job
  byteps bench train --np 2 --model resnet50           what does communication cost this training?

`byteps bench pushpull --help` and `byteps bench train --help` say what the columns mean.
"""


def add_bench(parser: argparse.ArgumentParser) -> None:
    """Options of ``byteps bench``."""
    parser.epilog = _EPILOG
    kinds = parser.add_subparsers(dest="bench", metavar="WHAT", title="what to measure", required=True)
    pushpull = _kind(kinds, "pushpull", "time push_pull over sizes and element types", PUSHPULL)
    add_pushpull(pushpull)
    pushpull.set_defaults(run=_pushpull)
    train = _kind(kinds, "train", "time training steps with and without communication", TRAIN)
    add_train(train)
    train.set_defaults(run=_train)


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
        # What has its default of "" or 0 is left out; no warm-up at all is a choice, too.
        chosen = [name for name in fields if name == "warmup" or getattr(plan, name)]
        options = [("--" + name.replace("_", "-"), str(getattr(plan, name))) for name in chosen]
        return _start(arguments, [word for option in options for word in option])

    def measured(config: Config) -> dict[str, Any] | None:
        if importlib.util.find_spec("torch") is None:
            raise ConfigError(
                "train runs torch modules, and torch is not installed here: pip install torch. "
                "`byteps bench pushpull` needs no framework"
            )
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
