"""JAX in processes that have several devices each, of which a compiled function uses all."""

from __future__ import annotations

import sys
from pathlib import Path

from .jobs import run_byteps

SCRIPT = """
import jax, jax.numpy as jnp, numpy as np
import byteps.jax as bps

bps.init()
assert jax.device_count() == 2
mesh = jax.sharding.Mesh(jax.devices(), "devices")
spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("devices"))
tree = {name: jax.device_put(jnp.arange(8.0) * (bps.rank() + 1), spread) for name in "ab"}
run = jax.jit(lambda tree: bps.push_pull(jax.tree.map(lambda leaf: 2 * leaf, tree), op=bps.Sum, name="x"))
for _ in range(3):
    for found in run(tree).values():
        np.testing.assert_array_equal(found, 6 * np.arange(8.0))
bps.shutdown()
"""


def test_arrays_spread_over_devices_are_sent_once(tmp_path: Path) -> None:
    script = tmp_path / "devices.py"
    script.write_text(SCRIPT)
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    job = run_byteps(
        "run", "-np", "2", "--servers", "1", sys.executable, str(script), environment=environment
    )
    code, output, errors = job.finish(50.0)
    assert code == 0, f"{output}\n{errors}"
