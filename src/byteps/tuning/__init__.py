"""Settings that find themselves while training goes on: a search over sizes, scored by measured steps.

``space``       which sizes there are to choose, and the closed form that says where to begin
``samplers``    what proposes the next sizes: Bayesian (optuna), random, grid
``surrogate``   what the trials so far say about sizes that were not tried
``tuner``       the order of trials: what is run next, and when to stop
``records``     trials in files, and results that later jobs begin with
``report``      trials as a table and a picture; ``command``: ``byteps tune report``
"""

from __future__ import annotations
