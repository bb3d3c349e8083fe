"""How the bytes of one worker and one server travel: the two ends of a data connection agree on it.

``meeting.py`` holds what they say to each other, ``memory.py`` how two processes of one host come to share
memory, ``ucx.py`` how they reach each other over RDMA, ``worker.py`` and ``server.py`` the two ends.
"""

from __future__ import annotations

from byteps.transport.meeting import may_add_lanes
from byteps.transport.server import meet_worker
from byteps.transport.ucx import Library, NoUcx, locked_memory_is_short
from byteps.transport.worker import Meeting, meet_server

__all__ = [
    "Library",
    "Meeting",
    "NoUcx",
    "locked_memory_is_short",
    "may_add_lanes",
    "meet_server",
    "meet_worker",
]
