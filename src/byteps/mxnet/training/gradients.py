"""Gradients of MXNet arrays, reduced in place over all ranks; nobody waits but who reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from byteps.adapters import gradients as shared
from byteps.adapters.calls import Call
from byteps.adapters.process_sets import global_process_set
from byteps.mxnet.rounds import begin
from byteps.mxnet.tensors import check, spec_of


class GradientReducer(shared.GradientReducer):
    """See ``adapters.gradients``; MXNet's optimizers know gradients by numbers."""

    def begin(
        self, named: Sequence[tuple[str, int]], gradients: Sequence[Any], declare: bool = False
    ) -> None:
        """Begin to reduce gradients in place; the engine starts each when it has been computed.

        Args:
            named: (name, priority) of each.
            gradients: What the optimizer will read.
            declare: Whether to make them known in one message first, so that they are placed together.

        Raises:
            ValueError: A gradient cannot be sent.
            DeclarationError: Ranks differ in a gradient's shape or dtype.
        """
        if not self.rounds.sends:
            return
        calls = [
            Call(self.rounds.session, name, self.rounds.op, self.rounds.scales, priority)
            for name, priority in named
        ]
        for call, gradient in zip(calls, gradients, strict=True):
            check(gradient, call.name, call.op)
        sent = [self.compression.compress(gradient) for gradient in gradients]
        if declare:
            pairs = zip(calls, sent, strict=True)
            self.rounds.session.declare([spec_of(wire, call) for call, (wire, _) in pairs])
        for call, gradient, (wire, context) in zip(calls, gradients, sent, strict=True):
            begin(call, wire)
            if wire is not gradient:
                gradient[:] = self.compression.decompress(wire, context)


def reducer_of(**options: Any) -> GradientReducer:
    """See ``adapters.gradients.gradient_reducer``.

    Raises:
        ValueError: An option cannot work; here neither can a process set.
    """
    if options.get("process_set") not in (None, global_process_set):
        raise ValueError("process_set= is not supported here, all ranks take part: leave it out")
    return shared.gradient_reducer(GradientReducer, **options)
