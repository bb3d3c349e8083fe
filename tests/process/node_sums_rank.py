"""A rank of ``test_hierarchy.py`` with a torch model, whose gradients are sums of its node by gloo first.

Its argument says whether rank 1 is to be lost on the way.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys

import torch
from torch import Tensor, nn

import byteps.torch as bps
from byteps.errors import PeerLost

STEPS, LOST_AT = 8, 4


def model() -> nn.Module:
    """The same on all ranks; of two weights that are summed in parts."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(300, 200), nn.Tanh(), nn.Linear(200, 100)).double()


def loss(network: nn.Module, rank: int, step: int) -> Tensor:
    """Of a rank's samples of a step."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    result: Tensor = network(torch.randn(4, 300, generator=generator, dtype=torch.float64)).square().mean()
    return result


def sgd(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)


def alone(size: int) -> nn.Module:
    """Trained by one process with all ranks' samples."""
    network = model()
    optimizer = sgd(network)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(size):
            (loss(network, rank, step) / size).backward()
        optimizer.step()
    return network


def train(is_lost: bool) -> nn.Module:
    network = model()
    optimizer = bps.DistributedOptimizer(sgd(network), network.named_parameters())
    for step in range(STEPS):
        if is_lost and step == LOST_AT and bps.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss(network, bps.rank(), step).backward()
        optimizer.step()
    return network


def main() -> None:
    """Prints a digest of the parameters, and how far they are from those of one process; or what was lost."""
    bps.init(node_collectives="gloo", collective_bytes=1 << 17)
    try:
        network = train(sys.argv[1] == "lost")
    except PeerLost as error:
        print("PeerLost", error, flush=True)
        sys.exit(1)
    pairs = zip(network.parameters(), alone(bps.size()).parameters(), strict=True)
    distance = max(float((one - other).abs().max()) for one, other in pairs)
    digest = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in network.parameters()))
    print(digest.hexdigest(), distance, flush=True)
    bps.shutdown()


if __name__ == "__main__":
    main()
