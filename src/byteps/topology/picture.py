"""A machine and its plan as text: a box for each NUMA node, and a line for each kind of place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest

from byteps.diagnostics import count
from byteps.topology.cpus import format_cpus
from byteps.topology.machine import Machine, Node
from byteps.topology.plan import Pin, Plan

_LEAST_WIDTH = 28


def draw(machine: Machine, plan: Plan) -> str:
    """The picture, with a newline at its end.

    Args:
        machine: its description.
        plan: what was planned for it.
    """
    allowed = machine.allowed_cpus()
    cpus = sum(len(node.cpus()) for node in machine.nodes)
    lines = [machine.title, f"{count(cpus, 'CPU')} on {count(len(machine.nodes), 'NUMA node')}"]
    if len(allowed) < cpus:
        lines[-1] += f"; this process may use {len(allowed)}: {machine.allowed}"
    lines += ["", *_boxes([_inside(node, machine, plan) for node in machine.nodes])]
    nowhere = [f"GPU {number}" for number, gpu in enumerate(machine.gpus) if gpu.node is None]
    nowhere += [nic.name for nic in machine.nics if nic.node is None]
    if nowhere:
        lines.append(f"node not known: {', '.join(nowhere)}")
    return "\n".join([*lines, "", *places(plan)]) + "\n"


def _inside(node: Node, machine: Machine, plan: Plan) -> list[str]:
    """The lines in a node's box, its title first."""
    lines = [f"node {node.number}"]
    cores = sum(1 for _ in node.cores())
    cpus = node.cpus()
    lines.append(f"CPUs {format_cpus(cpus)} ({count(cores, 'core')})" if cpus else "memory only")
    usable = cpus & machine.allowed_cpus()
    if usable != cpus:
        lines.append(f"usable {format_cpus(usable) or 'none'}")
    gpus = [number for number, gpu in enumerate(machine.gpus) if gpu.node == node.number]
    if gpus:
        lines.append(f"GPU {format_cpus(gpus)}")
    nics = [nic.name + " (default route)" * nic.default for nic in machine.nics if nic.node == node.number]
    if nics:
        lines.append(f"NIC {', '.join(nics)}")
    here = [pin for pin in plan.pins if pin.cpus and pin.nodes == (node.number,)]
    return [*lines, *(f"> {words}" for words in _roles(here))]


def _boxes(insides: Sequence[Sequence[str]]) -> Iterator[str]:
    """Two boxes side by side."""
    width = max(_LEAST_WIDTH, *(len(line) for inside in insides for line in inside))
    for first in range(0, len(insides), 2):
        row = insides[first : first + 2]
        yield "  ".join(f"+- {inside[0]} {'-' * (width - len(inside[0]) - 1)}+" for inside in row)
        for cells in zip_longest(*(inside[1:] for inside in row), fillvalue=""):
            yield "  ".join(f"| {cell:<{width}} |" for cell in cells)
        yield "  ".join(f"+{'-' * (width + 2)}+" for _ in row)


def places(plan: Plan) -> Iterator[str]:
    """Lines that say who runs where, and why."""
    if plan.why:
        yield plan.why
        return
    for (cpus, why), group in groupby(plan.pins, key=lambda pin: (pin.cpus, _general(pin.why))):
        pins = list(group)
        where = f"node {format_cpus(pins[0].nodes)}, CPUs {cpus}" if cpus else "not pinned"
        yield f"{', '.join(_roles(pins))}: {where}: {why}"


def _general(why: str) -> str:
    """Workers of one node differ by their GPU only."""
    return "its GPU is there" if why.startswith("GPU ") else why


def _roles(pins: Sequence[Pin]) -> list[str]:
    """Such as ``worker 0-3``, ``server 1``."""
    found = []
    for kind in ("worker", "server"):
        numbers = [int(pin.role.split()[1]) for pin in pins if pin.role.startswith(kind)]
        if numbers:
            found.append(f"{kind} {format_cpus(numbers)}")
    return found
