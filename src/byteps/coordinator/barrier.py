"""Barriers: a rank's k-th call is answered when every rank has made its k-th call."""

from __future__ import annotations

from collections import deque


class Barriers:
    """All barriers of a job.

    Args:
        size: Number of ranks.
    """

    def __init__(self, size: int) -> None:
        self._requests: list[deque[int]] = [deque() for _ in range(size)]

    @property
    def missing(self) -> list[int]:
        """Ranks that others wait for."""
        if not any(self._requests):
            return []
        return [rank for rank, requests in enumerate(self._requests) if not requests]

    def arrive(self, rank: int, request: int) -> list[tuple[int, int]]:
        """A rank has come to its next barrier.

        Returns:
            Rank and request of those that may go on.
        """
        self._requests[rank].append(request)
        if not all(self._requests):
            return []
        return [(other, requests.popleft()) for other, requests in enumerate(self._requests)]
