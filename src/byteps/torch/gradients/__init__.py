"""Readiness: gradients that hooks send while the backward pass still runs.

``reducer`` has the hooks and the rounds, ``slots`` what is known about one parameter, ``compiled`` a warning
where ``torch.compile`` leaves nothing to overlap.
"""

from __future__ import annotations
