"""Small models of everything that reads parameters in an unusual way, and data that differs by rank."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (its usual name)
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

TOKENS = 11
WIDTH = 8
LENGTH = 3
SAMPLES = 2


class Convolutions(nn.Module):
    """Images to labels."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2), nn.PReLU()
        )
        self.leave = nn.Linear(4 * 16, TOKENS)

    def forward(self, images: Tensor) -> Tensor:
        result: Tensor = self.leave(self.features(images).flatten(1))
        return result


class TiedModel(nn.Module):
    """Tokens to tokens: the embedding's weight is the last layer's, and some other module is in between."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.middle = middle
        self.leave = nn.Linear(WIDTH, TOKENS)
        self.leave.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        result: Tensor = self.leave(self.middle(self.embed(tokens)))
        return result


class Attention(nn.Module):
    """Its output projection is read without a call of the module that owns it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        added: Tensor = x + self.attention(y, y, y, need_weights=False)[0]
        return added


class Borrowed(nn.Module):
    """Reads a weight before its layer is called, one whose layer is never called, and one kept in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.owner = nn.Linear(WIDTH, WIDTH)
        self.never_called = nn.Linear(WIDTH, WIDTH)
        self.kept = [nn.Parameter(torch.ones(WIDTH))]
        self.register_parameter("scale", self.kept[0])

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(F.linear(x, self.owner.weight.t())) * self.kept[0]
        x = torch.tanh(F.linear(x, self.never_called.weight, self.never_called.bias))
        result: Tensor = self.owner(x)
        return result


class Lists(nn.Module):
    """Parameters in a list, in a dictionary and by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(torch.ones(WIDTH) for _ in range(2))
        self.shifts = nn.ParameterDict({"before": torch.zeros(WIDTH), "after": torch.zeros(WIDTH)})
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh((x + self.shifts["before"]) * self.scales[0])
        for scale in self.scales:
            x = x * scale
        result: Tensor = (x + self.shifts["after"]) * self.factor
        return result


class Recurrent(nn.Module):
    """An LSTM keeps its weights in a list of its own besides."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.lstm(x)[0]
        return result


class Normed(nn.Module):
    """Weights that are computed from parameters at each read."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = weight_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x)) + F.linear(x, self.layer.weight)


class Checkpointed(nn.Module):
    """One block used twice, each time computed again during the backward pass: its gradients fire twice."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = x + checkpoint(self.block, x, use_reentrant=self.reentrant)
        return x


class Everything(TiedModel):
    """A transformer with one of each."""

    def __init__(self) -> None:
        blocks = (
            Attention(),
            Borrowed(),
            Lists(),
            Recurrent(),
            Normed(),
            Checkpointed(True),
            Checkpointed(False),
        )
        super().__init__(nn.Sequential(*blocks))


def encoder() -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 12, dropout=0.0, batch_first=True)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "convolutions": Convolutions,
    "everything": Everything,
    "encoder": lambda: TiedModel(encoder()),
    "attention": lambda: TiedModel(Attention()),
    "borrowed": lambda: TiedModel(Borrowed()),
    "lists": lambda: TiedModel(Lists()),
    "recurrent": lambda: TiedModel(Recurrent()),
    "weight_norm": lambda: TiedModel(Normed()),
    "checkpoint, reentrant": lambda: TiedModel(Checkpointed(True)),
    "checkpoint": lambda: TiedModel(Checkpointed(False)),
}


def made(name: str) -> nn.Module:
    """A model with the same weights at each call. Not for several threads at once."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return MODELS[name]()


def loss_of(model: nn.Module, rank: int, step: int) -> Tensor:
    """The loss of one rank's samples of one step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    draw = partial(torch.randint, TOKENS, generator=generator)
    if isinstance(model, Convolutions):
        inputs, targets = torch.randn(SAMPLES, 1, 8, 8, generator=generator), draw((SAMPLES,))
    else:
        inputs, targets = draw((SAMPLES, LENGTH)), draw((SAMPLES * LENGTH,))
    return F.cross_entropy(model(inputs).reshape(-1, TOKENS), targets)
