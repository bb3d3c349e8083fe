"""Every worker with every server: this process joins the job, and the ranks measure one after the other.

While one rank measures, the others have sent their (empty) part before, so that each time is the time of one
pair alone.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from byteps.communicator import Engine
from byteps.communicator.parameter_server import ParameterServer
from byteps.config import Config
from byteps.diagnostics import count
from byteps.doctor.findings import Finding, Pair, fail, ok, warn
from byteps.doctor.rings import check_rings
from byteps.doctor.rounds import Array, buffer, clock_skew_s, summed
from byteps.dtypes import GRAIN_BYTES, DType, ReduceOp
from byteps.errors import BytePSError
from byteps.joining import connect
from byteps.launch.discovery import find_job
from byteps.session import Session
from byteps.wire import TensorSpec, Welcome
from byteps.worker import Linker, SocketLinker, uses_collectives

_JOIN_TIMEOUT_S = 30.0
_CONNECT_TIMEOUT_S = 5.0
_LATENCY_ROUNDS = 10
_BURSTS, _BURST_TENSORS = 3, 128
_SKEW_S = 1.0
_SLOW_SHARE = 1 / 3


class Unreachable(BytePSError):
    """Servers that this worker cannot connect to.

    Attributes:
        failures: what went wrong, by server.
    """

    def __init__(self, rank: int, failures: dict[int, str]) -> None:
        super().__init__("; ".join(failures.values()))
        self.rank = rank
        self.failures = failures


def check_pairs(config: Config, given: bool) -> tuple[list[Finding], list[Pair], int]:
    """Join the job and measure.

    Args:
        config: of a worker of the job.
        given: whether the user chose ``join_timeout_s``; else a job that is not complete is given up soon.

    Returns:
        Findings, the speed of each pair, and this process's rank. The pairs are on all ranks the same.
    """
    if not given:
        config = dataclasses.replace(config, join_timeout_s=_JOIN_TIMEOUT_S)
    undo: Callable[[], None] = lambda: None  # noqa: E731
    try:
        config, undo = find_job(config)
        config = dataclasses.replace(config, hierarchical="off")  # to try servers, not neighbours
        session = connect(config, _linker, engine=_engine(config))
    except Unreachable as error:
        advice = "open the servers' ports in the firewall, or set BYTEPS_INTERFACE on the server's host"
        found = [
            fail(f"worker {error.rank} -> server {server}", text, advice)
            for server, text in error.failures.items()
        ]
        return found, [], error.rank
    except (BytePSError, OSError, ImportError) as error:
        return [fail("job", str(error), "see the logs of the coordinator and of the others")], [], config.rank
    else:
        return *_measured(session), session.rank
    finally:
        undo()


def _engine(config: Config) -> Engine | None:
    """What sums where there are no servers."""
    if not uses_collectives(config):
        return None
    from byteps.torch.distributed.engine import engine  # torch takes seconds to import

    return engine


def _linker(config: Config, welcome: Welcome) -> Linker:
    """Connects to all servers before it gives up, so that all that cannot be reached are named."""
    plain = SocketLinker(dataclasses.replace(config, join_timeout_s=_CONNECT_TIMEOUT_S), welcome)
    links, failures = {}, {}
    for server in range(len(welcome.servers)):
        try:
            for lane in range(welcome.settings.lanes):
                links[server, lane] = plain(server, lane)
        except BytePSError as error:
            failures[server] = str(error)
    if failures:
        raise Unreachable(welcome.rank, failures)
    return lambda server, lane: links[server, lane]


def _measured(session: Session) -> tuple[list[Finding], list[Pair]]:
    table = np.empty((0, 0, 2))
    judged: list[Finding] = []
    try:
        if isinstance(session.communicator, ParameterServer):
            table = _Measurement(session, session.communicator).run()
        else:
            judged.append(check_rings(session))
        skew_s = clock_skew_s(session)
        session.barrier()
    except BytePSError as error:
        return [fail("job", str(error), "the rank or server named there has the reason in its log")], []
    finally:
        session.shutdown()
    pairs = [
        Pair(worker, server, float(table[worker, server, 0]), float(table[worker, server, 1]))
        for worker in range(table.shape[0])
        for server in range(table.shape[1])
    ]
    roles = f"{count(session.size, 'worker')} and {count(session.servers, 'server')} reach it"
    judged += _judged(pairs) if pairs else []
    return [ok("coordinator", roles), _skew(skew_s), *judged], pairs


def _skew(skew_s: float) -> Finding:
    text = f"wall clocks of the ranks are within {skew_s:.3f} s"
    if skew_s > _SKEW_S:
        return warn("clocks", text, "run a time service (chrony) on all hosts, or logs cannot be compared")
    return ok("clocks", text)


def _judged(pairs: Sequence[Pair]) -> Iterator[Finding]:
    """One finding per pair; those that are much slower than most are a warning."""
    usual = statistics.median(pair.bytes_per_s for pair in pairs)
    for pair in pairs:
        check = f"worker {pair.worker} -> server {pair.server}"
        text = f"{1e3 * pair.latency_s:.2f} ms, {pair.bytes_per_s / 1e9:.3f} GB/s each way"
        if pair.bytes_per_s < _SLOW_SHARE * usual:
            yield warn(check, text, f"others reach {usual / 1e9:.3f} GB/s: look at that host's link and load")
        else:
            yield ok(check, text)


class _Measurement:
    """The rounds of all ranks, in step."""

    def __init__(self, session: Session, communicator: ParameterServer) -> None:
        self._session = session
        self._servers = session.servers
        self._latency = self._declare(communicator, "latency", _LATENCY_ROUNDS, 1)
        self._burst = self._declare(
            communicator, "burst", _BURSTS * _BURST_TENSORS, GRAIN_BYTES // DType.FLOAT32.itemsize
        )

    def run(self) -> Array:
        """Latency (s) and speed (bytes/s) by worker and server."""
        own = np.zeros((self._session.size, self._servers, 2), np.float64)
        for turn in range(self._session.size):
            if turn == self._session.rank:
                self._session.barrier()
                for server in range(self._servers):
                    own[turn, server] = self._latency_s(server), self._bytes_per_s(server)
            else:
                rounds = [spec for group in (self._latency, self._burst) for of in group for spec in of]
                handles = [self._session.submit(spec, None, None) for spec in rounds]
                self._session.barrier()
                for handle in handles:
                    handle.wait()
        return summed(self._session, "doctor.table", own)

    def _declare(
        self, communicator: ParameterServer, kind: str, per_server: int, length: int
    ) -> list[list[TensorSpec]]:
        """``per_server`` tensors of one partition on each server: equal ones are dealt out evenly."""
        specs = [
            TensorSpec(f"doctor.{kind}.{number}", DType.FLOAT32, (length,), ReduceOp.SUM)
            for number in range(per_server * self._servers)
        ]
        self._session.declare(specs)
        found: list[list[TensorSpec]] = [[] for _ in range(self._servers)]
        for spec in specs:
            found[communicator.servers_of(spec.name)[0]].append(spec)
        return found

    def _latency_s(self, server: int) -> float:
        data = np.ones(1, np.float32)
        times = []
        for spec in self._latency[server]:
            begin_s = time.perf_counter()
            self._session.submit(spec, buffer(data), buffer(data)).wait()
            times.append(time.perf_counter() - begin_s)
        return statistics.median(times)

    def _bytes_per_s(self, server: int) -> float:
        data = np.arange(GRAIN_BYTES // DType.FLOAT32.itemsize, dtype=np.float32)
        results = [np.empty_like(data) for _ in range(_BURST_TENSORS)]
        speeds = []
        for burst in range(_BURSTS):
            specs = self._burst[server][burst * _BURST_TENSORS : (burst + 1) * _BURST_TENSORS]
            begin_s = time.perf_counter()
            handles = [
                self._session.submit(spec, buffer(data), buffer(result))
                for spec, result in zip(specs, results, strict=True)
            ]
            for handle in handles:
                handle.wait()
            speeds.append(_BURST_TENSORS * data.nbytes / (time.perf_counter() - begin_s))
            if not all(np.array_equal(result, data) for result in results):
                raise BytePSError(f"server {server} returned other values than were sent to it")
        return max(speeds)
