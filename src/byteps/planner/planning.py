"""A plan: all ways of exchanging gradients beside each other, and advice."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from byteps.planner import bounds
from byteps.planner.advising import Advice, advise
from byteps.planner.choices import Choice, Planner


@dataclass(frozen=True, slots=True)
class Plan:
    """All that was found out.

    Args:
        planner: What it is for.
        compute_s: A step without communication, seconds.
        choices: All ways that were tried; those with servers by their number.
        advice: What to do.
    """

    planner: Planner
    compute_s: float
    choices: Sequence[Choice]
    advice: Advice

    def report(self) -> dict[str, Any]:
        """For programs: what it is for, every choice and the advice; keys carry their units."""
        profile, cluster = self.planner.profile, self.planner.cluster
        return {
            "model": {
                "name": profile.name,
                "gradient_bytes": profile.nbytes,
                "layers": len(profile.layers),
                "batch_size": profile.batch_size,
                "compute_s": self.compute_s,
                "origin": profile.origin,
            },
            "cluster": _finite(dataclasses.asdict(cluster)),
            "samples_per_epoch": self.planner.samples_per_epoch,
            "choices": [dataclasses.asdict(choice) for choice in self.choices],
            "advice": dataclasses.asdict(self.advice),
        }


def make_plan(planner: Planner) -> Plan:
    """Try all ways, and find good settings for the best."""
    choices = [planner.choice(name, servers) for name, servers in planner.names()]
    compute_s = bounds.compute_s(planner.profile.layers)
    return Plan(planner, compute_s, choices, advise(planner, choices))


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON knows no infinity: None stands for it."""
    return {name: None if value == float("inf") else value for name, value in values.items()}
