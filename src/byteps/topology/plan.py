"""From a machine and what is to run there to a plan: which process on which CPUs. A pure function.

Each process belongs to a NUMA node: a worker to its GPU's, or to one that its share of the CPUs lies on; a
server to the nearest one to the network card that has room. It is pinned there if each process of the node
then still has as many CPUs as if nobody was pinned, else to the nearest nodes together that leave it so many,
else not at all. Memory follows: Linux takes it from the node of the thread that first writes to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from byteps.errors import ConfigError
from byteps.topology.cpus import Cpus, format_cpus, parse_cpus
from byteps.topology.machine import Machine
from byteps.topology.quotas import slices
from byteps.topology.room import Nodes, Rooms
from byteps.topology.wishes import Wishes


@dataclass(frozen=True, slots=True)
class Pin:
    """Where one process runs.

    Attributes:
        role: "worker 0", by local rank, or "server 1".
        cpus: A list such as ``0-3,8``; empty: it is not pinned.
        nodes: The NUMA nodes that these are on.
        why: In a few words.
    """

    role: str
    cpus: str
    nodes: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Where each process runs.

    Attributes:
        pins: Of all processes, workers first.
        why: In a sentence, if nobody is pinned; else empty.
        others: Where all other processes of the job run; empty: anywhere.
    """

    pins: tuple[Pin, ...]
    why: str = ""
    others: str = ""


def plan(machine: Machine, wishes: Wishes) -> Plan:
    """Decide which process runs where.

    Args:
        machine: its description.
        wishes: what is to run, and what the user has set.

    Raises:
        ConfigError: what is set cannot be had on this machine.
    """
    if not wishes.on:
        return _nobody(wishes, "pinning is switched off (numa_on)")
    usable = _usable(machine, wishes)
    made = _pin_all(machine, wishes, usable)
    if usable == machine.allowed_cpus():
        return made
    # Whoever is not pinned to a node is still kept off the CPUs that nobody is to use.
    rest = format_cpus(usable)
    pins = tuple(
        pin if pin.cpus else replace(pin, cpus=rest, why=f"kept off other CPUs; {pin.why}")
        for pin in made.pins
    )
    return Plan(pins, others=rest)


def _pin_all(machine: Machine, wishes: Wishes, usable: Cpus) -> Plan:
    cpus_of = {node.number: node.cpus() & usable for node in machine.nodes if node.cpus() & usable}
    if wishes.visible:
        return _as_told(wishes, usable, cpus_of)
    if wishes.node >= 0:
        if wishes.node not in cpus_of:
            raise ConfigError(
                f"numa_id is {wishes.node}, but the nodes with CPUs for this process are "
                f"{', '.join(map(str, cpus_of)) or 'not known'}"
            )
        pins = (_pin(name, cpus_of[wishes.node], cpus_of, "numa_id") for name in wishes.names())
        return Plan(tuple(pins))
    if wishes.default_quota or wishes.root_quota:
        return _by_quota(machine, wishes, usable, cpus_of)
    if machine.problem:
        return _nobody(wishes, machine.problem)
    if len(cpus_of) < 2:
        where = "there is one NUMA node" if len(machine.nodes) < 2 else "all usable CPUs are on one NUMA node"
        return _nobody(wishes, f"{where}, so no CPU is nearer to anything than another")
    return _by_nearness(machine, wishes, cpus_of)


def _usable(machine: Machine, wishes: Wishes) -> Cpus:
    usable = machine.allowed_cpus() - parse_cpus(wishes.blacklist, "cpu_blacklist")
    if not wishes.siblings:
        usable &= {core[0] for node in machine.nodes for core in node.cores()}
    if not usable:
        raise ConfigError(f"cpu_blacklist leaves no CPU: this process may use {machine.allowed}")
    return usable


def _nobody(wishes: Wishes, why: str) -> Plan:
    return Plan(tuple(Pin(name, "", (), why) for name in wishes.names()), f"no pinning: {why}")


def _pin(role: str, cpus: Cpus, cpus_of: dict[int, Cpus], why: str) -> Pin:
    return Pin(role, format_cpus(cpus), tuple(n for n, there in cpus_of.items() if cpus & there), why)


def _as_told(wishes: Wishes, usable: Cpus, cpus_of: dict[int, Cpus]) -> Plan:
    """A section for each worker; further ones are the servers'."""
    sections = [parse_cpus(part, "visible_cpu_cores") for part in wishes.visible.split(":")]
    if len(sections) < wishes.workers:
        raise ConfigError(f"visible_cpu_cores has {len(sections)} sections for {wishes.workers} workers")
    names = wishes.names()
    told = dict(zip(names, sections, strict=False))
    for name, cpus in told.items():
        if not cpus or cpus - usable:
            raise ConfigError(
                f"visible_cpu_cores has {format_cpus(cpus - usable) or 'no CPU'} for {name}, but this "
                f"process may use {format_cpus(usable)}"
            )
    return Plan(
        tuple(
            _pin(name, told[name], cpus_of, "visible_cpu_cores")
            if name in told
            else Pin(name, "", (), "visible_cpu_cores has no section for it")
            for name in names
        )
    )


def _by_quota(machine: Machine, wishes: Wishes, usable: Cpus, cpus_of: dict[int, Cpus]) -> Plan:
    """Cores for each worker alone, from its node on; what is left is for the servers together."""
    homes, _ = _homes(machine, wishes, cpus_of)
    taken = slices(machine, usable, homes, wishes)
    left = usable.difference(*taken)
    pins = [_pin(f"worker {n}", cpus, cpus_of, "its quota of cores") for n, cpus in enumerate(taken)]
    for n in range(wishes.servers):
        enough = len(left) >= wishes.servers
        why = "what the workers leave" if enough else "the workers leave too few CPUs"
        pins.append(_pin(f"server {n}", left if enough else frozenset(), cpus_of, why))
    return Plan(tuple(pins))


def _homes(machine: Machine, wishes: Wishes, cpus_of: dict[int, Cpus]) -> tuple[list[int], list[str]]:
    """The node that each worker belongs to, and why."""
    homes, whys = [], []
    # Without devices, worker n's home is where the middle of its part of all CPUs lies.
    nodes = [node for node, cpus in cpus_of.items() for _ in cpus]
    for n in range(wishes.workers):
        place = wishes.gpus[n % len(wishes.gpus)] if wishes.gpus else -1
        node = machine.gpus[place].node if place >= 0 else None
        if node is None:
            homes.append(nodes[(2 * n + 1) * len(nodes) // (2 * wishes.workers)])
            whys.append("its share of the CPUs is there")
        else:
            homes.append(node)
            whys.append(f"GPU {place} is there")
    return homes, whys


def _by_nearness(machine: Machine, wishes: Wishes, cpus_of: dict[int, Cpus]) -> Plan:
    homes, whys = _homes(machine, wishes, cpus_of)
    rooms = Rooms(
        machine, {node: len(cpus) for node, cpus in cpus_of.items()}, wishes.workers + wishes.servers
    )
    rooms.settle(homes)
    pins: list[tuple[str, Nodes, str]] = []
    for n, (home, why) in enumerate(zip(homes, whys, strict=True)):
        nodes = rooms.chosen[home]
        pins.append((f"worker {n}", nodes, why if nodes == {home} else rooms.why_not(home)))
    near, name = _nic(machine, wishes)
    for n in range(wishes.servers):
        found = rooms.add(near)
        if found is None:
            pins.append((f"server {n}", rooms.everything, "no node has room for it"))
        else:
            why = f"nearest to {name} with room" if name else "most room is there"
            pins.append((f"server {n}", frozenset({found}), why))
    if all(nodes == rooms.everything for _, nodes, _ in pins):
        return _nobody(wishes, pins[0][2])
    cpus = {nodes: frozenset(cpu for node in nodes for cpu in cpus_of[node]) for _, nodes, _ in pins}
    cpus[rooms.everything] = frozenset()
    return Plan(tuple(_pin(name, cpus[nodes], cpus_of, why) for name, nodes, why in pins))


def _nic(machine: Machine, wishes: Wishes) -> tuple[int | None, str]:
    """Node and name of the network card that servers should be near; None and nothing if not known."""
    named = [nic for nic in machine.nics if nic.name == wishes.interface]
    known = [nic for nic in named or machine.nics if nic.node is not None]
    first = next((nic for nic in known if nic.default), known[0] if known else None)
    return (None, "") if first is None else (first.node, first.name)
