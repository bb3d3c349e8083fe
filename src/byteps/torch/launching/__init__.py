"""``init`` joins the job. Under torchrun it starts the job: ``torchrun``, with ``invitations`` to its ranks."""

from __future__ import annotations
