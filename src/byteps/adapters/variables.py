"""Variables of any framework, as arrays: all become the root's at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from byteps.adapters.arrays import Array, element_type, reduce_arrays
from byteps.adapters.calls import Call, copy_call
from byteps.adapters.current import current
from byteps.adapters.process_sets import ProcessSet
from byteps.dtypes import ReduceOp
from byteps.session import Session


def broadcast_arrays(
    arrays: Sequence[tuple[str, Array]],
    root_rank: int,
    session: Session | None = None,
    process_set: ProcessSet | None = None,
) -> list[Array]:
    """The root's arrays, declared in one message and all in flight together.

    Args:
        arrays: (name, array) of each variable. Ranks agree in names and order. No name lasts: other
            variables may have the same in a later call.
        root_rank: The rank whose values all get.
        session: The session of ``init()`` if not given.
        process_set: The ranks that take part; all if not given.

    Raises:
        ValueError: A dtype cannot be sent; the root is no rank.
        NotInitialized: There is no session.
        DeclarationError: Ranks differ in a variable's shape or dtype.
    """
    session = current() if session is None else session
    calls = [_call(name, array, root_rank, session, process_set) for name, array in arrays]
    specs = [
        call.spec(element_type(array.dtype.name, name), array.shape)
        for call, (name, array) in zip(calls, arrays, strict=True)
    ]
    if specs:
        session.declare(specs)
    return reduce_arrays(calls, [array for _, array in arrays])


def _call(name: str, array: Array, root_rank: int, session: Session, process_set: ProcessSet | None) -> Call:
    def check(label: str, op: ReduceOp) -> None:
        element_type(array.dtype.name, name)

    call = copy_call(check, root_rank, None, session, process_set)
    return replace(call, name=f"{call.name}.{name}")
