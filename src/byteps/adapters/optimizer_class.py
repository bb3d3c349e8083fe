"""Objects of a framework that reduce gradients, made of the user's own; Keras's optimizers for all backends.

The result is of a class derived from the optimizer's own and shares all attributes with it, so that built
state, schedules and settings that a configuration could not carry are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Reduce = Callable[[Sequence[Any], Sequence[Any]], "list[Any]"]
"""Reduces gradients, given with their variables in forward order."""

_MARK = "_byteps_distributed"


def distribute(optimizer: Any, reduce: Reduce, keep_local: Callable[[Any], None]) -> Any:
    """An optimizer whose ``apply`` reduces the gradients first; ``apply_gradients`` comes by there too.

    Args:
        optimizer: An instance of ``keras.optimizers.Optimizer``.
        reduce: Reduces the gradients.
        keep_local: Has the gradient of a variable stay local.

    Raises:
        ValueError: It is distributed already.
    """
    plain = type(optimizer)
    if is_distributed(optimizer):
        raise ValueError("this optimizer is distributed already: wrap each optimizer once")

    def apply(self: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> Any:
        """See ``keras.optimizers.Optimizer``; the gradients are reduced over all ranks first."""
        grads = list(grads)
        given = None if trainable_variables is None else list(trainable_variables)
        _check_known(self, given)
        variables = self._trainable_variables if given is None else given
        return plain.apply(self, reduce(grads, variables), given)

    def register_local_var(self: Any, var: Any) -> None:
        """The gradient of this variable stays local."""
        keep_local(var)

    return sharing(optimizer, {"apply": apply, "register_local_var": register_local_var, _MARK: True})


def sharing(plain: Any, members: dict[str, Any]) -> Any:
    """An instance of a class derived from that of ``plain``, with more members and the same attributes."""
    kind = type(plain)
    made: Any = object.__new__(type(kind.__name__, (kind,), {"__module__": kind.__module__, **members}))
    object.__setattr__(made, "__dict__", plain.__dict__)  # past the class's own __setattr__
    return made


def is_distributed(optimizer: object) -> bool:
    """Whether ``distribute`` made the optimizer, or its class did."""
    return bool(getattr(type(optimizer), _MARK, False))


def _check_known(optimizer: Any, variables: Sequence[Any] | None) -> None:
    """Refuse, before anything is sent, variables that were made after the optimizer was built."""
    if not optimizer.built:
        if variables is None:
            raise ValueError(
                "the optimizer does not know its variables: call optimizer.build(model.trainable_variables)"
            )
        return
    known = {id(variable) for variable in optimizer._trainable_variables}
    unknown = [variable for variable in variables or () if id(variable) not in known]
    if unknown:
        names = ", ".join(str(getattr(variable, "path", variable.name)) for variable in unknown[:5])
        raise ValueError(
            f"the optimizer was built without the variables {names}, which were made later. Build the whole "
            "model first, or make a new optimizer and call optimizer.build(model.trainable_variables)"
        )
