"""A rank refuses a tensor while another still waits for a round that the first has the result of."""

from __future__ import annotations

from typing import Any, cast

import pytest

from byteps.communicator.interface import OK, RETRACTED
from byteps.communicator.names import Names
from byteps.control import ControlClient
from byteps.dtypes import DType
from byteps.errors import DeclarationError
from byteps.wire import Declare, Declared, Placement, Retract, TensorSpec

SPEC = TensorSpec("fc", DType.FLOAT32, (4,), 0)


class Round:
    """A transfer whose end the test decides on."""

    def __init__(self, number: int) -> None:
        self.status, self.round, self.peer, self.unresolved = 0, number, 0, 1

    def poll(self) -> bool:
        """Whether it is over."""
        return self.status != 0

    def wait(self, timeout_s: float) -> bool:
        """Whether it is over."""
        return self.poll()


class Plane:
    """Notes what is retracted."""

    def __init__(self) -> None:
        self.retracted: list[int] = []

    def install(self, spec: TensorSpec, placement: Placement) -> None:
        """Nothing to do."""

    def forget(self, tensor: int) -> None:
        """Nothing to do."""

    def retract(self, tensor: int) -> None:
        """Note it."""
        self.retracted.append(tensor)


class Control:
    """Places every tensor."""

    def call(self, answer: type, ask: Any) -> Declared:
        """Answer a declaration."""
        message: Declare = ask(1)
        return Declared(1, [Placement(7, message.generations[0], [])])

    def notify(self, message: object) -> None:
        """Nobody is told."""


@pytest.mark.parametrize("number", [2, 3])
def test_rounds_that_another_rank_has_the_result_of_end_well(number: int) -> None:
    plane = Plane()
    names: Names[Round] = Names(cast("ControlClient", Control()), plane, 0)
    flight = Round(number)
    names.begin(SPEC, lambda tensor: flight)
    names.retract(Retract(7, "fc", "rank 1 has another shape", after=2))
    assert plane.retracted == ([] if number == 2 else [7])
    flight.status = OK if number == 2 else RETRACTED
    if number == 2:
        with pytest.raises(DeclarationError, match="another shape"):
            names.begin(SPEC, Round)
    assert names.begin(SPEC, lambda tensor: Round(1)).round == 1, "the name is free again"
