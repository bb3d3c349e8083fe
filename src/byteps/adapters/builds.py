"""What Horovod scripts ask about the library that they run on. All answers hold before ``init()``, too."""

from __future__ import annotations

from byteps.errors import BytePSError

HorovodInternalError = BytePSError
"""What scripts catch to learn that a collective has failed."""


def mpi_built() -> bool:
    """False: nothing uses MPI."""
    return False


def mpi_enabled() -> bool:
    """False: nothing uses MPI."""
    return False


def mpi_threads_supported() -> bool:
    """Raises ValueError, as Horovod does without MPI."""
    raise ValueError("byteps does not use MPI, so there are no MPI threads to ask about")


def gloo_built() -> bool:
    """True: as with Horovod's gloo, nothing needs MPI, and ``init()`` works again after ``shutdown()``."""
    return True


def gloo_enabled() -> bool:
    """True; see ``gloo_built``."""
    return True


def nccl_built() -> int:
    """0, in place of a version: byteps itself moves tensors over the network, without NCCL."""
    return 0


def ddl_built() -> bool:
    """False: there is no such library here."""
    return False


def ccl_built() -> bool:
    """False: there is no such library here."""
    return False


def cuda_built() -> bool:
    """False: nothing is compiled against CUDA. CUDA tensors are accepted all the same."""
    return False


def rocm_built() -> bool:
    """False: nothing is compiled against ROCm."""
    return False
