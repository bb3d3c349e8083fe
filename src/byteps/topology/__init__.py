"""Which CPUs, NUMA nodes, GPUs and network cards a machine has, and which process should run where.

``machine`` describes a machine, ``reading`` reads the description from /sys, ``plan`` makes a plan from it (a
pure function), ``picture`` draws both, ``pinning`` carries a plan out.
"""

from __future__ import annotations

from byteps.topology.machine import Gpu, Machine, Nic, Node, from_json, to_json
from byteps.topology.picture import draw
from byteps.topology.pinning import Pinning, pinned
from byteps.topology.plan import Pin, Plan, plan
from byteps.topology.reading import read_machine
from byteps.topology.wishes import Wishes, chosen_gpus

__all__ = [
    "Gpu",
    "Machine",
    "Nic",
    "Node",
    "Pin",
    "Pinning",
    "Plan",
    "Wishes",
    "chosen_gpus",
    "draw",
    "from_json",
    "pinned",
    "plan",
    "read_machine",
    "to_json",
]
