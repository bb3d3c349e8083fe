"""``allreduce``: ``push_pull`` under Horovod's name, with its arguments, operators and process sets."""

from __future__ import annotations

from typing import Any

from byteps.adapters.process_sets import ProcessSet
from byteps.adapters.reductions import Combination, Operator
from byteps.session import Session
from byteps.tensorflow.collectives.adasum import combined
from byteps.tensorflow.compression import Compression
from byteps.tensorflow.ops import Arguments, reduced


def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: Operator | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    ignore_name_scope: bool = False,
    *,
    session: Session | None = None,
) -> Any:
    """``push_pull`` under Horovod's name and arguments.

    Args:
        tensor, average, compression, name, session: As for ``push_pull``.
        op: ``Average`` (the default), ``Sum``, ``Min``, ``Max``, ``Product`` or ``Adasum``. Gradients flow
            through the first two.
        device_dense, device_sparse, ignore_name_scope: Accepted for Horovod scripts; mean nothing.
        prescale_factor: Applied to each contribution before the reduction.
        postscale_factor: Applied to the result.
        process_set: The ranks that take part; all if not given.
    """
    scales = (float(prescale_factor), float(postscale_factor))
    if isinstance(op, Combination):
        return combined(tensor, name, compression, scales, process_set, session)
    return reduced(tensor, Arguments(average, op, name, compression, scales, process_set, session=session))
