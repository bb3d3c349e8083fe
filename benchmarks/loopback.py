"""Two workers and two servers on this machine, against gloo and a plain socket in the same two processes.

push_pull and gloo's all_reduce take turns, call by call, so that both see the same machine. The many-tensors
figure is the time per tensor when 1,000 are in flight, over one blocking round trip of the same size.
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed

import byteps.torch as bps
from benchmarks.common import Row, main, run_job, save_result

LARGE_BYTES = 64 << 20
SMALL_BYTES = 4 << 10
LARGE_PAIRS = 21
SMALL_PAIRS = 501
MANY_TENSORS = 1000
MANY_REPEATS = 15
ROUND_TRIPS = 1000
WARM_UP = 5


def measure() -> Sequence[Row]:
    """Run the job and set its medians against the bounds."""
    result = run_job("benchmarks.loopback")
    large, small = result["large"], result["small"]
    many_s, trip_s = statistics.median(result["many"]), statistics.median(result["trips"])
    return (
        Row("64 MiB push_pull", 1e3 * statistics.median(ours for ours, _ in large), unit="ms"),
        Row("64 MiB gloo all_reduce", 1e3 * statistics.median(gloo for _, gloo in large), unit="ms"),
        Row("64 MiB, push_pull / gloo", statistics.median(ours / gloo for ours, gloo in large), 1.5),
        Row("4 KiB push_pull", 1e6 * statistics.median(ours for ours, _ in small), unit="us"),
        Row("4 KiB gloo all_reduce", 1e6 * statistics.median(gloo for _, gloo in small), unit="us"),
        Row("4 KiB, push_pull / gloo", statistics.median(ours / gloo for ours, gloo in small), 1.0),
        Row("4 KiB socket round trip", 1e6 * trip_s, unit="us"),
        Row("4 KiB push_pull, 1,000 in flight", 1e6 * many_s / MANY_TENSORS, unit="us each"),
        Row("4 KiB, 1,000 in flight / round trip", many_s / MANY_TENSORS / trip_s, 3.0),
    )


def worker(folder: Path) -> None:
    """One of the two workers."""
    bps.init(hierarchical="off")
    meeting = f"file://{folder / 'gloo'}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=bps.rank(), world_size=bps.size())
    result = {
        "large": alternate(LARGE_BYTES, LARGE_PAIRS),
        "small": alternate(SMALL_BYTES, SMALL_PAIRS),
        "trips": round_trips(),
        "many": many_tensors(),
    }
    if bps.rank() == 0:
        save_result(folder, result)
    torch.distributed.destroy_process_group()
    bps.shutdown()


def timed(call: Callable[[], object]) -> float:
    """How long a call takes, seconds."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def alternate(nbytes: int, pairs: int) -> list[tuple[float, float]]:
    """Times of (push_pull, all_reduce) of fp32 tensors, in turns, seconds."""
    ours = torch.full((nbytes // 4,), float(bps.rank()))
    gloo = ours.clone()
    name = f"{nbytes} bytes"
    times = []
    for _ in range(WARM_UP + pairs):
        ours.fill_(bps.rank())
        gloo.fill_(bps.rank())
        ours_s = timed(lambda: bps.push_pull_inplace(ours, average=False, name=name))
        times.append((ours_s, timed(lambda: torch.distributed.all_reduce(gloo))))
        if not torch.equal(ours, gloo):
            raise RuntimeError(f"rank {bps.rank()}: push_pull and all_reduce of {name} give different sums")
    return times[WARM_UP:]


def many_tensors() -> list[float]:
    """Times from the first of 1,000 asynchronous calls until all are complete, seconds."""
    tensors = [torch.ones(SMALL_BYTES // 4) for _ in range(MANY_TENSORS)]

    def all_of_them() -> None:
        handles = [
            bps.push_pull_async_inplace(t, average=True, name=f"many {i}") for i, t in enumerate(tensors)
        ]
        for handle in handles:
            bps.synchronize(handle)

    times = []
    for _ in range(WARM_UP + MANY_REPEATS):
        torch.distributed.barrier()
        times.append(timed(all_of_them))
    if not all(torch.equal(tensor, torch.ones_like(tensor)) for tensor in tensors):
        raise RuntimeError("the average of ones is not one")
    return times[WARM_UP:]


def round_trips() -> list[float]:
    """Times of blocking 4 KiB round trips over one plain TCP connection between the two workers, seconds."""
    payload = bytes(SMALL_BYTES)
    with connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def exchange() -> None:
            if bps.rank() == 0:
                connection.sendall(payload)
            connection.recv(SMALL_BYTES, socket.MSG_WAITALL)
            if bps.rank() == 1:
                connection.sendall(payload)

        return [timed(exchange) for _ in range(WARM_UP + ROUND_TRIPS)][WARM_UP:]


def connect() -> socket.socket:
    """A TCP connection between the two workers; rank 0 listens and publishes the kernel's choice of port."""
    if bps.rank() == 0:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            bps.broadcast_object(listener.getsockname()[1], root_rank=0, name="port")
            return listener.accept()[0]
    port = bps.broadcast_object(None, root_rank=0, name="port")
    if not isinstance(port, int):
        raise TypeError(f"rank {bps.rank()} got {port!r} for a port")
    return socket.create_connection(("127.0.0.1", port))


if __name__ == "__main__":
    main("Loopback: 2 workers, 2 servers", measure, worker)
