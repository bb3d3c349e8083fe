"""Jobs of byteps and of its peers: processes on hosts, with workers that do one exchange after the other when told."""

from __future__ import annotations

import json
import secrets
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil  # type: ignore[import-untyped]

from benchmarks.hosts import Hosts, Process
from benchmarks.peers.environments import python_of, raw_program

ANSWER_S = 180.0
END_S = 30.0
ADDRESS_SIGN = "BYTEPS_COORDINATOR="


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
        ready, _, _ = select.select([pipe], [], [], ANSWER_S)
        if not ready:
            raise RuntimeError(f"worker {rank} of the {self.name} job did not answer within {ANSWER_S:.0f} s")
        line = pipe.readline()
        if not line:
            raise RuntimeError(f"worker {rank} of the {self.name} job has ended; its output above says why")
        return json.loads(line)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, seconds."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


@dataclass(frozen=True)
class Starter:
    """Starts jobs that run their workers and servers on given hosts.

    Args:
        hosts: Where.
        workers: The host of each worker.
        servers: The host of each server.
    """

    hosts: Hosts
    workers: Sequence[int] = (0, 1)
    servers: Sequence[int] = (2, 3)

    def byteps(
        self,
        kind: str = "byteps",
        module: str = "benchmarks.peers.torch_worker",
        settings: Mapping[str, str] | None = None,
    ) -> Job:
        """Push_pull, or training with ``byteps-ddp``, or another module's workers; by default settings."""
        python = [sys.executable, "-m", "byteps"]
        token = {"BYTEPS_AUTH_TOKEN": secrets.token_hex(32), **(settings or {})}
        place = self.servers[0]
        counts = ["--num-workers", str(len(self.workers)), "--num-servers", str(len(self.servers))]
        words = [*python, "coordinator", "--bind-host", self.hosts.address(place), *counts]
        coordinator = self.hosts.run(place, words, token, stdout=subprocess.PIPE)
        address = {"BYTEPS_COORDINATOR": _line(coordinator).partition(ADDRESS_SIGN)[2], **token}
        servers = [self.hosts.run(host, [*python, "server"], address) for host in self.servers]
        command = [sys.executable, "-m", module, kind]
        return Job(kind, self._ranks(command, address), servers, [coordinator])

    def gloo(self, kind: str = "gloo") -> Job:
        """torch's all_reduce over gloo, or with ``ddp`` training under DistributedDataParallel."""
        meeting = f"tcp://{self.hosts.address(self.workers[0])}:{self.hosts.free_port(self.workers[0])}"
        command = [sys.executable, "-m", "benchmarks.peers.torch_worker", kind]
        return Job(kind, self._ranks(command, {"GLOO_SOCKET_IFNAME": self.hosts.interface}, [meeting]))

    def horovod(self) -> Job:
        """Horovod's allreduce over gloo."""
        python = [python_of("horovod"), "-m"]
        names = [f"host{rank}" for rank in range(len(self.workers))]
        meeting = self.hosts.run(
            self.workers[0],
            [*python, "benchmarks.peers.horovod_meeting", *names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        env = {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": self.hosts.address(self.workers[0]),
            "HOROVOD_GLOO_RENDEZVOUS_PORT": _line(meeting),
            "HOROVOD_GLOO_IFACE": self.hosts.interface,
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
        }
        return Job(
            "horovod", self._ranks([*python, "benchmarks.peers.torch_worker", "horovod"], env), (), [meeting]
        )

    def ps_lite(self) -> Job:
        """MXNet's ``dist_sync``: push and pull through ps-lite."""
        python = python_of("mxnet")
        place = self.servers[0]
        env = {
            "DMLC_PS_ROOT_URI": self.hosts.address(place),
            "DMLC_PS_ROOT_PORT": self.hosts.free_port(place),
            "DMLC_NUM_WORKER": str(len(self.workers)),
            "DMLC_NUM_SERVER": str(len(self.servers)),
            "DMLC_INTERFACE": self.hosts.interface,
            "OMP_NUM_THREADS": "1",
        }
        role = [python, "-c", "import mxnet"]
        scheduler = self.hosts.run(place, role, {**env, "DMLC_ROLE": "scheduler"})
        servers = [self.hosts.run(host, role, {**env, "DMLC_ROLE": "server"}) for host in self.servers]
        command = [python, "-m", "benchmarks.peers.mxnet_worker"]
        workers = self._ranks(command, {**env, "DMLC_ROLE": "worker"})
        return Job("ps-lite", workers, servers, [scheduler])

    def raw(self) -> Job:
        """Plain sockets that move the same bytes: the limit."""
        program = raw_program()
        servers = [
            self.hosts.run(
                host,
                [program, "server", self.hosts.address(host), str(len(self.workers))],
                stdout=subprocess.PIPE,
            )
            for host in self.servers
        ]
        places = [
            f"{self.hosts.address(host)}:{_line(server)}"
            for host, server in zip(self.servers, servers, strict=True)
        ]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        workers = [self.hosts.run(host, [program, "worker", *places], **pipes) for host in self.workers]
        return Job("raw", workers, servers)

    def _ranks(
        self, command: Sequence[str], env: Mapping[str, str], words: Sequence[str] = ()
    ) -> list[Process]:
        """One worker per rank, told its rank and size in the ways that the systems know."""
        size = str(len(self.workers))
        processes = []
        for number, host in enumerate(self.workers):
            rank = str(number)
            told = {
                "OMP_NUM_THREADS": "1",
                "BYTEPS_RANK": rank,
                "BYTEPS_SIZE": size,
                "HOROVOD_RANK": rank,
                "HOROVOD_SIZE": size,
                "HOROVOD_CROSS_RANK": rank,
                "HOROVOD_CROSS_SIZE": size,
                "HOROVOD_LOCAL_RANK": "0",
                "HOROVOD_LOCAL_SIZE": "1",
                "HOROVOD_HOSTNAME": f"host{rank}",
            }
            processes.append(
                self.hosts.run(
                    host,
                    [*command, rank, size, *words],
                    {**told, **env},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
        return processes


def _line(process: Process) -> str:
    """The first line that a process prints."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise RuntimeError(f"{process.args!r} has ended; its output above says why")
    return line
