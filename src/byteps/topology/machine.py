"""A machine as far as pinning cares: nodes with their CPUs, GPUs, network cards. Kept as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

import msgspec

from byteps.errors import ConfigError
from byteps.topology.cpus import Cpus, parse_cpus

LOCAL_DISTANCE = 10
REMOTE_DISTANCE = 20
"""Distances that ACPI gives to a node itself, and to another where nothing is known."""


@dataclass(frozen=True, slots=True)
class Node:
    """A NUMA node.

    Attributes:
        number: As the kernel counts.
        threads: Its CPUs: the first hardware thread of each core, then the second ones in the same order, ...
            Empty for a node that has only memory.
        distances: To each node of the machine, in their order; empty if not known.
    """

    number: int
    threads: tuple[str, ...] = ()
    distances: tuple[int, ...] = ()

    def cores(self) -> Iterator[tuple[int, ...]]:
        """The hardware threads of each core."""
        columns = [sorted(parse_cpus(each, f"threads of node {self.number}")) for each in self.threads]
        for core in zip_longest(*columns):
            yield tuple(cpu for cpu in core if cpu is not None)

    def cpus(self) -> Cpus:
        """All of its CPUs."""
        return frozenset(cpu for core in self.cores() for cpu in core)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU; they are numbered in the order of their addresses, as CUDA numbers equal ones.

    Attributes:
        address: On the PCI bus.
        node: Its NUMA node; None if not known.
        uuid: NVIDIA's name for it, empty if not known.
    """

    address: str
    node: int | None = None
    uuid: str = ""


@dataclass(frozen=True, slots=True)
class Nic:
    """A network interface with hardware behind it.

    Attributes:
        name: Of the interface.
        node: Its NUMA node; None if not known.
        default: Whether the default route leads there.
    """

    name: str
    node: int | None = None
    default: bool = False


@dataclass(frozen=True, slots=True)
class Machine:
    """What a plan is made from.

    Attributes:
        title: Processor and architecture, for readers.
        nodes: By number.
        allowed: CPUs that this process may use: a container or ``taskset`` may take some away.
        gpus, nics: Its devices.
        problem: What could not be read, so that no plan can be made; empty if nothing.
    """

    title: str
    nodes: tuple[Node, ...]
    allowed: str
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    problem: str = ""

    def allowed_cpus(self) -> Cpus:
        """``allowed`` as a set."""
        return parse_cpus(self.allowed, "the machine's allowed CPUs")

    def distance(self, here: int, there: int) -> int:
        """From one node, by number, to another: 10 to itself, the more the farther."""
        numbers = [node.number for node in self.nodes]
        for node in self.nodes:
            if node.number == here and len(node.distances) == len(numbers) and there in numbers:
                return node.distances[numbers.index(there)]
        return LOCAL_DISTANCE if here == there else REMOTE_DISTANCE


def to_json(machine: Machine) -> str:
    """A description to keep; ``from_json`` reads it."""
    return msgspec.json.format(msgspec.json.encode(machine), indent=2).decode() + "\n"


def from_json(text: bytes, label: str) -> Machine:
    """A description that was kept.

    Args:
        text: JSON as ``to_json`` makes it.
        label: where it comes from, for the error.

    Raises:
        ConfigError: it is no description of a machine.
    """
    try:
        machine = msgspec.json.decode(text, type=Machine)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{label} describes no machine: {error}; `byteps topology --record FILE` writes such a file"
        ) from error
    machine.allowed_cpus()
    for node in machine.nodes:
        node.cpus()
    return machine
