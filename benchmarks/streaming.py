"""Byteps workers for measurements on links: large tensors in flight, and an urgent one among them.

Started by ``Starter.byteps``. A request says how many tensors of how many bytes to push and pull, the moment
to begin (of the monotonic clock, which all processes of a machine share), and, if an urgent tensor is wanted,
how long after that to submit it. The answer says how long each took, and over how many connections to each
server tensors travel now.
"""

from __future__ import annotations

import time
from typing import Any

import torch

import byteps.torch as bps
from benchmarks.peers.answers import answer_requests, wait_until
from byteps.adapters.current import current
from byteps.communicator.parameter_server import ParameterServer

URGENT_BYTES = 64 << 10


def main() -> None:
    """One worker."""
    bps.init()
    tensors: dict[tuple[int, int], torch.Tensor] = {}
    urgent = torch.zeros(URGENT_BYTES // 4)

    def handle(request: dict[str, Any]) -> dict[str, float]:
        count, nbytes = request["tensors"], request["nbytes"]
        for number in range(count):
            tensors.setdefault((number, nbytes), torch.zeros(nbytes // 4))
        stream = {f"{number} {nbytes}": tensors[number, nbytes] for number in range(count)}
        for tensor in (urgent, *stream.values()):
            tensor.fill_(bps.rank() + 1)
        answer = exchange(request, stream, urgent)
        expected = bps.size() * (bps.size() + 1) / 2
        sent = (urgent, *stream.values()) if "urgent_s" in answer else stream.values()
        if not all(bool((tensor == expected).all()) for tensor in sent):
            raise RuntimeError(f"rank {bps.rank()}: a sum is wrong")
        return answer

    answer_requests(handle)
    bps.shutdown()


def exchange(
    request: dict[str, Any], stream: dict[str, torch.Tensor], urgent: torch.Tensor
) -> dict[str, float]:
    """Push and pull the stream, and the urgent tensor in the midst of it if one is wanted."""
    answer = {}
    wait_until(request["begin"])
    handles = [bps.push_pull_async_inplace(t, average=False, name=name) for name, t in stream.items()]
    if "urgent_after_s" in request:
        moment = request["begin"] + request["urgent_after_s"]
        wait_until(moment)
        if bps.poll(handles[-1]):
            raise RuntimeError("the stream was over before the urgent tensor")
        handle = bps.push_pull_async_inplace(urgent, average=False, name="urgent", priority=1)
        bps.synchronize(handle)
        answer["urgent_s"] = time.monotonic() - moment
    for handle in handles:
        bps.synchronize(handle)
    answer["stream_s"] = time.monotonic() - request["begin"]
    communicator = current().communicator
    return {
        **answer,
        "connections": communicator.connections if isinstance(communicator, ParameterServer) else 0,
    }


if __name__ == "__main__":
    main()
