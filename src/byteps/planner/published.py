"""The gains that BytePS published beside what the planner says, and the goodput that would explain them.

Published (BytePS's README): against Horovod with NCCL, on machines of 8 V100 with 20 Gbit/s TCP, batches of
64 in fp32: VGG16 +100 %, ResNet50 +44 %. Assumed here: as many CPU servers as machines; machines reduce
inside in no time; both use ``GOODPUT`` of their links; rings over all GPUs, in buckets of 64 MiB, Horovod's
fusion buffer; a GPU's speed as published.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from byteps.diagnostics import duration, table
from byteps.planner.cluster import Cluster, DataPath
from byteps.planner.profile import USUAL, shipped
from byteps.planner.systems import Rings, Servers

MACHINES = (2, 4, 8, 16, 32)
LINK_GBIT = 20.0
GPUS = 8
BATCH = 64
GOODPUT = 0.95
FUSION_BYTES = 64 << 20
LEAST_GOODPUT = 0.02
_HALVINGS = 14
_COLUMNS = ("machines", "all-reduce", "servers", "predicted", "explained by all-reduce at")


@dataclass(frozen=True, slots=True)
class Result:
    """A published gain.

    Args:
        model: Whose.
        gain: Speed over Horovod's, less 1.
    """

    model: str
    gain: float


PUBLISHED = (Result("vgg16", 1.0), Result("resnet50", 0.44))


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the planner says about one of them.

    Args:
        machines: How many.
        rings_s, servers_s: Time of a step with all-reduce and with servers, seconds.
        explaining: Share of the link that all-reduce would get if the published gain were this one's; 0 where
            none would do.
    """

    machines: int
    rings_s: float
    servers_s: float
    explaining: float

    @property
    def gain(self) -> float:
        """Speed over all-reduce, less 1."""
        return self.rings_s / self.servers_s - 1


def compare(result: Result, machines: int) -> Comparison:
    """Predict one."""
    profile, cluster = shipped(result.model, batch_size=BATCH), _cluster(machines, GOODPUT)
    # BytePS's framework plug-ins wait for all results before the next step.
    servers_s = Servers(machines).simulate(profile, cluster, DataPath(), crosses=False).step_s
    explaining = _explain(result, machines, (1 + result.gain) * servers_s)
    return Comparison(machines, rings(result, machines, GOODPUT), servers_s, explaining)


def rings(result: Result, machines: int, goodput: float) -> float:
    """Time of a step with all-reduce that gets this share of the link, seconds."""
    profile, path = shipped(result.model, batch_size=BATCH), DataPath(fusion_bytes=FUSION_BYTES)
    return Rings(scheduled=False).simulate(profile, _cluster(machines, goodput), path, crosses=False).step_s


def _cluster(machines: int, goodput: float) -> Cluster:
    return Cluster(
        workers=machines, servers=machines, link_gbit=LINK_GBIT, goodput=goodput, gpus=GPUS, colocated=False
    )


def _explain(result: Result, machines: int, wanted_s: float) -> float:
    """The goodput at which a step takes so long, by halving."""
    low, high = LEAST_GOODPUT, 1.0
    if not rings(result, machines, high) <= wanted_s <= rings(result, machines, low):
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        slow = rings(result, machines, middle) > wanted_s
        low, high = (middle, high) if slow else (low, middle)
    return high


def lines() -> Iterator[str]:
    """All of them, for people."""
    machines = f"machines of {GPUS} V100, {LINK_GBIT:g} Gbit/s TCP, batches of {BATCH}"
    yield f"Published: BytePS over Horovod with NCCL, {machines}."
    yield f"Assumed: as many CPU servers as machines; {100 * GOODPUT:.0f} % of a link for payload;"
    yield f"nothing lost inside a machine; rings over all GPUs in buckets of {FUSION_BYTES >> 20} MiB;"
    yield "each step waits for all results."
    for result in PUBLISHED:
        usual = USUAL[result.model]
        yield ""
        speed = f"{usual.rate:g} samples/s a GPU ({usual.origin})"
        yield f"{result.model}, {speed}; published: +{100 * result.gain:.0f} %"
        yield from table(_COLUMNS, [_row(compare(result, machines)) for machines in MACHINES])


def _row(found: Comparison) -> tuple[str, ...]:
    explaining = f"{LINK_GBIT * found.explaining:.1f} Gbit/s" if found.explaining else "none"
    times = duration(found.rings_s), duration(found.servers_s)
    return str(found.machines), *times, f"{100 * found.gain:+.0f} %", explaining
