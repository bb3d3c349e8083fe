"""What many tensors or whole objects need: parameters, optimizer state and Python objects on all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn import Module

from byteps.adapters.current import current
from byteps.adapters.exchange import exchange_of
from byteps.adapters.process_sets import ProcessSet
from byteps.session import Session
from byteps.torch.functions.broadcasting import Copy, copy_of
from byteps.torch.functions.objects import INLINE_TENSORS

Parameters = Mapping[str, Tensor] | Iterable[Tensor] | Iterable[tuple[str, Tensor]]


def broadcast_parameters(
    params: Parameters, root_rank: int, prefix: str = "parameter.", *, session: Session | None = None
) -> None:
    """Overwrite tensors with the root's, for example a model's at the start of training.

    Args:
        params: ``model.state_dict()``, ``model.named_parameters()``, ``model.parameters()``, or any mapping
            or iterable like them. Tensors without a name are matched by their order.
        root_rank: The rank whose values all get.
        prefix: Begins the names on the wire. Names may be used again for other tensors in later calls.
        session: The session of ``init()`` if not given.

    Raises:
        ValueError: ``params`` is nothing of this kind, repeats a name, or holds sparse or complex tensors;
            the root is no rank.
        TypeError: An entry is no tensor.
        NotInitialized: ``init()`` has not been called.
        DeclarationError: Ranks differ in a tensor's shape or dtype.
    """
    pairs = _pairs(params)
    session = current() if session is None else session
    named = [(name if name is None else f"{prefix}{name}", tensor) for name, tensor in pairs]
    broadcast_all([(copy_of(tensor, root_rank, name, session), tensor) for name, tensor in named])


def broadcast_all(copies: Iterable[tuple[Copy, Tensor]]) -> None:
    """Broadcast tensors in place, all at once.

    Names are used once: another model may have tensors of the same names and other shapes, and servers need
    no memory for them afterwards.
    """
    once = [(replace(copy, ephemeral=True), tensor) for copy, tensor in copies]
    if not once:
        return
    once[0][0].session.declare([copy.declaration(tensor) for copy, tensor in once])
    handles = [copy.in_place(tensor) for copy, tensor in once]
    for handle in handles:
        handle.synchronize()


def _pairs(params: object) -> list[tuple[str | None, Tensor]]:
    if isinstance(params, Module | Tensor | str) or not isinstance(params, Iterable):
        raise ValueError(
            f"cannot broadcast parameters of type {type(params).__name__}: pass model.state_dict(), "
            "model.named_parameters(), model.parameters(), or an iterable like them"
        )
    entries = sorted(params.items()) if isinstance(params, Mapping) else list(params)
    pairs = [entry if isinstance(entry, tuple) and len(entry) == 2 else (None, entry) for entry in entries]
    for name, tensor in pairs:
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"{name or 'an entry of params'} is a {type(tensor).__name__}, not a torch.Tensor"
            )
    counts = Counter(name for name, _ in pairs if name is not None)
    repeated = sorted(name for name, count in counts.items() if count > 1)
    if repeated:
        raise ValueError(f"params repeats the names {', '.join(repeated)}: each may stand for one tensor")
    return pairs


def broadcast_object(
    obj: object,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet | None = None,
    *,
    session: Session | None = None,
    allow_pickle: bool = False,
) -> Any:
    """Return the root's object on every rank.

    Args:
        obj: None, bool, int, float, complex, str, bytes, lists, tuples, sets and dicts of such, numpy arrays
            and scalars, tensors (they arrive on the CPU). With ``allow_pickle`` anything that pickle can do.
            Only the root's counts.
        root_rank: The rank that sends.
        name: Identifies the call across ranks; by the order of calls if not given.
        process_set: The ranks that take part; all if not given. ``root_rank`` is a global rank all the same.
        session: The session of ``init()`` if not given.
        allow_pickle: Send the object pickled; the same on all ranks. Unpickling runs what the root says.

    Raises:
        TypeError: On the root: the object holds what cannot be sent. The other ranks get a ValueError.
        ValueError: The root is no rank, or pickled without ``allow_pickle`` here.
        NotInitialized: ``init()`` has not been called.
    """
    exchange = exchange_of(process_set, session, allow_pickle, [INLINE_TENSORS])
    return exchange.broadcast(obj, root_rank, name)


def allgather_object(
    obj: object, name: str | None = None, *, allow_pickle: bool = False, session: Session | None = None
) -> list[Any]:
    """Return every rank's object on every rank, in the order of the ranks.

    Args:
        obj: As for ``broadcast_object``; it may differ between ranks in type and size.
        name: Identifies the call across ranks; by the order of calls if not given.
        allow_pickle: Send objects pickled; the same on all ranks.
        session: The session of ``init()`` if not given.

    Raises:
        TypeError: This rank's object holds what cannot be sent. The other ranks get a ValueError.
        ValueError: Another rank's object cannot be sent.
        NotInitialized: ``init()`` has not been called.
    """
    return exchange_of(None, session, allow_pickle, [INLINE_TENSORS]).allgather(obj, name)
