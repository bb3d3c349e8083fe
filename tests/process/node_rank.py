"""A rank of ``test_hierarchy.py``: trains a small model with plain numpy, then moves some megabytes.

Its argument is what the job measures besides: how many times to sum 4 MiB.
"""

from __future__ import annotations

import hashlib
import sys

import numpy as np
import numpy.typing as npt

from byteps.adapters import current
from byteps.dtypes import DType, ReduceOp
from byteps.session import Buffer, Session
from byteps.wire import TensorSpec

Array = npt.NDArray[np.float64]
STEPS = 8
SAMPLES = 12
"""Divisible by all numbers of ranks but 5, where the ranks' shares differ by one."""


def model() -> dict[str, Array]:
    """The same on all ranks."""
    random = np.random.default_rng(7)
    shapes = {"hidden": (300, 100), "bias": (100,), "out": (100, 3)}
    return {name: random.normal(scale=0.1, size=shape) for name, shape in shapes.items()}


def gradients(parameters: dict[str, Array], inputs: Array, targets: Array) -> dict[str, Array]:
    """Of the summed squared error."""
    hidden = np.tanh(inputs @ parameters["hidden"] + parameters["bias"])
    error = hidden @ parameters["out"] - targets
    back = error @ parameters["out"].T * (1 - hidden**2)
    return {"hidden": inputs.T @ back, "bias": back.sum(0), "out": hidden.T @ error}


def batch(step: int) -> tuple[Array, Array]:
    """All ranks' samples of a step."""
    random = np.random.default_rng(step)
    return random.normal(size=(SAMPLES, 300)), random.normal(size=(SAMPLES, 3))


def train(session: Session | None) -> dict[str, Array]:
    """With one rank's share of each batch; without a session, alone with all of it."""
    parameters = model()
    for step in range(STEPS):
        inputs, targets = batch(step)
        if session is not None:
            share = slice(session.rank, None, session.size)
            inputs, targets = inputs[share], targets[share]
        found = gradients(parameters, inputs, targets)
        if session is not None:
            reduce(session, found)
        for name, gradient in found.items():
            parameters[name] -= 0.01 * gradient
    return parameters


def reduce(session: Session, arrays: dict[str, Array]) -> None:
    """Sum in place over all ranks, all at once."""
    handles = []
    for number, (name, array) in enumerate(arrays.items()):
        memory = Buffer(array.ctypes.data, array.nbytes, array)
        spec = TensorSpec(name, DType.FLOAT64, array.shape, ReduceOp.SUM)
        handles.append(session.submit(spec, memory, memory, priority=-number))
    for handle in handles:
        handle.wait()


def main() -> None:
    """Prints a digest of the parameters, and how far they are from those of one process."""
    session = current.init()
    parameters = train(session)
    alone = train(None)
    distance = max(float(np.abs(parameters[name] - alone[name]).max()) for name in alone)
    digest = hashlib.sha256(b"".join(parameters[name].tobytes() for name in alone)).hexdigest()
    for _ in range(int(sys.argv[1])):
        reduce(session, {"large": np.ones(1 << 19)})
    print(session.local_size, digest, distance, flush=True)
    current.shutdown()


if __name__ == "__main__":
    main()
