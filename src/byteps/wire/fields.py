"""Numbers and names as messages carry them, with their limits."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from msgspec import Meta

Count: TypeAlias = Annotated[int, Meta(ge=0, lt=2**62)]
Number: TypeAlias = Annotated[int, Meta(ge=0, lt=2**31)]
OptionalNumber: TypeAlias = Annotated[int, Meta(ge=-1, lt=2**31)]
TensorName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=1024)]
