"""What a session drives: declares tensors and carries out their rounds.

``ParameterServer`` sends them through the servers. ``AllReduce`` schedules a framework's collectives.
``Alone`` serves a job of one worker: nothing is sent. Most jobs need no ``all_reduce``, which is therefore
imported only where it is used.
"""

from __future__ import annotations

from byteps.communicator.absence import Absence
from byteps.communicator.alone import Alone
from byteps.communicator.board import Board
from byteps.communicator.collectives import Collective, Collectives, Done, Engine, Meeting
from byteps.communicator.interface import (
    CLOSED,
    DEPARTED,
    LINK_LOST,
    OK,
    RETRACTED,
    Buffer,
    Communicator,
    Transfer,
)
from byteps.communicator.parameter_server import ParameterServer

__all__ = [
    "CLOSED",
    "DEPARTED",
    "LINK_LOST",
    "OK",
    "RETRACTED",
    "Absence",
    "Alone",
    "Board",
    "Buffer",
    "Collective",
    "Collectives",
    "Communicator",
    "Done",
    "Engine",
    "Meeting",
    "ParameterServer",
    "Transfer",
]
