"""``init`` joins the job. Under torchrun it starts it: ``torchrun``, with ``invitations`` to other ranks."""

from __future__ import annotations
