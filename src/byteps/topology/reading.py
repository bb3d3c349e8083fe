"""Reads the description of this machine from /sys and /proc. Nothing is required: what is missing is said."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from byteps.errors import ConfigError
from byteps.topology.cpus import Cpus, format_cpus, parse_cpus
from byteps.topology.machine import Gpu, Machine, Nic, Node

_GPU_VENDORS = frozenset({"0x10de", "0x1002"})  # NVIDIA, AMD; others make the screens of servers
_GPU_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")  # display, 3D, other display, accelerator
_DEFAULT_DESTINATION = "00000000"


def read_machine(root: Path = Path("/")) -> Machine:
    """Describe this machine.

    Args:
        root: where ``sys`` and ``proc`` are.
    """
    allowed = frozenset(os.sched_getaffinity(0))
    try:
        nodes, problem = tuple(_nodes(root)), ""
    except (OSError, ValueError, ConfigError) as error:
        nodes, problem = (), f"the NUMA nodes cannot be read from /sys ({error})"
    return Machine(
        title=_title(root),
        nodes=nodes or (Node(0, (format_cpus(allowed),)),),
        allowed=format_cpus(allowed),
        gpus=tuple(sorted(_gpus(root), key=lambda gpu: gpu.address)),
        nics=tuple(sorted(_nics(root), key=lambda nic: nic.name)),
        problem=problem,
    )


def _nodes(root: Path) -> Iterator[Node]:
    folder = root / "sys/devices/system/node"
    numbers = sorted(
        int(found[1]) for name in os.listdir(folder) if (found := re.fullmatch(r"node(\d+)", name))
    )
    if not numbers:
        raise ConfigError(f"{folder} lists none")
    for number in numbers:
        cpus = parse_cpus(_line(folder / f"node{number}/cpulist"), f"node{number}/cpulist")
        distances = tuple(int(word) for word in _text(folder / f"node{number}/distance").split())
        yield Node(number, _threads(root, cpus), distances)


def _threads(root: Path, cpus: Cpus) -> tuple[str, ...]:
    """First, second, ... hardware threads of a node's cores."""
    cores = {tuple(sorted(_siblings(root, cpu) & cpus)) for cpu in cpus}
    depth = max(map(len, cores), default=0)
    return tuple(format_cpus([core[level] for core in cores if len(core) > level]) for level in range(depth))


def _siblings(root: Path, cpu: int) -> Cpus:
    path = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    return parse_cpus(_text(path), path.name) | {cpu}


def _gpus(root: Path) -> Iterator[Gpu]:
    # In a container this lists the GPUs that it was given, where /sys shows those of the whole machine.
    given = {path.name.lower(): path for path in _children(root / "proc/driver/nvidia/gpus")}
    for path in _children(root / "sys/bus/pci/devices"):
        vendor = _text(path / "vendor").strip()
        if vendor not in _GPU_VENDORS or not _text(path / "class").startswith(_GPU_CLASSES):
            continue
        if given and vendor == "0x10de" and path.name.lower() not in given:
            continue
        about = _text(given[path.name.lower()] / "information") if path.name.lower() in given else ""
        uuid = re.search(r"GPU UUID:\s*(\S+)", about)
        yield Gpu(path.name, _node_of(path), uuid[1] if uuid else "")


def _nics(root: Path) -> Iterator[Nic]:
    routes = [line.split() for line in _text(root / "proc/net/route").splitlines()[1:]]
    default = next((words[0] for words in routes if words[1:2] == [_DEFAULT_DESTINATION]), "")
    for path in _children(root / "sys/class/net"):
        if (path / "device").exists():
            yield Nic(path.name, _node_of(path / "device"), path.name == default)


def _node_of(device: Path) -> int | None:
    """The node of a device, or of the one that it hangs on."""
    with suppress(OSError, RuntimeError):
        device = device.resolve(strict=True)
    for folder in (device, *device.parents):
        number = _text(folder / "numa_node").strip()
        if number:
            return int(number) if number.isdecimal() else None
    return None


def _title(root: Path) -> str:
    model = re.search(r"^model name\s*:\s*(.+)$", _text(root / "proc/cpuinfo"), re.MULTILINE)
    return f"{model[1].strip()}, {os.uname().machine}" if model else os.uname().machine


def _children(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(folder.iterdir())
    return []


def _line(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()


def _text(path: Path) -> str:
    """What a file says; nothing if it cannot be read."""
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8")
    return ""
