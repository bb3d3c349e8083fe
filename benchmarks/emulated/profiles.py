"""What is emulated: the layers of published models, their computing time and bytes, and the rows to measure.

Bytes and link rates are divided by the same ``SCALE``, so the times are those of full size.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from benchmarks.common import ROOT

SCALE = 32
# What TCP leaves of a link's rate for payload.
GOODPUT = 0.95
FP32_BYTES = 4
# Read as a file, since peers have no byteps in their environments.
PROFILES = ROOT / "src" / "byteps" / "planner" / "profiles.json"


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer as it is emulated.

    Args:
        name: Its name.
        elements: Of each of its gradients.
        forward_s, backward_s: Its share of the computing time, seconds.
    """

    name: str
    elements: tuple[int, ...]
    forward_s: float
    backward_s: float

    @property
    def nbytes(self) -> int:
        """Bytes of its gradients."""
        return FP32_BYTES * sum(self.elements)


@dataclass(frozen=True, slots=True)
class Setting:
    """What runs on which links: a row of the table.

    Args:
        number: Of the row in the table.
        profile: The model's name in ``profiles.json``.
        compute_ms: Forward and backward pass together.
        rate_mbit: Of every host's link, each direction, megabit per second.
    """

    number: int
    profile: str
    compute_ms: float
    rate_mbit: float

    @property
    def compute_s(self) -> float:
        """Forward and backward pass together, seconds."""
        return self.compute_ms / 1e3

    @property
    def rate(self) -> str:
        """The link's rate as ``tc`` reads it."""
        return f"{round(self.rate_mbit * 1e3)}kbit"

    @property
    def goodput(self) -> float:
        """Payload bytes per second of a link."""
        return GOODPUT * self.rate_mbit * 1e6 / 8

    @property
    def title(self) -> str:
        """The setting in words."""
        return f"{self.profile} {self.compute_ms:.4g} ms, {self.rate_mbit:.4g} Mbit/s"


ROWS = (
    Setting(1, "vgg16", 332, 440),
    Setting(2, "vgg16", 332, 625),
    Setting(3, "vgg16", 155, 312),
    Setting(4, "resnet50", 202, 130),
    Setting(5, "bert_large", 678, 515),
    Setting(6, "gpt2_medium", 700, 520),
    Setting(7, "transformer_big", 315, 715),
    Setting(8, "transformer_big", 315, 312),
)


def layers(profile: str, compute_s: float) -> list[Layer]:
    """A model's layers in forward order.

    Time is split by multiply-accumulates; a backward pass takes twice as long as a forward pass.

    Args:
        profile: Its name in ``profiles.json``.
        compute_s: Time of one forward and backward pass.
    """
    found = json.loads(PROFILES.read_text(encoding="utf-8"))[profile]
    total = sum(layer["macs"] for layer in found)
    result = []
    for layer in found:
        elements = tuple(max(1, round(count / SCALE)) for _, count in layer["tensors"])
        third_s = compute_s * layer["macs"] / total / 3
        result.append(Layer(layer["name"], elements, third_s, 2 * third_s))
    return result
