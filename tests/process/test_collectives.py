"""Horovod's collectives in a job of processes, as a script calls them: values, join, mismatches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import byteps

RANKS = 3


def _given() -> tuple[list[Any], list[list[int]]]:
    """Rows of each rank, and how many go from each to each; the same in every process."""
    generator = np.random.default_rng(11)
    rows = [generator.integers(-9, 10, (4 + rank, 2)).astype(np.float32) for rank in range(RANKS)]
    return rows, [[1, 2, 1], [0, 5, 0], [3, 1, 2]]


def collectives() -> str:
    import torch

    import byteps.torch as bps

    bps.init()
    rank, (rows, splits) = bps.rank(), _given()
    own, same = torch.tensor(rows[rank]), [part[:4] for part in rows]
    short, total = torch.tensor(same[rank]), sum(same)
    np.testing.assert_array_equal(bps.allgather(own), np.concatenate(rows))
    np.testing.assert_array_equal(bps.grouped_allgather([short, own])[1], np.concatenate(rows))
    parts = [np.split(part, np.cumsum(to)[:-1])[rank] for part, to in zip(rows, splits, strict=True)]
    found, counts = bps.alltoall(own, splits[rank])
    np.testing.assert_array_equal(found, np.concatenate(parts))
    assert counts.tolist() == [to[rank] for to in splits]
    share = np.array_split(total, RANKS)[rank]
    np.testing.assert_array_equal(bps.reducescatter(short, op=bps.Sum), share)
    for result in bps.grouped_reducescatter([short, short], op=bps.Sum):
        np.testing.assert_array_equal(result, share)
    for result in bps.grouped_allreduce([short, short], op=bps.Sum):
        np.testing.assert_array_equal(result, total)
    ends = bps.add_process_set([0, 2])
    if ends.included():
        found = bps.allreduce(short, op=bps.Max, process_set=ends)
        np.testing.assert_array_equal(found, np.maximum(same[0], same[2]))
    for step in range(rank + 1):  # ranks with less data have joined
        present = range(step, RANKS)
        wanted = sum(same[one] for one in present)
        np.testing.assert_array_equal(bps.allreduce(short, name="step", op=bps.Sum), wanted)
    assert 0 <= bps.join() < RANKS
    return _error_of(bps, torch)


def _error_of(bps: Any, torch: Any) -> str:
    """What a rank is told when rank 1 sends other rows than the others."""
    try:
        bps.allgather(torch.zeros(2, 3 if bps.rank() == 1 else 2), name="unlike")
    except bps.HorovodInternalError as error:
        return str(error)
    return "no error"


@pytest.mark.timeout(110)
def test_values_and_mismatches_on_all_ranks() -> None:
    told = byteps.run(collectives, np=RANKS)
    assert len(told) == RANKS
    for text in told:
        assert "unlike" in text, told
        assert "rank 1" in text, told
        assert "rank 0" in text or "rank 2" in text, told
