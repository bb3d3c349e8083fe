"""The models of ``byteps bench train``, compactly, with the parameters of the published ones.

Each takes inputs and targets and returns the loss, so that training loops need not know what a model is for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

_VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
_DROPOUT = 0.1


class Classifier(nn.Module):
    """Images to classes.

    Args:
        body: [samples, channels, height, width] to [samples, classes].
    """

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        """The mean cross entropy."""
        return functional.cross_entropy(self.body(images), targets)


def vgg16(classes: int = 1000) -> Classifier:
    """VGG16 (Simonyan and Zisserman, 2014), for images of 224 x 224."""
    layers: list[nn.Module] = []
    channels = 3
    for width in _VGG16:  # 0: halve the image
        if width:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        else:
            layers.append(nn.MaxPool2d(2))
    layers.append(nn.Flatten())
    for inputs, outputs in ((7 * 7 * channels, 4096), (4096, 4096)):
        layers += [nn.Linear(inputs, outputs), nn.ReLU(inplace=True), nn.Dropout()]
    return Classifier(nn.Sequential(*layers, nn.Linear(4096, classes)))


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class _Bottleneck(nn.Module):
    """A residual block; the 3 x 3 convolution has the stride."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.branch = nn.Sequential(
            _convolution(inputs, width, 1),
            nn.ReLU(inplace=True),
            _convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            _convolution(width, outputs, 1),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else _convolution(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.branch(x) + self.shortcut(x))


def resnet50(classes: int = 1000, blocks: Sequence[int] = (3, 4, 6, 3)) -> Classifier:
    """ResNet-50 (He et al., 2015), for images of 224 x 224."""
    layers: list[nn.Module] = [
        _convolution(3, 64, 7, 2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, padding=1),
    ]
    inputs = 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            layers.append(_Bottleneck(inputs, width, 2 if stage and not block else 1))
            inputs = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]
    return Classifier(nn.Sequential(*layers))


def tiny(classes: int = 10) -> Classifier:
    """Two convolutions and a layer, for images of 32 x 32: to try things with."""
    layers = [_convolution(3, 8, 3, 2), nn.ReLU(), _convolution(8, 16, 3, 2), nn.ReLU(), nn.Flatten()]
    return Classifier(nn.Sequential(*layers, nn.Linear(16 * 8 * 8, classes)))


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a language model; ``width`` is the length of the vector for a token."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    positions: int


BERT_BASE = Shape(layers=12, width=768, heads=12, vocabulary=30522, positions=512)
GPT2_SMALL = Shape(layers=12, width=768, heads=12, vocabulary=50257, positions=1024)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, heads: int, *, causal: bool) -> Tensor:
    """Attention of [samples, tokens, width], head by head."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (queries, keys, values))
    result: Tensor = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return result.transpose(1, 2).flatten(2)


class _BertLayer(nn.Module):
    """Attention and two linear layers, each normalised after its residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.attention_norm = nn.LayerNorm(width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        attended = _attend(self.query(x), self.key(x), self.value(x), self.heads, causal=False)
        x = self.attention_norm(x + self.dropout(self.out(attended)))
        result: Tensor = self.norm(x + self.dropout(self.narrow(functional.gelu(self.widen(x)))))
        return result


class Bert(nn.Module):
    """BERT (Devlin et al., 2018) with the two heads of its pre-training; the defaults are BERT-base."""

    def __init__(self, shape: Shape = BERT_BASE) -> None:
        super().__init__()
        width = shape.width
        self.words = nn.Embedding(shape.vocabulary, width)
        self.positions = nn.Embedding(shape.positions, width)
        self.types = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(*(_BertLayer(width, shape.heads) for _ in range(shape.layers)))
        self.pooler = nn.Linear(width, width)
        self.follows = nn.Linear(width, 2)
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.zeros(shape.vocabulary))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The sum of both heads' losses: a word for every token, and whether two sentences follow."""
        place = torch.arange(tokens.shape[1], device=tokens.device)
        embedded = self.words(tokens) + self.positions(place) + self.types(torch.zeros_like(tokens))
        encoded = self.layers(functional.dropout(self.norm(embedded), _DROPOUT, self.training))
        # The output layer shares its weights with the word embedding.
        words = functional.linear(self.transform(encoded), self.words.weight, self.bias)
        follows = self.follows(torch.tanh(self.pooler(encoded[:, 0])))
        loss = functional.cross_entropy(words.flatten(0, 1), targets.flatten())
        return loss + functional.cross_entropy(follows, targets[:, 0] % 2)


class _GptLayer(nn.Module):
    """Attention to what came before and two linear layers, each normalised before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(_DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        queries, keys, values = self.attention(self.attention_norm(x)).chunk(3, dim=-1)
        x = x + self.dropout(self.out(_attend(queries, keys, values, self.heads, causal=True)))
        widened = functional.gelu(self.widen(self.norm(x)), approximate="tanh")
        result: Tensor = x + self.dropout(self.narrow(widened))
        return result


class Gpt2(nn.Module):
    """GPT-2 (Radford et al., 2019); the defaults are the small one."""

    def __init__(self, shape: Shape = GPT2_SMALL) -> None:
        super().__init__()
        width = shape.width
        self.words = nn.Embedding(shape.vocabulary, width)
        self.positions = nn.Embedding(shape.positions, width)
        self.layers = nn.Sequential(*(_GptLayer(width, shape.heads) for _ in range(shape.layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean cross entropy over all tokens."""
        place = torch.arange(tokens.shape[1], device=tokens.device)
        embedded = functional.dropout(self.words(tokens) + self.positions(place), _DROPOUT, self.training)
        logits = functional.linear(self.norm(self.layers(embedded)), self.words.weight)
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@dataclass(frozen=True, slots=True)
class Workload:
    """A model and the random data that fits it.

    Attributes:
        build: makes the model.
        batch_size: samples per step that suit a GPU of 16 GB; on a CPU fewer are enough.
        image: height and width of its images; 0: it reads tokens.
        numbers: classes of images, words of text.
        longest: tokens that a sample may have.
    """

    build: Callable[[], nn.Module]
    batch_size: int
    image: int
    numbers: int
    longest: int = 0

    def batch(self, samples: int, tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """Inputs and targets."""
        shape = (samples,) if self.image else (samples, tokens)
        targets = torch.randint(self.numbers, shape, device=device)
        if self.image:
            return torch.randn(samples, 3, self.image, self.image, device=device), targets
        return torch.randint(self.numbers, shape, device=device), targets


WORKLOADS = {
    "vgg16": Workload(vgg16, 32, 224, 1000),
    "resnet50": Workload(resnet50, 32, 224, 1000),
    "bert-base": Workload(Bert, 16, 0, BERT_BASE.vocabulary, BERT_BASE.positions),
    "gpt2-small": Workload(Gpt2, 8, 0, GPT2_SMALL.vocabulary, GPT2_SMALL.positions),
    "tiny": Workload(tiny, 4, 32, 10),
}
"""By the name that the command line has for it."""
