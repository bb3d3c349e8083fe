"""Parameters that become the root's, at the start of training, also those that have no shape yet."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import mxnet as mx

from byteps.adapters.calls import Call, copy_call
from byteps.adapters.current import current
from byteps.adapters.reductions import checked_root
from byteps.mxnet.rounds import begin
from byteps.mxnet.tensors import check, spec_of
from byteps.session import Session


def broadcast_parameters(
    params: Any, root_rank: int = 0, prefix: str | None = None, *, session: Session | None = None
) -> None:
    """Overwrite parameters with the root's. Does not wait: who reads a parameter waits for it.

    Args:
        params: A dict or ``mx.gluon.ParameterDict`` of Gluon parameters or arrays, with the same names on all
            ranks. Parameters whose initialisation is deferred follow when it happens, in the first forward
            pass.
        root_rank: The rank whose values all get.
        prefix: Goes before the names.
        session: The session of ``init()`` if not given.

    Raises:
        ValueError: ``params`` is something else, an array cannot be sent, the root is no rank, or a parameter
            is not initialised.
        NotInitialized: ``init()`` has not been called.
        DeclarationError: Ranks differ in a parameter's shape or dtype.
    """
    if not isinstance(params, dict | mx.gluon.ParameterDict):
        raise ValueError(
            f"expected a dict or mx.gluon.ParameterDict, got {type(params).__name__}: pass "
            "net.collect_params()"
        )
    session = current() if session is None else session
    root_rank = checked_root(session, root_rank)
    begun = []
    for name, value in params.items():
        label = f"{prefix or ''}{name}"
        if isinstance(value, mx.gluon.Parameter) and value._data is None:
            _when_initialised(value, partial(_broadcast, root_rank=root_rank, label=label, session=session))
        else:
            copies = value.list_data() if isinstance(value, mx.gluon.Parameter) else [value]
            begun.append((_call(copies[0], root_rank, label, session), copies))
    if begun:
        session.declare([spec_of(copies[0], call) for call, copies in begun])
    for call, copies in begun:
        _overwrite(call, copies)


def _broadcast(parameter: Any, root_rank: int, label: str, session: Session) -> None:
    copies = parameter.list_data()
    _overwrite(_call(copies[0], root_rank, label, session), copies)


def _call(array: Any, root_rank: int, label: str, session: Session) -> Call:
    def checked(_: str, op: Any) -> None:
        check(array, label, op)

    return replace(copy_call(checked, root_rank, f"parameter.{label}", session), ephemeral=True)


def _overwrite(call: Call, copies: list[Any]) -> None:
    """Those of all devices. By way of a copy: after a prediction, weights lie in an order of oneDNN's."""
    plain = copies[0].copy()
    begin(call, plain)
    for each in copies:
        plain.copyto(each)


def _when_initialised(parameter: Any, then: Any) -> None:
    """Call ``then`` once a parameter has its shape and its first values, before anything reads them.

    Raises:
        ValueError: Nobody has asked for its initialisation.
    """
    if not parameter._deferred_init:
        raise ValueError(f"parameter {parameter.name!r} is not initialised: call net.initialize() first")
    plain = parameter._init_impl

    def initialise(data: Any, contexts: Any) -> None:
        parameter._init_impl = plain
        plain(data, contexts)
        then(parameter)

    parameter._init_impl = initialise
