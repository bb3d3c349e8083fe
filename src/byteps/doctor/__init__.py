"""``byteps doctor``: looks at what a job needs on this host and between its processes, and says what to do.

Each module looks at one thing and returns ``Finding``s; ``command`` puts them together.
"""

from __future__ import annotations
