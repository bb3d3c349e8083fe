"""What a session drives: declares tensors and carries out their rounds.

``parameter_server`` sends them through the servers. ``all_reduce`` schedules a framework's collectives.
``Alone`` serves a job of one worker: nothing is sent. A job needs one of them, which is therefore imported
only where it is used.
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
    "Transfer",
]
