"""torch's own DistributedDataParallel with ``ddp_hook``, in processes of their own."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.adapters import ddp_cases
from tests.process.jobs import Job

# Of the gradients' sums in another order of rounding, after five steps.
TOLERANCES = {"float32": 1e-6, "float16": 5e-3, "bfloat16": 4e-2}


@pytest.mark.parametrize("size", [2, 3])
def test_it_trains_as_torch_alone_and_fails_with_the_reason(size: int, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    code, output, errors = Job([*torchrun, str(Path(ddp_cases.__file__)), str(tmp_path)]).finish()
    assert code == 0, f"{output}\n{errors}"
    by_rank = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(size)]
    for found in by_rank:
        assert len(found["differences"]) == 2 * len(ddp_cases.CASES)
        for case, difference in found["differences"].items():
            # Halving is exact, so two ranks have nothing to round but their sum.
            assert difference <= (0 if size == 2 else TOLERANCES.get(case.split(",")[0], 1e-12)), case
        assert all(found["placed"]), "gradients are sent under the names of their parameters"
        layers = [name.split(".")[1] for name in found["urgency"]]
        assert layers == sorted(layers), "the sooner a layer is needed, the more urgent"
        assert "rows.weight: sparse tensors (torch.sparse_coo) cannot be sent" in found["sparse"]
        assert f"DistributedDataParallel has 1 ranks and byteps {size}" in found["ranks"]
        assert found["threads"] == 0
    assert re.search(r"4.bias \(round 2\) failed on rank 0: rank \d has shut down", by_rank[0]["left"])
    assert all("the session was shut down" in found["left"] for found in by_rank[1:])
