"""Whether RDMA could be used: UCX, the devices that it finds, and how much memory may be locked for them."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator

from byteps import _native
from byteps.config import Config
from byteps.doctor.findings import Finding, fail, ok, warn
from byteps.transport import Library, NoUcx, locked_memory_is_short

_NO_DEVICE = "these are slower than transport = tcp or shm; look at /dev/infiniband and `ucx_info -d`"
_RAISE = "raise it: ulimit -l unlimited, or LimitMEMLOCK=infinity in the service"


def check_rdma(config: Config) -> Iterator[Finding]:
    """Look at UCX and at locked memory. Only a job with ``transport = ucx`` fails without them."""
    yield _ucx(config)
    yield _locked_memory(config)


def _ucx(config: Config) -> Finding:
    asked = config.transport == "ucx"
    if not _native.ucx_is_built() and not asked:
        return ok("ucx", "not built in; transport = ucx, for RDMA, would need it")
    try:
        ucx = Library().open(config)
    except NoUcx as error:
        problem, _, advice = str(error).partition("; ")
        return (fail if asked else warn)("ucx", problem, advice)
    # Its own names, such as rc_verbs/mlx5_0:1, of the lines "resource 0 : md 0 dev 0 flags -- self/memory0".
    found = re.findall(r"resource +\d+ .* (\S+/\S+)", ucx.resources)
    if asked and not any(name.startswith(("rc_", "dc_", "ud_")) for name in found):
        return warn("ucx", f"{ucx.version} finds no RDMA device, only {', '.join(found)}", _NO_DEVICE)
    return ok("ucx", f"{ucx.version}, built in; finds {', '.join(found)}")


def _locked_memory(config: Config) -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    text = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft >> 10} KiB"
    if config.transport == "ucx" and locked_memory_is_short():
        return warn("locked memory", f"{text}: RDMA devices may need more", _RAISE)
    return ok("locked memory", f"{text}; only RDMA needs it unlimited")
