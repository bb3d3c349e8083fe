"""Takes part in the job that this process was started in: under byteps run, torchrun, srun or by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from byteps.communicator.parameter_server import ParameterServer
from byteps.config import Config
from byteps.dtypes import DType, ReduceOp
from byteps.errors import ConfigError
from byteps.joining import connect
from byteps.launch.discovery import find_job
from byteps.logs import set_up_logging
from byteps.session import Buffer, Session
from byteps.wire import ServerAddress, TensorSpec, Welcome
from byteps.worker import Linker, SocketLinker

Table = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Member:
    """This worker in its job.

    Attributes:
        session: the membership itself.
        communicator: its connections to the servers.
        servers: where they are.
    """

    session: Session
    communicator: ParameterServer
    servers: list[ServerAddress]

    def summed(self, own: Table) -> Table:
        """The sum of all ranks' tables, on each of them. All ranks call in the same order."""
        session, total = self.session, np.empty_like(own)
        name = session.next_name("bench")
        spec = TensorSpec(name, DType.FLOAT64, own.shape, ReduceOp.SUM, ephemeral=True)
        session.submit(spec, buffer(own), buffer(total)).wait()
        return total

    def by_rank(self, row: Table) -> Table:
        """Every rank's row, as rows of a table."""
        table = np.zeros((self.session.size, len(row)))
        table[self.session.rank] = row
        return self.summed(table)


def buffer(array: npt.NDArray[np.generic]) -> Buffer:
    """The memory of a contiguous array."""
    return Buffer(array.ctypes.data, array.nbytes, array)


@contextmanager
def member(config: Config, example: str) -> Iterator[Member]:
    """Join, and leave afterwards; after an exception the other ranks fail as well.

    Args:
        config: the settings of this process.
        example: a command that starts a job, for the message.

    Raises:
        ConfigError: this process belongs to no job.
        JoinError, HandshakeError: why it cannot be a member.
    """
    set_up_logging(config)
    config, undo = find_job(config)
    try:
        servers: list[ServerAddress] = []

        def linker(config: Config, welcome: Welcome) -> Linker:
            servers.extend(welcome.servers)
            return SocketLinker(config, welcome)

        session = connect(config, linker)
        try:
            yield Member(session, _communicator(session, example), servers)
            session.barrier()  # who leaves earlier fails those that still measure
        except BaseException:
            session.end_with_process(failed=True)
            raise
        session.shutdown()
    finally:
        undo()


def _communicator(session: Session, example: str) -> ParameterServer:
    if isinstance(session.communicator, ParameterServer):
        return session.communicator
    raise ConfigError(
        "this process is alone, so nothing would be sent; `--np 2` starts a job on this machine, and your "
        f"launcher one on several: {example}"
    )
