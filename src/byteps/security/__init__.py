"""Who may join: the shared token, the handshake that proves it, and TLS for the control plane.

Every connection begins with the mutual proof of ``steps.py``, run over a socket by ``drivers.py``.
``door.py`` is where they are accepted.
``local.py`` is for sockets that do not leave the host.
``tokens.py`` holds the token and the rule who may listen without one; ``tls.py`` makes the TLS contexts.
"""

from __future__ import annotations

from byteps.security.door import Door
from byteps.security.drivers import DEADLINE_S, async_handshake, handshake
from byteps.security.local import check_user, listen_locally, local_address
from byteps.security.steps import Identity, Steps, accept_steps, connect_steps
from byteps.security.tls import client_tls, server_tls
from byteps.security.tokens import check_bind, load_token, token_is_open, token_to_make, warn_of_open_token

__all__ = [
    "DEADLINE_S",
    "Door",
    "Identity",
    "Steps",
    "accept_steps",
    "async_handshake",
    "check_bind",
    "check_user",
    "client_tls",
    "connect_steps",
    "handshake",
    "listen_locally",
    "load_token",
    "local_address",
    "server_tls",
    "token_is_open",
    "token_to_make",
    "warn_of_open_token",
]
