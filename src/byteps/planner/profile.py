"""What a training step computes and how many bytes of gradients it has, by layer: shipped or recorded."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

from byteps.errors import ConfigError

FORMAT = "byteps profile 1"
FP32_BYTES = 4


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer of a model.

    Args:
        name: Its name.
        tensors: Bytes of each of its gradients.
        forward_s: Computing time of its forward pass, seconds.
        backward_s: The same of its backward pass, at whose end its gradients are ready.
    """

    name: str
    tensors: tuple[int, ...]
    forward_s: float
    backward_s: float

    @property
    def nbytes(self) -> int:
        """Bytes of its gradients."""
        return sum(self.tensors)


@dataclass(frozen=True, slots=True)
class Profile:
    """A model and how long it computes.

    Args:
        name: What reports call it.
        layers: In forward order.
        batch_size: Samples of a step on one worker.
        origin: Where the times come from, in words.
    """

    name: str
    layers: tuple[Layer, ...]
    batch_size: float
    origin: str

    @property
    def nbytes(self) -> int:
        """Bytes of all gradients."""
        return sum(layer.nbytes for layer in self.layers)


@dataclass(frozen=True, slots=True)
class Usual:
    """How a shipped model is trained if nobody says otherwise.

    Args:
        batch_size: Samples of a step on one GPU.
        rate: Samples per second of one V100, in fp32.
        origin: Where the rate comes from.
    """

    batch_size: int
    rate: float
    origin: str


_FROM_MACS = "estimated: 6 floating-point operations per multiply-accumulate at 11 TFLOP/s"
USUAL: Mapping[str, Usual] = MappingProxyType(
    {
        "vgg16": Usual(64, 192, "published for a V100, batches of 16, PyTorch"),
        "alexnet": Usual(128, 2570, _FROM_MACS),
        "resnet50": Usual(64, 356, "published for a V100, PyTorch"),
        "bert_base": Usual(32, 145, "published for V100s, 128 tokens"),
        "bert_large": Usual(32, 50, "published for a V100, 128 tokens"),
        "gpt2_small": Usual(8, 12.6, _FROM_MACS + ", 1,024 tokens"),
        "gpt2_medium": Usual(4, 4.4, _FROM_MACS + ", 1,024 tokens"),
        "transformer_base": Usual(80, 903, _FROM_MACS + ", 32 tokens"),
        "transformer_big": Usual(80, 273, "published for a V100: 8,742 tokens/s, 32 tokens"),
    }
)


def shipped_layers() -> dict[str, list[dict[str, Any]]]:
    """Layers of published models in forward order, by the model's name.

    Each has a ``name``, its ``tensors`` as [name, elements], and ``macs``: multiply-accumulates of one
    sample's forward pass.
    """
    text = (files("byteps.planner") / "profiles.json").read_text(encoding="utf-8")
    found: dict[str, list[dict[str, Any]]] = json.loads(text)
    return found


def shipped(name: str, compute_s: float = 0.0, batch_size: float = 0.0) -> Profile:
    """A published model in fp32, its time split over the layers by multiply-accumulates.

    A backward pass takes twice as long as a forward pass.

    Args:
        name: Of the model; ``-`` and ``_`` are the same.
        compute_s: Time of one forward and backward pass, seconds; 0: as on a V100.
        batch_size: Samples of a step on one worker; 0: what is usual.

    Raises:
        ConfigError: There is no such model.
    """
    models = shipped_layers()
    key = name.lower().replace("-", "_")
    if key not in models:
        near = difflib.get_close_matches(key, models, 1, 0.4)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"no model {name!r} is shipped; {hint}There are: {', '.join(models)}")
    usual = USUAL[key]
    batch = batch_size or usual.batch_size
    origin = "time of a step as given" if compute_s else f"{usual.rate:g} samples/s ({usual.origin})"
    third_s = (compute_s or batch / usual.rate) / 3
    total = sum(layer["macs"] for layer in models[key])
    layers = [
        Layer(
            layer["name"],
            tuple(FP32_BYTES * count for _, count in layer["tensors"]),
            third_s * layer["macs"] / total,
            2 * third_s * layer["macs"] / total,
        )
        for layer in models[key]
    ]
    return Profile(key, tuple(layers), batch, origin)


def scaled(profile: Profile, compute_s: float, batch_size: float) -> Profile:
    """The same model with other batches.

    Args:
        profile: The model.
        compute_s: Time of a forward and backward pass, seconds; 0: in proportion to the batch.
        batch_size: Samples of a step on one worker.
    """
    before_s = sum(layer.forward_s + layer.backward_s for layer in profile.layers)
    factor = compute_s / before_s if compute_s else batch_size / profile.batch_size
    layers = [
        Layer(layer.name, layer.tensors, factor * layer.forward_s, factor * layer.backward_s)
        for layer in profile.layers
    ]
    origin = "time of a step as given" if compute_s else f"{profile.origin}, in proportion to the batch"
    return Profile(profile.name, tuple(layers), batch_size, origin)


def save(profile: Profile, path: Path) -> None:
    """Write a profile as JSON.

    Raises:
        OSError: The file cannot be written.
    """
    content = {
        "format": FORMAT,
        "name": profile.name,
        "batch_size": profile.batch_size,
        "origin": profile.origin,
        "layers": [
            {
                "name": layer.name,
                "tensor_bytes": list(layer.tensors),
                "forward_s": layer.forward_s,
                "backward_s": layer.backward_s,
            }
            for layer in profile.layers
        ],
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> Profile:
    """Read a profile that ``byteps profile`` wrote.

    Raises:
        ConfigError: The file cannot be read, or is no profile that could be planned with.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the profile {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON, so no profile of `byteps profile`: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ConfigError(f'{path} is no profile of `byteps profile`: its "format" is not {FORMAT!r}')
    try:
        layers = tuple(_layer(entry) for entry in content["layers"])
        name, batch, origin = str(content["name"]), float(content["batch_size"]), str(content["origin"])
    except KeyError as error:
        raise ConfigError(f"profile {path}: {error} is missing; record it again") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"profile {path}: a value has the wrong type ({error}); record it again") from error
    return checked(Profile(name, layers, batch, origin), str(path))


def _layer(entry: Mapping[str, Any]) -> Layer:
    sizes = tuple(int(nbytes) for nbytes in entry["tensor_bytes"])
    return Layer(str(entry["name"]), sizes, float(entry["forward_s"]), float(entry["backward_s"]))


def checked(profile: Profile, where: str) -> Profile:
    """The profile, if one can plan with it.

    Raises:
        ConfigError: It has no layers, impossible numbers, no gradients or no backward pass.
    """
    if not profile.layers:
        raise ConfigError(f"profile {where}: it has no layers")
    if not 0 < profile.batch_size < math.inf:
        raise ConfigError(f"profile {where}: batch_size {profile.batch_size:g} must be a positive number")
    for layer in profile.layers:
        times: Sequence[float] = (layer.forward_s, layer.backward_s)
        if min((0, *layer.tensors)) < 0 or not all(0 <= time_s < math.inf for time_s in times):
            raise ConfigError(f"profile {where}: layer {layer.name!r} has negative or endless bytes or times")
    if not profile.nbytes:
        raise ConfigError(f"profile {where}: no layer has gradients, so there is nothing to communicate")
    if not any(layer.backward_s for layer in profile.layers):
        raise ConfigError(
            f"profile {where}: no layer has a backward pass. Record one of a script that trains: it calls "
            "loss.backward() and optimizer.step()"
        )
    return profile
