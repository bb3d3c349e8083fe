"""Starts processes where a plan wants them. Needs no privilege: a process may always give up CPUs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from byteps.config import Config
from byteps.topology.cpus import Cpus, parse_cpus
from byteps.topology.plan import Plan, plan
from byteps.topology.reading import read_machine
from byteps.topology.wishes import Wishes, chosen_gpus


class Pinning:
    """A plan that is being carried out.

    Args:
        plan: Where processes go.
        warn: Told in a sentence, once, if the system does not allow it.
    """

    def __init__(self, plan: Plan, warn: Callable[[str], None]) -> None:
        self.plan = plan
        self._cpus = {pin.role: parse_cpus(pin.cpus, pin.role) for pin in plan.pins if pin.cpus}
        self._others = parse_cpus(plan.others, "others")
        self._warn: Callable[[str], None] | None = warn

    @classmethod
    def of(
        cls,
        config: Config,
        variables: Mapping[str, str],
        workers: int,
        servers: int,
        warn: Callable[[str], None],
    ) -> Pinning:
        """Plan for what is about to be started on this machine.

        Args:
            config: the settings.
            variables: the environment; it may hide GPUs.
            workers, servers: how many there will be.
            warn: see the class.

        Raises:
            ConfigError: what the settings say cannot be had here.
        """
        if not config.numa_on:
            return cls(Plan(()), warn)
        machine = read_machine()
        gpus = chosen_gpus(machine.gpus, variables)
        return cls(plan(machine, Wishes.of(config, machine, workers, servers, gpus)), warn)

    def cpus(self, role: str) -> Cpus:
        """What a process may use; empty if it is not pinned."""
        return self._cpus.get(role, self._others)

    @contextmanager
    def place(self, role: str) -> Iterator[None]:
        """A process that the body starts runs where the plan has it, with all its threads and children."""
        with pinned(self.cpus(role), self._refused):
            yield

    def _refused(self, error: OSError) -> None:
        if self._warn is not None:
            self._warn(f"processes are not pinned to CPUs: {error} (BYTEPS_NUMA_ON=0 ends this warning)")
        self._warn = None


@contextmanager
def pinned(cpus: Cpus, refused: Callable[[OSError], None]) -> Iterator[None]:
    """Keep this thread, and what it starts, on some CPUs while the body runs.

    A child takes over the CPUs of the thread that starts it, so nothing has to run between fork and exec.

    Args:
        cpus: which; none leaves everything as it is.
        refused: told why the system does not allow it; the body then runs unpinned.
    """
    before: Cpus = frozenset()
    if cpus:
        try:
            before = frozenset(os.sched_getaffinity(0))
            os.sched_setaffinity(0, cpus)
        except OSError as error:
            before = frozenset()
            refused(error)
    try:
        yield
    finally:
        if before:
            os.sched_setaffinity(0, before)
