"""How large collectives should be, and how many bytes may be in flight, from what is measured.

With a cost of theta for each collective, S bytes in a step, a rate of R bytes per second and m collectives in
flight, cutting costs theta S / d and waiting behind what is in flight (m + 2) d / R; their sum is least at
d = sqrt(S R theta / (m + 2)). Theta is the measured latency of a collective of next to no bytes, or what it
costs in CPU time if that is more. The credit covers that latency, or the link would idle.
"""

from __future__ import annotations

import math

DEPTH = 3
"""Collectives that the credit holds, but for a part of one."""
LATENCY_SHARE = 1.5
"""Credit over rate times latency. A rate measured with too little in flight grows by this each time."""
LONGEST_S = 0.008
"""No collective takes the link for longer, so that an urgent tensor need not wait for long."""
FIRST_BYTES = 256 << 10
"""Size of collectives until a rate has been measured."""
LEAST_BYTES, MOST_BYTES = 128 << 10, 16 << 20
"""Smaller ones spend more than a twentieth of a link's bytes on headers and acknowledgements (four ranks)."""
LEAST_COST_S = 0.0007
"""What a collective costs each rank at least: CPU time of threads and messages, however short the network."""
_LESS = 4
"""The credit is less by this part of a size: of tensors that are cut, one part less is in flight."""
_GRANULE_BYTES = 4 << 10
_WINDOW_S = 0.02
_CREDITS = 4
"""A rate is measured over that many times what is in flight, as collectives may end all at once."""
_FORGET = 0.9


class Sizes:
    """Sizes that follow the measured rate.

    Args:
        fixed_bytes: Size of a collective; 0: from measurements.
        fixed_credit_bytes: Bytes in flight; 0: from measurements.

    Attributes:
        latency_s: Time of a collective of next to no bytes.
        step_bytes: Bytes of all tensors.
        rate: Bytes of tensors per second when there are always some to send; 0: not known yet.
    """

    def __init__(self, fixed_bytes: int = 0, fixed_credit_bytes: int = 0) -> None:
        self._fixed_bytes = fixed_bytes
        self._fixed_credit_bytes = fixed_credit_bytes
        self._fixed_fusion_bytes = 0
        self.latency_s = 0.0
        self.step_bytes = 0
        self.rate = 0.0
        self._since_s: float | None = None
        self._moved, self._busy_s = 0, 0.0  # while there was always more

    def fix(self, collective_bytes: int, credit_bytes: int, fusion_bytes: int) -> None:
        """Use these sizes from now on; 0: from measurements."""
        self._fixed_bytes, self._fixed_credit_bytes = collective_bytes, credit_bytes
        self._fixed_fusion_bytes = fusion_bytes

    @property
    def fusion_bytes(self) -> int:
        """The size up to which smaller tensors share a collective."""
        return self._fixed_fusion_bytes or self.collective_bytes

    @property
    def collective_bytes(self) -> int:
        """The size that larger tensors are cut to; smaller ones are fused to it unless there is another."""
        if self._fixed_bytes:
            return _rounded(self._fixed_bytes)
        if not self.rate:
            return FIRST_BYTES
        cost_s = max(self.latency_s, LEAST_COST_S)
        best = math.sqrt(max(self.step_bytes, 1) * self.rate * cost_s / (DEPTH + 2))
        return _rounded(min(max(min(best, LONGEST_S * self.rate), LEAST_BYTES), MOST_BYTES))

    @property
    def credit_bytes(self) -> int:
        """Bytes that may be in flight."""
        if self._fixed_credit_bytes:
            return self._fixed_credit_bytes
        size = self.collective_bytes
        return max(DEPTH * size - size // _LESS, round(LATENCY_SHARE * self.rate * self.latency_s) + size)

    def moved(self, nbytes: int, now_s: float, more: bool) -> bool:
        """A collective is over.

        Args:
            nbytes: Of the tensors in it.
            now_s: Any monotonic clock.
            more: Whether bytes have been waiting for credit since.

        Returns:
            Whether there is a new measurement.
        """
        since_s, self._since_s = self._since_s, now_s if more else None
        if not more or since_s is None:
            return False
        self._moved += nbytes
        self._busy_s += now_s - since_s
        if self._busy_s < _WINDOW_S or self._moved < _CREDITS * self.credit_bytes:
            return False
        self.rate = max(self._moved / self._busy_s, self.rate * _FORGET)
        self._moved, self._busy_s = 0, 0.0
        return True


def _rounded(nbytes: float) -> int:
    return max(1, round(nbytes / _GRANULE_BYTES)) * _GRANULE_BYTES
