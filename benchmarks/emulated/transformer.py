"""One rank that trains a small transformer, with nothing emulated but the link.

``python -m benchmarks.emulated.transformer SYSTEM RANK SIZE``. Requests (see ``peers.answers``) say how many
``steps`` to take and when to ``begin``; the answer has the ``moments`` at which they ended and a ``digest``
of the parameters.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import torch
from torch import Tensor
from torch.nn import Embedding, Module, ModuleList, TransformerEncoderLayer
from torch.nn.functional import cross_entropy, linear

from benchmarks.emulated.systems import SYSTEMS, take_steps
from benchmarks.peers.answers import answer_requests

VOCABULARY, WIDTH, HEADS, LAYERS = 2000, 192, 4, 5
BATCH, TOKENS = 16, 64


class Transformer(Module):
    """Predicts the next token; the output layer's weights are the embedding's."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.embedding = Embedding(VOCABULARY, WIDTH)
        self.layers = ModuleList(
            TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(LAYERS)
        )
        self._text = torch.Generator().manual_seed(rank)

    def forward(self) -> Tensor:
        """The loss of a new batch."""
        tokens = torch.randint(VOCABULARY, (BATCH, TOKENS + 1), generator=self._text)
        data = self.embedding(tokens[:, :-1])
        for layer in self.layers:
            data = layer(data)
        scores = linear(data, self.embedding.weight)
        return cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())


def digest(module: Module) -> str:
    """Equal parameters have equal digests."""
    found = hashlib.sha256()
    for parameter in module.parameters():
        found.update(parameter.detach().numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    """One worker."""
    name, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(0)  # the same parameters on all ranks
    system = SYSTEMS[name]
    system.start(rank, size)
    model = Transformer(rank)
    training = system.wrap(model)

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        moments = take_steps(training, request["steps"], request["begin"])
        return {"moments": moments, "digest": digest(model)}

    answer_requests(handle)
    system.stop()


if __name__ == "__main__":
    main()
