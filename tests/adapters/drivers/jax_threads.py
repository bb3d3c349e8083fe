"""JAX, imported as ranks that are threads of one process need it.

They share JAX's own threads: what a rank runs must be run by the rank's thread, or it could hold another's.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

__all__ = ["jax", "jnp"]

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_cpu_enable_async_dispatch", False)
