"""One setting's value: from text to its type, checked against what the field's metadata allows."""

from __future__ import annotations

import math
import os
import re
from typing import TYPE_CHECKING, Any

from byteps.errors import ConfigError

if TYPE_CHECKING:
    import dataclasses

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})
_SIZE = re.compile(r"([0-9]+)\s*([KMG])iB", re.IGNORECASE)
_ACCEPTED = {"str": ("str",), "bool": ("bool",), "int": ("int",), "float": ("float", "int")}
_SIZE_SHIFT = {"K": 10, "M": 20, "G": 30}


def parse(field: dataclasses.Field[Any], value: object, label: str) -> Any:
    """Turn a given value into the field's type and check it.

    Args:
        field: a field of ``Config``; its metadata says what is allowed.
        value: text, or a value of the field's own type.
        label: where the value was given (a variable, an option, an argument), for the error.

    Raises:
        ConfigError: the value has another type or is outside what is allowed.
    """
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        value = _from_text(field, value.strip())
    validate(field, value, label)
    return float(value) if isinstance(value, int) and field.type == "float" else value


def validate(field: dataclasses.Field[Any], value: object, label: str) -> None:
    """Check a value of the field's own type.

    Raises:
        ConfigError: naming ``label``, the value and what is allowed.
    """
    if type(value).__name__ in _ACCEPTED[str(field.type)] and _in_bounds(field, value):
        return
    shown = "(hidden)" if field.metadata["secret"] else repr(value)
    raise ConfigError(f"{label} is {shown}, but {field.name} must be {allowed(field)}")


def allowed(field: dataclasses.Field[Any]) -> str:
    """Say in words which values a field takes."""
    low, high, unit = (field.metadata[key] for key in ("low", "high", "unit"))
    if field.metadata["choices"]:
        return "one of " + ", ".join(field.metadata["choices"])
    if field.type == "bool":
        return "1 or 0 (also true/false, yes/no, on/off)"
    if field.type == "str":
        return f"{unit} of at most {high} bytes" if high is not None else f"{unit} or empty"
    kind = "a whole number" if field.type == "int" else "a number"
    bounds = f" from {low} to {high}" if high is not None else f" of at least {low}"
    return kind + bounds + (f" ({unit})" if unit else "")


def _from_text(field: dataclasses.Field[Any], text: str) -> object:
    """Convert text to the field's type; text that does not convert stays text and so fails the check."""
    if field.type == "str":
        return _choice(field, text)
    if field.type == "bool":
        word = text.lower()
        return True if word in _TRUE else False if word in _FALSE else text
    size = _SIZE.fullmatch(text) if field.metadata["unit"] == "bytes" else None
    if size is not None:
        return int(size[1]) << _SIZE_SHIFT[size[2].upper()]
    try:
        return int(text) if field.type == "int" else float(text)
    except ValueError:
        return text


def _choice(field: dataclasses.Field[Any], text: str) -> str:
    """Bring a choice to its one spelling; other text is left as it is."""
    if not field.metadata["choices"]:
        return text
    word = text.lower()
    return str(field.metadata["aliases"].get(word, word))


def _in_bounds(field: dataclasses.Field[Any], value: Any) -> bool:
    low, high, check = (field.metadata[key] for key in ("low", "high", "check"))
    if field.metadata["choices"]:
        return value in field.metadata["choices"]
    if isinstance(value, str):
        if check is not None and value:
            return bool(check(value))
        return "\0" not in value and (high is None or len(value.encode(errors="replace")) <= high)
    if isinstance(value, bool):
        return True
    return math.isfinite(value) and (low is None or value >= low) and (high is None or value <= high)
