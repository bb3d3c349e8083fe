"""What CUDA tensors are promised: right values, no disturbance, no allocation, equal training, fast copies.

Both workers run every check, as each sums over both; worker 0 measures and prints.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

import byteps.torch as bps
from byteps.dtypes import ReduceOp
from byteps.session import Session
from byteps.torch import staging
from byteps.torch.tensors import ELEMENT_TYPES, spec_of

from .one_device import wrong_sums

WORKERS = 2
LONGER_AT_MOST, STAGED_AT_LEAST, EQUAL_WITHIN = 1.03, 0.85, 1e-6
# A stream takes about so many kernels before launching waits.
KERNELS_S, MOST_KERNELS = 1.0, 900
REPEATS, WARM_STEPS, STEPS = 5, 5, 25
ELEMENTS = 16 << 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """One check."""

    name: str
    figure: str
    bound: str
    holds: bool


def main() -> int:
    """Run all checks; exit code 1 if one does not hold."""
    torch.cuda.set_device(0)
    bps.init()
    leads = bps.rank() == 0
    if leads:
        print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}, CUDA {torch.version.cuda}")
    outcomes = [values(), undisturbed(leads), *training(), staged(leads), summed_on_one_device(leads)]
    bps.shutdown()
    return report(outcomes, leads)


def report(outcomes: Sequence[Outcome], leads: bool) -> int:
    """Print what holds and what does not; the exit code."""
    for outcome in outcomes if leads else ():
        mark = "holds" if outcome.holds else "FAILS"
        print(f"{mark}  {outcome.name}: {outcome.figure} (bound: {outcome.bound})")
    return 0 if all(outcome.holds for outcome in outcomes) or not leads else 1


def values() -> Outcome:
    """Sums of small whole numbers, exact in every dtype, contiguous and not."""
    wrong = []
    for dtype in ELEMENT_TYPES:
        for length in (1, 1001, 300_003):
            every = [_whole_numbers(rank, length, dtype) for rank in range(WORKERS)]
            total = torch.stack([each.double() for each in every]).sum(0)
            expected = (total.clamp(0, 1) if dtype == torch.bool else total).to(dtype)
            mine = every[bps.rank()].cuda()
            strided = torch.empty(2 * length, dtype=dtype, device="cuda")[::2].copy_(mine)
            for kind, given in (("whole", mine), ("strided", strided)):
                name = f"{kind} {dtype} {length}"
                if not torch.equal(bps.push_pull(given, average=False, name=name).cpu(), expected):
                    wrong.append(name)
    return Outcome(
        "values of all dtypes", ", ".join(wrong) or f"{len(ELEMENT_TYPES)} dtypes right", "exact", not wrong
    )


def _whole_numbers(rank: int, length: int, dtype: torch.dtype) -> Tensor:
    numbers = torch.randint(0, 4, (length,), generator=torch.Generator().manual_seed(rank))
    return (numbers > 2).to(dtype) if dtype == torch.bool else numbers.to(dtype)


def undisturbed(leads: bool) -> Outcome:
    """How much longer kernels on a stream of their own take while tensors are summed."""
    factors = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    kernels = _Kernels(factors, 20)
    kernels.time_ms(lambda: None)
    each_s = kernels.time_ms(lambda: None) / 1000 / kernels.count
    kernels.count = min(MOST_KERNELS, max(20, int(KERNELS_S / each_s)))
    data = torch.ones(ELEMENTS, device="cuda")

    def sum_until_done() -> None:
        """Worker 0's first element says whether its kernels still run."""
        while True:
            data.fill_(1.0)
            data[0] = float(leads and not kernels.end.query())
            if bps.push_pull(data, average=False, name="beside kernels")[0].item() == 0.0:
                return

    ratios = []
    for _ in range(REPEATS + 1):
        alone = kernels.time_ms(lambda: None) if leads else 0.0
        bps.barrier()
        if leads:
            ratios.append(kernels.time_ms(sum_until_done) / alone)
        else:
            sum_until_done()
    ratio = statistics.median(ratios[1:]) if leads else 0.0  # the first one warms up
    return Outcome(
        "kernels beside push_pull, time over alone",
        f"{ratio:.3f}",
        f"<= {LONGER_AT_MOST}",
        ratio <= LONGER_AT_MOST,
    )


class _Kernels:
    """Matrix products on a stream of their own."""

    def __init__(self, factors: Tensor, count: int) -> None:
        self.count = count
        self.end = torch.cuda.Event(enable_timing=True)
        self._factors, self._product = factors, torch.empty_like(factors)
        self._stream = torch.cuda.Stream()

    def time_ms(self, beside: Callable[[], None]) -> float:
        """How long they take, while something else is done on this thread."""
        torch.cuda.synchronize()
        begin = torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self._stream):
            begin.record()
            for _ in range(self.count):
                torch.mm(self._factors, self._factors, out=self._product)
            self.end.record()
        beside()
        self.end.synchronize()
        return float(begin.elapsed_time(self.end))


def training() -> list[Outcome]:
    """Steps of a small network: equal to those of one process with both halves, and nothing is allocated."""
    torch.manual_seed(3)
    layers = [torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 2048), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(2048, 10)).cuda()
    reference = copy.deepcopy(model)
    parameters = list(model.named_parameters())
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05), named_parameters=parameters
    )
    before = (0, 0)
    for step in range(STEPS):
        if step == WARM_STEPS:
            torch.cuda.synchronize()
            before = _allocations()
        optimizer.zero_grad()
        _loss(model, step, bps.rank()).backward()
        optimizer.step()
    torch.cuda.synchronize()
    device, host = (after - first for after, first in zip(_allocations(), before, strict=True))
    plain = torch.optim.SGD(reference.parameters(), lr=0.05)
    for step in range(STEPS):
        plain.zero_grad()
        for rank in range(WORKERS):
            _loss(reference, step, rank).backward()
        for parameter in reference.parameters():
            assert parameter.grad is not None
            parameter.grad /= WORKERS
        plain.step()
    pairs = list(zip(model.parameters(), reference.parameters(), strict=True))
    apart = max(((one - other).abs().max() / other.abs().max()).item() for one, other in pairs)
    steps = f"{STEPS - WARM_STEPS} steps after warm-up"
    return [
        Outcome(
            "parameters beside one process", f"{apart:.1e} apart", f"{EQUAL_WITHIN:g}", apart <= EQUAL_WITHIN
        ),
        Outcome(
            f"allocations in {steps}", f"{device} on the device, {host} pinned", "none", device + host == 0
        ),
    ]


def _loss(model: torch.nn.Module, step: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(64, 512, generator=generator).cuda()
    loss: Tensor = model(inputs).square().mean()
    return loss


def _allocations() -> tuple[int, int]:
    """How often CUDA was asked for memory so far: on the device, and pinned on the host."""
    device, host = torch.cuda.memory_stats(), torch.cuda.host_memory_stats()
    return device["segment.all.allocated"], host["num_host_alloc"]


class _AtOnce:
    """A session whose rounds are over when they begin."""

    def submit(self, *arguments: object, priority: int) -> _AtOnce:
        return self

    def poll(self) -> bool:
        return True

    def wait(self) -> None:
        """There is nothing to wait for."""


def staged(leads: bool) -> Outcome:
    """To the host and back through ``staging``, beside plain copies to and from pinned memory."""
    bps.barrier()
    ratio = 1.0
    if leads:
        source = torch.ones(4 * ELEMENTS, device="cuda")
        host = torch.empty(source.shape, pin_memory=True)
        stager = staging.Stager(source.device)
        spec = spec_of(source, "staged", ReduceOp.SUM)
        session = cast(Session, _AtOnce())

        def plain() -> None:
            host.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            source.copy_(host, non_blocking=True)

        def through_staging() -> None:
            staging.start(session, spec, source, source, 0, stager).finish()

        times = [(_time_s(plain), _time_s(through_staging)) for _ in range(REPEATS + 2)][2:]
        ratio = statistics.median(one for one, _ in times) / statistics.median(other for _, other in times)
    bps.barrier()
    return Outcome(
        "staging, rate over plain pinned copies",
        f"{ratio:.2f}",
        f">= {STAGED_AT_LEAST}",
        ratio >= STAGED_AT_LEAST,
    )


def summed_on_one_device(leads: bool) -> Outcome:
    """What ranks of a node do on their GPUs, on this one, with threads for ranks."""
    bps.barrier()
    wrong = wrong_sums(torch.device("cuda", torch.cuda.current_device())) if leads else []
    bps.barrier()
    return Outcome("sums of nodes, on streams of their own", ", ".join(wrong) or "right", "exact", not wrong)


def _time_s(copy_once: Callable[[], None]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    copy_once()
    torch.cuda.synchronize()
    return time.perf_counter() - begin


if __name__ == "__main__":
    sys.exit(main())
