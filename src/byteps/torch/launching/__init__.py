"""``init`` joins the job. Under torchrun it starts it: ``torchrun``, with ``invitations`` to the other ranks."""

from __future__ import annotations
