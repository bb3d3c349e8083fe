"""Trains on batches from processes that were forked after ``init()``. Its argument says what comes then."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

import byteps.torch as bps


def main(what: str) -> None:
    """A few steps, then: "pause" in user code, "go on" with the next step, or "hold" the GIL before it."""
    bps.init()
    loader = DataLoader(TensorDataset(torch.ones(1000, 10)), batch_size=2, num_workers=2)
    for step, (batch,) in enumerate(loader):
        handle = bps.push_pull_async(batch.mean(dim=0), average=False, name="grad")
        if step == 4:
            os.write(1, b"sent\n")
        total = bps.synchronize(handle)
        if step < 3:
            continue
        if step == 4:
            os.write(1, f"sum {total[0].item()}\n".encode())
            return
        os.write(1, b"ready\n")
        if what == "pause":
            signal.pause()
        if what == "hold" and bps.rank() == 0:
            ctypes.PyDLL(None).usleep(6_000_000)


if __name__ == "__main__":
    main(sys.argv[1])
