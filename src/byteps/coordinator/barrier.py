"""Barriers: a rank's k-th call is answered when every rank has made its k-th call, or when one never will."""

from __future__ import annotations

from collections import deque

from byteps.wire import BarrierDone


class Barriers:
    """All barriers of a job.

    Args:
        size: Number of ranks.
    """

    def __init__(self, size: int) -> None:
        self._requests: list[deque[int]] = [deque() for _ in range(size)]
        self._departed: set[int] = set()

    @property
    def missing(self) -> list[int]:
        """Ranks that others wait for."""
        if not any(self._requests):
            return []
        return [rank for rank, requests in enumerate(self._requests) if not requests]

    def arrive(self, rank: int, request: int) -> list[tuple[int, BarrierDone]]:
        """A rank has come to its next barrier.

        Returns:
            The ranks whose call is over, and what to tell them.
        """
        self._requests[rank].append(request)
        return self._answers()

    def depart(self, rank: int) -> list[tuple[int, BarrierDone]]:
        """A rank left in order. Returns what ``arrive`` does."""
        self._departed.add(rank)
        return self._answers()

    def _answers(self) -> list[tuple[int, BarrierDone]]:
        answers: list[tuple[int, BarrierDone]] = []
        while any(self._requests):
            gone = [rank for rank in self.missing if rank in self._departed]
            if self.missing and not gone:
                break
            departed = gone[0] if gone else -1
            for rank, requests in enumerate(self._requests):
                if requests:
                    answers.append((rank, BarrierDone(requests.popleft(), departed)))
        return answers
