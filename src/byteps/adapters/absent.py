"""What an adapter lacks: who asks for it is told what to call."""

from __future__ import annotations

from typing import ClassVar, NoReturn

_ABSENT = frozenset(
    {
        "Adasum",
        "ProcessSet",
        "add_process_set",
        "allgather",
        "alltoall",
        "global_process_set",
        "grouped_allgather",
        "grouped_reducescatter",
        "join",
        "reducescatter",
        "remove_process_set",
        "sparse_allreduce_async",
    }
)


class Refused:
    """A class that cannot be in an adapter. Adapters derive it from this.

    Attributes:
        reason: Why, and what to use.
    """

    reason: ClassVar[str]

    def __init__(self, *arguments: object, **options: object) -> None:
        raise NotImplementedError(self.reason)


def refuse(module: str, name: str) -> NoReturn:
    """Stands for a module's ``__getattr__``.

    Args:
        module: The adapter's name.
        name: What it lacks.

    Raises:
        AttributeError: Always.
    """
    text = f"module {module!r} has no attribute {name!r}"
    if name in _ABSENT:
        text += (
            ": this adapter reduces and broadcasts. For rows of all ranks call allgather_object(numpy_array) "
            "and join what it returns; all of Horovod's collectives are in byteps.torch and byteps.tensorflow"
        )
    raise AttributeError(text)
