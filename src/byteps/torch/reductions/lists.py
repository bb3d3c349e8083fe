"""Lists of gradients that a caller has at hand, without hooks: for Keras's torch backend."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from byteps.adapters import gradients as shared
from byteps.adapters.calls import Call
from byteps.torch.sending import start
from byteps.torch.tensors import element_type


class GradientReducer(shared.GradientReducer):
    """See ``adapters.gradients``. Gradients are reduced in place."""

    def carry_out(self, calls: Sequence[Call], gradients: Sequence[Tensor]) -> list[Tensor]:
        """See ``adapters.gradients``."""
        pending = [
            start(
                call.session,
                call.spec(element_type(gradient, call.name), gradient.shape),
                gradient,
                gradient,
                call.priority,
            )
            for call, gradient in zip(calls, gradients, strict=True)
        ]
        for one in pending:
            one.finish()
        return list(gradients)
