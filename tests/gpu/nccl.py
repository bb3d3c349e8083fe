"""Two workers, each with a GPU of its own, sum by NCCL within their node: ``python -m tests.gpu.nccl STORE``.

The argument is a file by which torch.distributed finds the ranks.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

import byteps.torch as bps
from byteps.adapters.current import current
from byteps.communicator.node_first import NodeFirst

from .checks import Outcome, report, training, values


def main() -> int:
    """Run the checks; exit code 1 if one does not hold."""
    rank, size = int(os.environ["BYTEPS_RANK"]), int(os.environ["BYTEPS_SIZE"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=size)
    bps.init(node_collectives="nccl", collective_bytes=1 << 20)
    first = current().communicator
    by = first.engine.name if isinstance(first, NodeFirst) and first.engine is not None else "nothing"
    outcomes = [Outcome("sums within the node", f"by {by}", "by nccl", by == "nccl"), values(), *training()]
    bps.shutdown()
    dist.destroy_process_group()
    return report(outcomes, rank == 0)


if __name__ == "__main__":
    sys.exit(main())
