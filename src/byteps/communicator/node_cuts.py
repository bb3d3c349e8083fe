"""How tensors are cut for sums within nodes, how the parts travel, and the tensors that their shares are."""

from __future__ import annotations

from byteps.communicator.all_reduce_forms import Form
from byteps.communicator.all_reduce_sizes import Sizes
from byteps.communicator.collectives import Collective
from byteps.communicator.node_shares import Shares
from byteps.config import Config
from byteps.dtypes import DType, ReduceOp
from byteps.wire import TensorSpec

_CHUNK_BYTES = 4 << 20
_HALF = (DType.FLOAT16, DType.BFLOAT16)


def chunk_bytes(config: Config) -> int:
    """Where tensors are cut: the same on all ranks."""
    return Sizes(config.collective_bytes or _CHUNK_BYTES).collective_bytes


class Cuts:
    """Cuts tensors.

    Args:
        shares: Who holds what of a part.
        chunk_bytes: The largest part.
    """

    def __init__(self, shares: Shares, chunk_bytes: int) -> None:
        self.shares = shares
        self.chunk_bytes = chunk_bytes

    def form(self, spec: TensorSpec) -> Form:
        """Floats of 16 bits travel as 32, scaled sums unscaled: results are rounded once, at the end."""
        dtype, average = DType(spec.dtype), spec.op == ReduceOp.AVERAGE
        travels = DType.FLOAT32 if dtype in _HALF else dtype
        divisor = self.shares.size if average else 1
        scales = spec.prescale, spec.postscale
        return Form(
            dtype, Collective(travels, ReduceOp.SUM), travels is not dtype, False, average, *scales, divisor
        )

    def padded(self, spec: TensorSpec, nbytes: int) -> int:
        """Elements that a part is summed as."""
        return self.shares.padded(nbytes // DType(spec.dtype).itemsize)

    def of(self, spec: TensorSpec, tensor: int) -> list[TensorSpec]:
        """What this rank pushes of a tensor in a round.

        Args:
            spec: The tensor.
            tensor: Its number, which is another once ranks have disagreed about it.
        """
        begins = range(0, spec.nbytes, self.chunk_bytes)
        return [share for begin in begins for share in self.of_part(spec, tensor, begin)]

    def of_part(self, spec: TensorSpec, tensor: int, begin: int) -> list[TensorSpec]:
        """What this rank pushes of one part, in order; nothing if there is only one node."""
        if not self.shares.cross:
            return []
        padded = self.padded(spec, min(self.chunk_bytes, spec.nbytes - begin))
        return [
            TensorSpec(
                f"{spec.name}#{tensor} {begin}+{share.begin}",
                self.form(spec).collective.dtype,
                (share.end - share.begin,),
                ReduceOp.SUM,
                ephemeral=spec.ephemeral,
                members=share.members,
            )
            for share in self.shares.own(padded)
        ]
