"""``push_pull``, ``allreduce`` and ``broadcast`` of trees of arrays, outside of ``jit`` and within.

A name identifies an array across ranks and stands for one shape, dtype and op as long as the job runs; the
leaves of a tree add their paths to it. Calls without a name are matched by their order: those that are
carried out at once, and apart from them those that are traced, by the order of tracing. ``session=`` is only
for processes that have more than the one session of ``init()``.

All calls raise ``TypeError`` or ``ValueError`` for arguments that cannot work, ``NotInitialized`` before
``init()`` and ``jax.errors.UnexpectedTracerError`` for leaked tracers. When ranks differ in an array's shape,
dtype or op, or a rank is lost, the call raises ``BytePSError``; compiled code does when it runs, as the
``jax.errors.JaxRuntimeError`` that JAX makes of it, with the same words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from byteps.adapters.calls import Call, copy_call, reduction_call
from byteps.adapters.compression import compressed
from byteps.adapters.current import current
from byteps.adapters.reductions import resolve_op, sequence_number, shown
from byteps.dtypes import ReduceOp
from byteps.jax.compression import Compression
from byteps.jax.rounds import differentiable, is_traced
from byteps.jax.trees import arrays_of, leaks_explained, named_leaves
from byteps.session import Session


def push_pull(
    tree: Any,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    *,
    priority: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    session: Session | None = None,
) -> Any:
    """Reduce a tree of arrays over all ranks, all leaves in flight together; gradients flow through it.

    Args:
        tree: An array, a number, or a tree of them, of the same structure on all ranks. Dtypes are float64,
            float32, float16, bfloat16, int8, uint8, int16, int32, int64 or, without average, bool; any shape.
        average: Old way to say ``op=Average`` (True) or ``op=Sum`` (False).
        name: Identifies the tree across ranks.
        compression: One of ``Compression``, or a class like them.
        op: ``Average`` (the default), ``Sum``, ``Min``, ``Max`` or ``Product``.
        priority: Of the first leaf, 0 if not given; higher numbers are sent first, later leaves count down.
        prescale_factor: Applied to each contribution before the reduction.
        postscale_factor: Applied to the result.
        session: The session of ``init()`` if not given.

    Returns:
        A tree of new arrays of the same shapes and dtypes.
    """
    resolved = resolve_op(average, op)
    scales = (float(prescale_factor), float(postscale_factor))

    def call_of(name: str | None) -> Call:
        return reduction_call(
            _checked, None, resolved, name, priority=priority, scales=scales, session=session
        )

    return _each("push_pull", tree, name, call_of, compression, resolved, session)


allreduce: Final = push_pull
"""Horovod's name."""


def broadcast(tree: Any, root_rank: int, name: str | None = None, *, session: Session | None = None) -> Any:
    """Return the root's tree as a tree of new arrays; all leaves are in flight together.

    As in Horovod, the root's gradient is the average of all ranks' gradients; elsewhere it is zero.

    Args:
        tree: As for ``push_pull``, bool included; the same structure, shapes and dtypes on all ranks.
        root_rank: The rank whose values all get.
        name: Identifies the tree across ranks.
        session: The session of ``init()`` if not given.
    """

    def call_of(name: str | None) -> Call:
        return copy_call(_checked, root_rank, name, session)

    return _each("broadcast", tree, name, call_of, Compression.none, ReduceOp.COPY, session)


def _each(
    kind: str,
    tree: Any,
    name: str | None,
    call_of: Callable[[str | None], Call],
    compression: Any,
    op: ReduceOp,
    session: Session | None,
) -> Any:
    """Carry out the rounds that ``call_of`` makes for the leaves."""
    leaves, tree_of = named_leaves(tree)
    label = shown(kind, name)
    with leaks_explained(label):
        arrays = arrays_of(leaves, label, op)
        if name is None and is_traced(arrays):  # one name for all runs of the function
            number = sequence_number(current() if session is None else session, f"{kind}.traced")
            name = f"traced.{number}"
        calls = [call_of(f"{name}{path}" if isinstance(name, str) else name) for path, _ in leaves]
        calls = [replace(call, priority=call.priority - place) for place, call in enumerate(calls)]
        return tree_of(compressed(compression, arrays, lambda wires: differentiable(calls, wires)))


def _checked(name: str, op: ReduceOp) -> None:
    """The leaves are checked before any of them takes a number."""
