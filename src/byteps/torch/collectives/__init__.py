"""Horovod's other collectives: rows of all ranks (``gathers``), shares of a sum (``scatters``), sparse sums.

Their results have other shapes than what they are given, so they are made in ``memory`` that is known late.
"""

from __future__ import annotations
