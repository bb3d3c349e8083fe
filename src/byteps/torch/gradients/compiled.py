"""Finds out that ``torch.compile`` has made one graph of the whole model, which leaves nothing to overlap.

The backward pass of such a graph is one step of autograd, and hands out all gradients when it is over. Then
nothing is sent while it runs: the hooks of all parameters fire at its end, where those of a plain model begin
to fire early.

Firing late alone proves nothing. Where only the parameters are known, slow input looks the same; so does a
model of which only the first layers are trained. So after three suspicious rounds in a row the graph itself
is looked for, once.
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterable

from torch import Tensor

LATE = 0.9
"""Gradients are late if the first one comes after this share of the time until the last."""
ROUNDS = 3
SHORTEST_S = 0.010
"""In less time there is little to overlap."""
NEARLY_ALL = 0.9
"""Share of the gradients' bytes that one graph computes."""

_ADVICE = (
    "torch.compile has made one graph of the whole model, so all gradients come at the end of the backward "
    "pass, and none is sent while it runs. Compile block by block instead, for example by "
    "`for block in model.blocks: block.compile()`; then each block's gradients leave as soon as it is done"
)


class CompileWatch:
    """Watches when gradients come, and warns once if they come late because of one compiled graph."""

    def __init__(self) -> None:
        self._done = False
        self._late_rounds = 0
        self._since_s = self._last_s = time.perf_counter()
        self._first_s: float | None = None
        self._found = False

    def begin(self) -> None:
        """From here on the model computes: as near to the start of the backward pass as can be known."""
        self._since_s = time.perf_counter()
        self._first_s = None

    def fired(self, parameters: Callable[[], Iterable[Tensor]]) -> None:
        """A gradient is complete. ``parameters``: gives all whose gradients are reduced."""
        if self._done:
            return
        self._last_s = time.perf_counter()
        if self._first_s is None:
            self._first_s = self._last_s
            if self._late_rounds == ROUNDS:  # here the pass still runs, so that its graph lives
                self._done = True
                self._found = _has_one_graph(parameters())

    def close(self) -> None:
        """The round is over.

        Warns:
            UserWarning: Once, if one compiled graph computes nearly all gradients.
        """
        if self._first_s is not None and not self._done:
            span_s = self._last_s - self._since_s
            late = span_s >= SHORTEST_S and self._first_s - self._since_s >= LATE * span_s
            self._late_rounds = self._late_rounds + 1 if late else 0
        self.begin()
        if self._found:
            self._found = False
            warnings.warn(_ADVICE, stacklevel=2)


def _has_one_graph(parameters: Iterable[Tensor]) -> bool:
    """Whether one compiled graph that is alive computes nearly all gradients.

    Takes a tenth of a second for the objects of a usual program.
    """
    sizes = {id(parameter): parameter.nbytes for parameter in parameters if parameter.requires_grad}
    for node in gc.get_objects():
        if type(node).__name__ == "CompiledFunctionBackward":
            fed = {id(getattr(edge, "variable", None)) for edge, _ in node.next_functions}
            if sum(size for key, size in sizes.items() if key in fed) >= NEARLY_ALL * sum(sizes.values()):
                return True
    return False
