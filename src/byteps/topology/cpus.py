"""Lists of CPUs as Linux writes them: ``0-3,8``."""

from __future__ import annotations

from collections.abc import Collection

from byteps.errors import ConfigError

Cpus = frozenset[int]

_MAX_CPU = 1 << 16


def parse_cpus(text: str, label: str) -> Cpus:
    """Read a list such as ``0-3,8``; empty text is an empty set.

    Args:
        text: the list.
        label: where it was given, for the error.

    Raises:
        ConfigError: it is no such list.
    """
    found: set[int] = set()
    for part in filter(None, (word.strip() for word in text.split(","))):
        first, _, last = part.partition("-")
        low, high = first.strip(), (last or first).strip()
        if not (low.isdecimal() and high.isdecimal() and int(low) <= int(high) < _MAX_CPU):
            raise ConfigError(f"{label} is {text!r}, but a list of CPUs is written like 0-3,8")
        found.update(range(int(low), int(high) + 1))
    return frozenset(found)


def format_cpus(cpus: Collection[int]) -> str:
    """Write a set as the kernel would: ``0-3,8``."""
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and parts[-1][1] == cpu - 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(f"{low}-{high}" if high > low else str(low) for low, high in parts)
