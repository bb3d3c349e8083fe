"""So many cores for each worker alone, as BytePS's launcher gives them out."""

from __future__ import annotations

from collections.abc import Sequence

from byteps.errors import ConfigError
from byteps.topology.cpus import Cpus
from byteps.topology.machine import Machine
from byteps.topology.wishes import Wishes


def slices(machine: Machine, usable: Cpus, homes: Sequence[int], wishes: Wishes) -> list[Cpus]:
    """The CPUs of each worker.

    Args:
        machine: its description.
        usable: the CPUs that may be given out.
        homes: the node of each worker; when that has no core left, the nearest one gives.
        wishes: with the quotas. Without one for all workers each gets an equal part of the cores.

    Raises:
        ConfigError: there are not so many cores.
    """
    free = {
        node.number: [core for core in node.cores() if usable.intersection(core)] for node in machine.nodes
    }
    count = sum(map(len, free.values()))
    each = wishes.default_quota or max(1, count // max(1, len(homes)))
    wanted = [each] * len(homes)
    if wishes.root_quota and wanted:
        wanted[-1] = wishes.root_quota
    if sum(wanted) > count:
        raise ConfigError(
            f"numa_default_quota and numa_root_quota want {sum(wanted)} cores for {len(homes)} workers, but "
            f"there are {count}"
        )
    taken = []
    for home, quota in zip(homes, wanted, strict=True):
        cores: list[tuple[int, ...]] = []
        for node in sorted(free, key=lambda node: (machine.distance(home, node), node)):
            part = free[node][: quota - len(cores)]
            del free[node][: len(part)]
            cores += part
        taken.append(usable.intersection(cpu for core in cores for cpu in core))
    return taken
