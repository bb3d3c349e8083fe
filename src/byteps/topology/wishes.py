"""What is to run on a machine, and what the user wants of its CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from byteps.config import Config
from byteps.topology.machine import Gpu, Machine

_CHOICES = ("NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""Each narrows what the one before it left."""
_ALL = frozenset({"", "all"})


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a plan is for.

    Attributes:
        workers: How many on this machine.
        servers: How many beside them.
        gpus: The GPU of each worker by local rank, as places in ``Machine.gpus``, from the first one again if
            there are more workers; empty if they use none.
        interface: Network interface of the job; empty: the one that the default route leads to.
        on: Whether to pin at all.
        default_quota: Cores for each worker; 0: no quota.
        root_quota: Cores for the last worker; 0: as for the others.
        visible: CPUs of each process, such as ``0-3:4-7``: workers, then servers. Empty: chosen by the plan.
        blacklist: CPUs that nobody gets.
        node: NUMA node for everybody; -1: chosen by the plan.
        siblings: Whether a core's second hardware thread is used too.
    """

    workers: int
    servers: int = 0
    gpus: tuple[int, ...] = ()
    interface: str = ""
    on: bool = True
    default_quota: int = 0
    root_quota: int = 0
    visible: str = ""
    blacklist: str = ""
    node: int = -1
    siblings: bool = True

    @classmethod
    def of(
        cls, config: Config, machine: Machine, workers: int, servers: int, gpus: tuple[int, ...]
    ) -> Wishes:
        """What the settings say about ``workers`` workers and ``servers`` servers on a machine."""
        return cls(
            workers=workers,
            servers=servers,
            gpus=gpus if machine.gpus else (),
            interface=config.interface,
            on=config.numa_on,
            default_quota=config.numa_default_quota,
            root_quota=config.numa_root_quota,
            visible=config.visible_cpu_cores,
            blacklist="" if config.cpu_blacklist == "-1" else config.cpu_blacklist,
            node=config.numa_id,
            siblings=config.multithreaded_cpu,
        )

    def names(self) -> list[str]:
        """The processes, in the order of plans."""
        return [f"worker {n}" for n in range(self.workers)] + [f"server {n}" for n in range(self.servers)]


def chosen_gpus(gpus: tuple[Gpu, ...], variables: Mapping[str, str]) -> tuple[int, ...]:
    """The GPUs that programs will see, as places in ``gpus``, in their order.

    Args:
        gpus: of the machine.
        variables: the environment; what it hides is left out.
    """
    left = tuple(range(len(gpus)))
    for name in _CHOICES:
        words = [word.strip() for word in variables.get(name, "").split(",")]
        if not _ALL.issuperset(words):
            left = _narrow(left, words, gpus)
    return left


def _narrow(left: tuple[int, ...], words: list[str], gpus: tuple[Gpu, ...]) -> tuple[int, ...]:
    if words in (["none"], ["void"], ["-1"], ["NoDevFiles"]):
        return ()
    numbers = [int(word) for word in words if word.isdecimal()]
    if len(numbers) == len(words):
        # Numbers beyond the end were meant for a machine of which this container shows a part.
        return left if max(numbers) >= len(left) else tuple(left[number] for number in numbers)
    named = [place for word in words for place in left if word and gpus[place].uuid.startswith(word)]
    return tuple(named) if len(named) == len(words) else left
