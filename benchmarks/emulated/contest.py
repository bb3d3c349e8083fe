"""Systems that train on the same emulated hosts and take turns, so that the machine's mood hits all alike.

A result counts only if the parameters of every rank are bit by bit what they should be, and the counters of
every host's network interface show the bytes of the steps.
"""

from __future__ import annotations

import contextlib
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.cluster import Cluster
from benchmarks.emulated.places import ALL_REDUCE, HOSTS, WORKERS, Place, mode_of, place_of
from benchmarks.emulated.profiles import SCALE, Layer, Setting, layers
from benchmarks.jobs import Job
from benchmarks.starting import Starter
from byteps.planner import bounds

WORKER = "benchmarks.emulated.worker"
# Steps whose times do not count: queues fill, and byteps learns the order and the link's rate.
WARM_STEPS = 4
COMPUTE_STEPS = 10
COMPUTE_WARM_STEPS = 2
LEAD_S = 0.05
RING_REPEATS = 5
# The interface counts headers too, acknowledgements, heartbeats and what is sent again.
HEADERS = 1.05
# Horovod's default, at the emulation's scale. Paused ranks must not be taken for lost.
HOROVOD = {"HOROVOD_FUSION_THRESHOLD": str((128 << 20) // SCALE), "HOROVOD_GLOO_TIMEOUT_SECONDS": "3600"}


@dataclass
class Outcome:
    """What one system did with one setting.

    Args:
        share: How often the gradients' bytes should cross the busiest links.
        step_s: Time of a step, of each turn.
        nbytes: Bytes of a step at an interface over the gradients', the most of those hosts and directions.
        fewest: The same, the least.
        worker_cpu_s, server_cpu_s: CPU time of a step of all workers and of all servers, of each turn.
    """

    share: float
    step_s: list[float] = field(default_factory=list)
    nbytes: list[float] = field(default_factory=list)
    fewest: list[float] = field(default_factory=list)
    worker_cpu_s: list[float] = field(default_factory=list)
    server_cpu_s: list[float] = field(default_factory=list)

    def time_s(self) -> float:
        """The median turn."""
        return statistics.median(self.step_s)


@dataclass
class Trial:
    """All systems with one setting.

    Args:
        setting: What was emulated.
        layers: With computing times as they were measured.
        outcomes: By the job's name.
        ring: What gloo's own all_reduce of the model's bytes makes of the links' goodput; 0: not measured.
    """

    setting: Setting
    layers: list[Layer]
    outcomes: dict[str, Outcome]
    ring: float = 0.0

    @property
    def compute_s(self) -> float:
        """Time of a step without communication."""
        return sum(layer.forward_s + layer.backward_s for layer in self.layers)

    def limit_s(self, name: str) -> float:
        """Time that no order of sending could beat, for a system's bytes."""
        return bounds.limit_s(self.layers, self._costs(name))

    def fifo_s(self, name: str) -> float:
        """The same for sending first what is ready first."""
        return bounds.fifo_s(self.layers, self._costs(name))

    def _costs(self, name: str) -> list[float]:
        return bounds.costs(self.layers, self.outcomes[name].share, self.setting.goodput)


class Contest:
    """Jobs on one set of hosts.

    Args:
        cluster: The hosts: workers first, then as many for servers.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._workers = range(WORKERS)
        self._places: dict[str, Place] = {}
        self._gloo: Job | None = None
        self.jobs: dict[str, Job] = {}

    def start(self, name: str, kind: str = "", settings: Mapping[str, str] | None = None) -> None:
        """Start a job.

        Args:
            name: Its name; says where its servers are, see ``place_of``.
            kind: The worker's system; by default the name says it.
            settings: Variables of a byteps job.
        """
        kind = kind or mode_of(name)
        place = self._places[name] = place_of(name, kind)
        if kind in ALL_REDUCE:
            settings = {"BYTEPS_COMMUNICATOR": "allreduce", **(settings or {})}
        starter = Starter(self._cluster, self._workers, place.servers)
        if kind in ALL_REDUCE and self._gloo is None:
            self._gloo = starter.gloo()
        print(f"starting {name}", file=sys.stderr)
        if kind in ("ddp", "split"):
            job = starter.gloo(kind, WORKER)
        elif kind == "horovod":
            job = starter.horovod(WORKER, HOROVOD)
        else:
            job = starter.byteps(kind, WORKER, settings)
        self.jobs[name] = replace(job, name=name)

    def run(self, setting: Setting, turns: int, steps: int, names: Sequence[str] = ()) -> Trial:
        """Train a setting with some systems, by default all, by turns.

        Raises:
            RuntimeError: Parameters or counters are not what they should be: there is no result.
        """
        jobs = {name: job for name, job in self.jobs.items() if not names or name in names}
        self.shape(setting)
        for job in jobs.values():
            with awake(job):
                job.ask(do="prepare", profile=setting.profile, compute_s=setting.compute_s)
        outcomes = {name: Outcome(self._places[name].share) for name in jobs}
        first = next(iter(jobs.values()))
        computing_s = [self.compute_s(first)]
        for turn in range(turns):
            for name, job in jobs.items():
                with awake(job):
                    self._turn(job, setting, steps, outcomes[name])
                time_ms = 1e3 * outcomes[name].step_s[-1]
                print(f"{setting.title}: turn {turn + 1}, {name}: {time_ms:.0f} ms", file=sys.stderr)
        computing_s.append(self.compute_s(first))
        for job in jobs.values():
            with awake(job):
                if not all(job.ask(do="check")):
                    raise RuntimeError(f"{job.name}, {setting.title}: the parameters are wrong")
        return Trial(setting, layers(setting.profile, min(computing_s)), outcomes, self._ring(setting))

    def shape(self, setting: Setting) -> None:
        """Give every link the setting's rate."""
        for host in range(HOSTS):
            self._cluster.set_rate(host, setting.rate)

    def compute_s(self, job: Job) -> float:
        """Time of a step without communication: the mean of all ranks, which compute at the same time."""
        with awake(job):
            steps = COMPUTE_WARM_STEPS + COMPUTE_STEPS
            moments = job.ask(do="compute", steps=steps, begin=time.monotonic() + LEAD_S)
        times: list[float] = [(m[-1] - m[COMPUTE_WARM_STEPS]) / COMPUTE_STEPS for m in moments]
        return statistics.mean(times)

    def close(self) -> None:
        """End all jobs."""
        for job in [*self.jobs.values(), *([self._gloo] if self._gloo else [])]:
            resume(job)
            job.close()

    def _ring(self, setting: Setting) -> float:
        """See ``Trial.ring``; measured once one of the jobs sums by all-reduce."""
        if self._gloo is None:
            return 0.0
        model_bytes = sum(layer.nbytes for layer in layers(setting.profile, setting.compute_s))
        times_s = self._gloo.exchange_s(model_bytes, RING_REPEATS)
        return bounds.link_share(WORKERS, 0) * model_bytes / setting.goodput / statistics.median(times_s)

    def _turn(self, job: Job, setting: Setting, steps: int, outcome: Outcome) -> None:
        total = WARM_STEPS + steps
        place = self._places[job.name]
        counted, cpu_s = self._counters(place.busiest), (job.worker_cpu_s(), job.server_cpu_s())
        moments = job.ask(do="train", steps=total, begin=time.monotonic() + LEAD_S)
        outcome.step_s.append(max(m[-1] - m[WARM_STEPS] for m in moments) / steps)
        outcome.worker_cpu_s.append((job.worker_cpu_s() - cpu_s[0]) / total)
        outcome.server_cpu_s.append((job.server_cpu_s() - cpu_s[1]) / total)
        model_bytes = sum(layer.nbytes for layer in layers(setting.profile, setting.compute_s))
        after = self._counters(place.busiest)
        moved = [(new - old) / total / model_bytes for old, new in zip(counted, after, strict=True)]
        outcome.nbytes.append(max(moved))
        outcome.fewest.append(min(moved))
        # What a push phase gives back to only one rank comes on top in one direction or the other.
        most = 1.0 if job.name.startswith("serial-ps") else 0.0
        if not place.least <= min(moved) <= max(moved) <= HEADERS * (outcome.share + most):
            raise RuntimeError(
                f"{job.name}, {setting.title}: the interfaces counted {min(moved):.3f} to {max(moved):.3f} "
                f"times the gradients' bytes, not {outcome.share:g}"
            )

    def _counters(self, hosts: Sequence[int]) -> list[int]:
        """Bytes sent and received at hosts' interfaces."""
        return [count for host in hosts for count in self._cluster.nic_bytes(host)]


@contextlib.contextmanager
def awake(job: Job) -> Iterator[None]:
    """Horovod's idle ranks talk to each other all the time; so they are stopped when it is not their turn."""
    resume(job)
    yield
    if job.name == "horovod":
        _signal(job, signal.SIGSTOP)


def resume(job: Job) -> None:
    """Let a job go on that was stopped."""
    _signal(job, signal.SIGCONT)


def _signal(job: Job, number: signal.Signals) -> None:
    for worker in job.workers:
        worker.send_signal(number)
