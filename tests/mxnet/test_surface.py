"""The public names of byteps.mxnet, and what is imported together with it."""

from __future__ import annotations

import byteps.mxnet
from tests.house.tree import ROOT


def test_public_names_are_the_listed_ones() -> None:
    listed = (ROOT / "tests" / "house" / "public_names.txt").read_text(encoding="utf-8").split()
    found = sorted(f"byteps.mxnet.{name}" for name in byteps.mxnet.__all__)
    assert found == [name for name in listed if name.startswith("byteps.mxnet.")]
