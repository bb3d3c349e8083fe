"""A job of byteps or of a peer: processes whose workers do one exchange after the other when told."""

from __future__ import annotations

import json
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks.hosts import Process

ANSWER_S = 180.0
END_S = 30.0


@dataclass
class Job:
    """Processes of one system.

    Args:
        name: What is measured.
        workers: They take requests; see ``peers.answers``.
        servers: Processes that sum, if it has any.
        others: What else belongs to it and ends with it.
    """

    name: str
    workers: list[Process]
    servers: Sequence[Process] = ()
    others: Sequence[Process] = ()

    def begin(self, **request: Any) -> None:
        """Send a request to all workers."""
        for worker in self.workers:
            assert worker.stdin is not None
            print(json.dumps(request), file=worker.stdin, flush=True)

    def answers(self) -> list[Any]:
        """What the workers answer, by rank.

        Raises:
            RuntimeError: A worker has ended, or takes too long.
        """
        return [self._answer(rank) for rank in range(len(self.workers))]

    def ask(self, **request: Any) -> list[Any]:
        """A request to all workers and their answers, by rank."""
        self.begin(**request)
        return self.answers()

    def exchange_s(self, nbytes: int, repeats: int) -> list[float]:
        """How long each of some exchanges of a tensor took the slowest worker, seconds."""
        return [max(times) for times in zip(*self.ask(nbytes=nbytes, repeats=repeats), strict=True)]

    def worker_cpu_s(self) -> float:
        """CPU time that the workers have used so far, seconds."""
        return sum(cpu_seconds(process.pid) for process in self.workers)

    def server_cpu_s(self) -> float:
        """CPU time that the servers have used so far, seconds."""
        return sum(cpu_seconds(process.pid) for process in self.servers)

    def close(self) -> None:
        """Tell the workers to end and wait for all processes."""
        for worker in self.workers:
            assert worker.stdin is not None
            worker.stdin.close()
        for process in (*self.workers, *self.servers, *self.others):
            if process in self.others and process.stdin is not None:
                process.stdin.close()
            if process.wait(END_S) != 0:
                raise RuntimeError(f"a process of the {self.name} job ended with {process.returncode}")

    def _answer(self, rank: int) -> Any:
        pipe = self.workers[rank].stdout
        assert pipe is not None
        end = time.monotonic() + ANSWER_S
        while not select.select([pipe], [], [], 1.0)[0]:
            ended = [process.args for process in (*self.servers, *self.others) if process.poll() is not None]
            if ended:
                raise RuntimeError(f"{ended[0]!r} has ended; its output above says why")
            if time.monotonic() > end:
                raise RuntimeError(f"worker {rank} of the {self.name} job gave no answer in {ANSWER_S:.0f} s")
        line = pipe.readline()
        if not line:
            raise RuntimeError(f"worker {rank} of the {self.name} job has ended; its output above says why")
        return json.loads(line)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, seconds."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
