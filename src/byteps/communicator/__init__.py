"""What a session drives: declares tensors and carries out their rounds.

``ParameterServer`` sends them through the servers. ``Alone`` serves a job of one worker: nothing is sent. An
engine for all-reduce fits in beside them.
"""

from __future__ import annotations

from byteps.communicator.alone import Alone
from byteps.communicator.interface import (
    CLOSED,
    DEPARTED,
    LINK_LOST,
    OK,
    RETRACTED,
    Buffer,
    Communicator,
    Transfer,
    check_sizes,
)
from byteps.communicator.parameter_server import ParameterServer

__all__ = [
    "CLOSED",
    "DEPARTED",
    "LINK_LOST",
    "OK",
    "RETRACTED",
    "Alone",
    "Buffer",
    "Communicator",
    "ParameterServer",
    "Transfer",
    "check_sizes",
]
