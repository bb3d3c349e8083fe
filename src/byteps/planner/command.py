"""The command ``byteps plan``."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from pathlib import Path

from byteps.diagnostics import duration, size, table
from byteps.errors import ConfigError
from byteps.planner import published
from byteps.planner.choices import Planner
from byteps.planner.cluster import Cluster, DataPath
from byteps.planner.page import page
from byteps.planner.planning import Plan, make_plan
from byteps.planner.profile import USUAL, Profile, load, scaled, shipped

STDOUT = "-"
_EPILOG = f"""\
A training step is simulated on a virtual clock, with the scheduler that byteps itself uses. Nothing is
measured on your network: give --goodput what iperf3 shows as a share of the link.

columns:
  step           time of a training step
  limit          what no order of sending could beat with these bytes and links
  computing      share of the step in which the workers compute: scaling efficiency
  samples/s      of all workers
  epoch, cost    with --samples; cost also needs prices

models: {", ".join(USUAL)}

examples:
  byteps plan --model vgg16 --workers 8 --link-gbit 20
  byteps plan --model bert_large --workers 16 --servers 8 --link-gbit 25 --html plan.html
  byteps plan --model resnet50 --workers 8 --gpus 8 --link-gbit 25 --samples 1281167 \\
      --worker-price 24.5 --server-price 1.6
  byteps profile python train.py && byteps plan --profile profile.json --workers 4 --link-gbit 10
  byteps plan --published             the figures that BytePS published, beside what this planner says
"""
# Name, type, default, help. Those without a default of their own take the one of the field of that name.
_MACHINES = (
    ("--workers", int, None, "machines that compute"),
    ("--servers", int, None, "CPU machines to be had, at most (as many as workers)"),
    ("--link-gbit", float, None, "a worker's link, Gbit/s each way"),
    ("--server-link-gbit", float, 0.0, "a CPU machine's link (as a worker's)"),
    ("--goodput", float, 0.95, "share of a link that is left for payload (0.95)"),
    ("--latency-us", float, 30.0, "one way through the network, microseconds (30)"),
    ("--sum-gbit", float, math.inf, "what a server can add up, Gbit/s (no limit)"),
    ("--gpus", int, 1, "GPUs of a worker machine, which share its link (1)"),
    ("--worker-price", float, 0.0, "of a worker machine for an hour"),
    ("--server-price", float, 0.0, "of a CPU machine for an hour"),
    ("--samples", float, 0.0, "samples of an epoch"),
)
_MODEL = (
    ("--batch-size", float, 0.0, "samples per step and GPU (what is usual, or was recorded)"),
    ("--samples-per-s", float, 0.0, "of one GPU without communication (a V100's, or as recorded)"),
    (
        "--compute-ms",
        float,
        0.0,
        "forward and backward pass without communication; in place of samples per s",
    ),
)
_SETTINGS = (
    ("--partition-bytes", int, DataPath().partition_bytes, "largest partition to start from (the default)"),
    ("--credit-bytes", int, 0, "bytes in flight to start from (automatic)"),
    ("--connections", int, 0, "per worker and server (as many as the link needs)"),
)


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Options of ``byteps plan``."""
    parser.epilog = _EPILOG
    parser.usage = "byteps plan (--model NAME | --profile FILE) --workers N --link-gbit G [options]"
    parser.add_argument("--model", metavar="NAME", help="a model that is shipped, see below")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="what `byteps profile` has recorded")
    for title, options in (("model", _MODEL), ("cluster", _MACHINES), ("settings", _SETTINGS)):
        group = parser.add_argument_group(title)
        for name, kind, default, text in options:
            group.add_argument(name, type=kind, default=default, metavar="N", help=text)
    apart = "no server runs on the workers' machines: only on CPU machines"
    parser.add_argument("--no-colocated", action="store_true", help=apart)
    as_json = "write JSON there; without FILE instead of the table"
    parser.add_argument("--json", nargs="?", const=STDOUT, metavar="FILE", help=as_json)
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with charts there")
    parser.add_argument(
        "--published", action="store_true", help="BytePS's published gains beside predicted ones"
    )
    parser.set_defaults(run=_plan)


def _plan(arguments: argparse.Namespace) -> int:
    if arguments.published:
        print("\n".join(published.lines()))
        return 0
    plan = make_plan(planner(arguments))
    if arguments.html:
        arguments.html.write_text(page(plan), encoding="utf-8")
    text = json.dumps(plan.report(), indent=2)
    if arguments.json not in (None, STDOUT):
        Path(arguments.json).write_text(text + "\n", encoding="utf-8")
    print(text if arguments.json == STDOUT else "\n".join(lines(plan)))
    return 0


def planner(arguments: argparse.Namespace) -> Planner:
    """What the options describe.

    Raises:
        ConfigError: They do not fit together, or describe what cannot be.
    """
    for name in ("workers", "link_gbit"):
        if getattr(arguments, name) is None:
            raise ConfigError(f"the cluster is not known: give --{name.replace('_', '-')}")
    cluster = Cluster(
        workers=arguments.workers,
        servers=max(arguments.workers, 0) if arguments.servers is None else arguments.servers,
        link_gbit=arguments.link_gbit,
        server_link_gbit=arguments.server_link_gbit,
        goodput=arguments.goodput,
        latency_s=arguments.latency_us / 1e6,
        sum_gbit=arguments.sum_gbit,
        gpus=arguments.gpus,
        colocated=not arguments.no_colocated,
        worker_price=arguments.worker_price,
        server_price=arguments.server_price,
    )
    if arguments.samples < 0:
        raise ConfigError(f"--samples {arguments.samples:g} must not be negative")
    names = ("partition_bytes", "credit_bytes", "connections")
    path = DataPath(**{name: getattr(arguments, name) for name in names})
    return Planner(model(arguments), cluster, path, arguments.samples)


def model(arguments: argparse.Namespace) -> Profile:
    """The model that the options describe.

    Raises:
        ConfigError: It is not known, or described twice.
    """
    if bool(arguments.model) == bool(arguments.profile):
        raise ConfigError(
            "give one of --model NAME, for a shipped model, and --profile FILE, for a recorded one"
        )
    if arguments.samples_per_s and arguments.compute_ms:
        raise ConfigError("--samples-per-s and --compute-ms say the same; give one of them")
    for name in ("batch_size", "samples_per_s", "compute_ms"):
        if not 0 <= getattr(arguments, name) < math.inf:
            raise ConfigError(f"--{name.replace('_', '-')} {getattr(arguments, name):g} must be positive")
    found = (
        load(arguments.profile) if arguments.profile else shipped(arguments.model, 0.0, arguments.batch_size)
    )
    batch = arguments.batch_size or found.batch_size
    compute_s = arguments.compute_ms / 1e3
    if arguments.samples_per_s:
        compute_s = batch / arguments.samples_per_s
    return scaled(found, compute_s, batch) if compute_s or batch != found.batch_size else found


def lines(plan: Plan) -> Iterator[str]:
    """The plan for people, line by line."""
    profile, cluster = plan.planner.profile, plan.planner.cluster
    computing = f"{duration(plan.compute_s)} of computing a step"
    yield f"{profile.name}: {size(profile.nbytes)} of gradients, {computing}"
    yield f"times: {profile.origin}; {profile.batch_size:g} samples per step and GPU"
    machines = f"{cluster.workers} workers" + (f" of {cluster.gpus} GPUs" if cluster.gpus > 1 else "")
    link = f"links of {cluster.link_gbit:g} Gbit/s, {100 * cluster.goodput:.0f} % of it for payload"
    yield f"{machines}, up to {cluster.servers} CPU servers, {link}"
    yield ""
    header = ["", "step", "limit", "computing", "samples/s"]
    epochs, costs = bool(plan.planner.samples_per_epoch), any(choice.epoch_cost for choice in plan.choices)
    rows = []
    for choice in plan.choices:
        times = [duration(choice.step_s), duration(choice.limit_s), f"{100 * choice.efficiency:.0f} %"]
        row = [choice.name, *times, f"{choice.samples_per_s:.0f}"]
        row += [f"{choice.epoch_s / 3600:.2f} h"] * epochs + [f"{choice.epoch_cost:.2f}"] * costs
        rows.append(row)
    yield from table([*header, *["epoch"] * epochs, *["cost"] * costs], rows)
    yield ""
    yield from plan.advice.words
