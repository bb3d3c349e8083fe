"""JAX arrays within compiled functions, for Keras's backend of that name.

``gradients``  lists of gradients, reduced over all ranks
"""

from __future__ import annotations
