"""The options of ``byteps bench pushpull`` and ``byteps bench train``, and the help that explains them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from byteps.launch.settings import IDENTITY, add_settings

MODELS = ("vgg16", "resnet50", "bert-base", "gpt2-small", "tiny")

PUSHPULL = """\
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

TRAIN = """\
Trains a real model on random data with DistributedOptimizer. Blocks of steps with and without communication
take turns in the same processes, so that the ratio holds although the machine may be shared. Learning is not
the point: without communication the ranks drift apart. "tiny" is a small network to try the command with.

examples:
  byteps bench train --np 2 --model resnet50
  torchrun --nproc-per-node 8 --no-python byteps bench train --model bert-base --batch-size 32
  byteps run -np 2 --servers 2 byteps bench train --model vgg16 --json result.json
"""


_ROUNDS = (
    ("--iterations", 1, 20, "rounds per size (20)"),
    ("--warmup", 0, 5, "rounds before them that do not count (5)"),
)
_STEPS = (
    ("--batch-size", 1, 0, "samples per step and worker (4 on a CPU, else by model)"),
    ("--sequence-length", 2, 128, "tokens per sample of text (128)"),
    ("--steps", 1, 10, "steps per block (10)"),
    ("--blocks", 1, 5, "blocks with, and without, communication (5)"),
    ("--warmup", 0, 3, "steps of each kind before (3)"),
)


def add_pushpull(parser: argparse.ArgumentParser) -> None:
    """Which rounds to time."""
    parser.usage = (
        "byteps bench pushpull [--np N [--servers S]] [--sizes SIZE ...] [--dtypes TYPE ...] [settings]"
    )
    sizes = "bytes: 64K, 4K:256M (times 4), 1M:16M:2 (times 2); 4K:256M is the default"
    parser.add_argument("--sizes", nargs="+", default=["4K:256M"], metavar="SIZE", help=sizes)
    dtypes = "float32 (the default), bfloat16, int8, ..."
    parser.add_argument("--dtypes", nargs="+", default=["float32"], metavar="TYPE", help=dtypes)
    _add_numbers(parser, _ROUNDS)
    rate = "a worker's link, Gbit/s each way"
    parser.add_argument("--link-gbit", type=_rate, default=0.0, metavar="G", help=rate)
    _add_common(parser)


def add_train(parser: argparse.ArgumentParser) -> None:
    """Which training to time."""
    parser.usage = "byteps bench train --model NAME [--np N [--servers S]] [--batch-size N] [settings]"
    parser.add_argument("--model", choices=MODELS, metavar="NAME", required=True, help=", ".join(MODELS))
    _add_numbers(parser, _STEPS)
    parser.add_argument("--device", default="", metavar="NAME", help="cpu or cuda; default: a GPU if any")
    _add_common(parser)


def _add_numbers(parser: argparse.ArgumentParser, numbers: Sequence[tuple[str, int, int, str]]) -> None:
    """Options that take a whole number: name, least, default, help."""
    for name, least, default, text in numbers:
        parser.add_argument(name, type=_at_least(least), default=default, metavar="N", help=text)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        *("-np", "--np"),
        dest="workers",
        type=_at_least(1),
        metavar="N",
        help="start a job of N workers on this machine",
    )
    parser.add_argument(
        "--servers", type=_at_least(1), metavar="S", help="with S servers (default: as `byteps run`)"
    )
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
