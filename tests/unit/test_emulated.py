"""Emulated training: bounds of a step's time, the published rows, the model's clock and gradients."""

from __future__ import annotations

import itertools
import json
import random
import time
import xml.etree.ElementTree
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from benchmarks import mixed
from benchmarks.emulated import ablation, sweep
from benchmarks.emulated.chart import bars
from benchmarks.emulated.contest import Outcome, Trial
from benchmarks.emulated.model import Clock, EmulatedModel, expected
from benchmarks.emulated.overlap import to_come
from benchmarks.emulated.places import Place, mode_of, place_of
from benchmarks.emulated.profiles import ROWS, Layer, Setting, layers
from benchmarks.emulated.rows import verdict
from benchmarks.emulated.systems import alone, take_steps
from byteps.planner.bounds import costs, fifo_s, limit_s, link_share, serial_s

# Row, with all-reduce: FIFO and limit; with four servers: FIFO and limit, milliseconds.
PUBLISHED = {
    1: (607, 497, 442, 332),
    2: (460, 350, 344, 332),
    3: (752, 700, 518, 467),
    4: (378, 311, 274, 207),
    5: (1310, 1114, 969, 773),
    6: (1387, 1192, 1028, 833),
    7: (632, 553, 474, 396),
    8: (1243, 1164, 881, 803),
}


@pytest.mark.parametrize("setting", ROWS, ids=lambda setting: str(setting.number))
def test_bounds_of_the_published_rows(setting: Setting) -> None:
    model = layers(setting.profile, setting.compute_s)
    found = []
    for servers in (0, 4):
        taken = costs(model, link_share(4, servers), setting.goodput)
        found += [round(1e3 * bound(model, taken)) for bound in (fifo_s, limit_s)]
    assert tuple(found) == PUBLISHED[setting.number]


def test_bounds_of_three_layers() -> None:
    """Forward and backward passes of 1 per layer, gradients that take 1.5, 3 and 1.5."""
    model = [Layer(str(number), (), 1.0, 1.0) for number in range(3)]
    taken = [1.5, 3.0, 1.5]
    # The second layer decides: behind its bytes comes what is computed from it on.
    assert limit_s(model, taken) == (1.5 + 3.0) + 2 + 2
    assert fifo_s(model, taken) == 3 + 1 + 6
    assert serial_s(model, taken) == 6 + 12


def _simulated(model: list[Layer], taken: list[float], urgent_first: bool, tick: float) -> float:
    """A step, tick by tick: one link that serves whole ticks in a given order."""
    left = list(taken)
    ready = [0.0] * len(model)
    at = 0.0
    for number in reversed(range(len(model))):
        at += model[number].backward_s
        ready[number] = at
    now, done = 0.0, [0.0] * len(model)
    while any(rest > 1e-9 for rest in left):
        waiting = [number for number, rest in enumerate(left) if rest > 1e-9 and ready[number] <= now + 1e-9]
        if waiting:
            number = min(waiting) if urgent_first else max(waiting)
            left[number] -= tick
            done[number] = now + tick
        now += tick
    if not urgent_first:
        return max(done + ready) + sum(layer.forward_s for layer in model)
    end = ready[0]
    for layer, arrived in zip(model, done, strict=True):
        end = max(end, arrived) + layer.forward_s
    return end


@pytest.mark.parametrize("urgent_first", [True, False])
def test_bounds_agree_with_a_simulation(urgent_first: bool) -> None:
    source = random.Random(1)
    for _ in range(200):
        count = source.randint(1, 6)
        model = [
            Layer(str(number), (), source.randint(0, 4), source.randint(0, 6)) for number in range(count)
        ]
        taken = [float(source.randint(1, 8)) for _ in range(count)]
        bound = limit_s(model, taken) if urgent_first else fifo_s(model, taken)
        assert bound == pytest.approx(_simulated(model, taken, urgent_first, tick=0.5))


def test_bytes_on_a_link() -> None:
    assert link_share(4, 4) == 1
    assert link_share(4, 0) == 1.5
    assert link_share(4, 2) == 2


def test_a_late_sleep_is_made_up_for() -> None:
    clock = Clock()
    began = time.monotonic()
    clock.spend(0.01, began - 0.05)  # 40 ms late from the start
    clock.spend(0.05, time.monotonic())
    assert 0.0099 <= time.monotonic() - began < 0.05


def test_parameters_after_training_alone_are_the_reference() -> None:
    model_layers = [Layer(str(sizes), sizes, 0.0, 0.0) for sizes in ((300, 7), (), (20,))]
    model = EmulatedModel(0, model_layers)
    assert len(take_steps(alone(model), 5, 0.0)) == 6
    for parameter, reference in itertools.zip_longest(model.parameters(), expected(model_layers, 1, 5)):
        assert torch.equal(parameter, reference)
        assert reference.count_nonzero() > 0


def test_gradients_differ_between_ranks_steps_and_parameters() -> None:
    model_layers = [Layer("first", (500, 500), 0.0, 0.0)]
    after = [list(expected(model_layers, 1, steps)) for steps in (1, 2)]
    assert not torch.equal(after[0][0], after[0][1])
    assert not torch.equal(2 * after[0][0], after[1][0])
    two_ranks = next(iter(expected(model_layers, 2, 1)))
    assert not torch.equal(two_ranks, after[0][0])


def test_a_row_that_misses_its_bound_fails() -> None:
    setting = ROWS[0]
    trial = Trial(setting, layers(setting.profile, setting.compute_s), {})
    ours = {"cross": Outcome(1.0, [0.34, 0.9, 0.3]), "cross, colocated": Outcome(1.5, [0.6])}
    trial.outcomes.update(ours, plain=Outcome(1.0, [0.48]), ddp=Outcome(1.5, [0.62]))
    passed = {row.what: row.passed for row in verdict(trial)}
    assert passed["row 1: cross, T*/T"]
    assert not passed["row 1: plain, FIFO bound / T"]
    assert not passed["row 1: cross, colocated / ddp"]
    too_fast = Trial(setting, trial.layers, {"cross": Outcome(1.0, [0.3])})
    assert not all(row.passed for row in verdict(too_fast))


@pytest.mark.parametrize(
    ("name", "servers", "share", "busiest"),
    [
        ("cross", [4, 5, 6, 7], 1.0, [0, 1, 2, 3]),
        ("cross, 2 servers", [4, 5], 2.0, [4, 5]),
        ("cross, colocated", [0, 1, 2, 3], 1.5, [0, 1, 2, 3]),
        ("cross, colocated, 2 servers", [0, 1, 2, 3, 4, 5], 1.2, [0, 1, 2, 3, 4, 5]),
        ("allreduce-cross", [], 1.5, [0, 1, 2, 3]),
        ("ddp", [], 1.5, [0, 1, 2, 3]),
    ],
)
def test_where_sums_are_made_follows_from_the_name(
    name: str, servers: list[int], share: float, busiest: list[int]
) -> None:
    place = place_of(name, mode_of(name))
    assert place.least <= place.share
    found = Place(list(place.servers), place.share, list(place.busiest), place.least)
    assert found == Place(servers, pytest.approx(share), busiest, place.least)  # type: ignore[arg-type]


def test_mixed_placement_is_held_to_the_formula() -> None:
    outcome = Outcome(1.2, [1.05 * mixed.formula_s(1.2)], [1.22], [1.19])
    assert [row.passed for row in mixed.verdict(2, outcome)] == [True] * 3
    outcome = Outcome(1.2, [0.9 * mixed.formula_s(1.2)], [1.25], [1.15])
    assert [row.passed for row in mixed.verdict(2, outcome)] == [False] * 3


def test_what_the_ablation_compares() -> None:
    times_s = (1.0, 1.03, 0.9, 0.8, 0.7, 0.5)
    names = [variant.name for variant in ablation.VARIANTS]
    outcomes = {name: Outcome(1.0, [time_s]) for name, time_s in zip(names, times_s, strict=True)}
    trial = Trial(ROWS[0], layers(ROWS[0].profile, ROWS[0].compute_s), outcomes)
    assert not ablation.cost(trial).passed
    ratios = [line[-1] for line in ablation.lines(trial)]
    assert ratios[0] == ""
    assert ratios[1:] == pytest.approx([after / before for before, after in itertools.pairwise(times_s)])


@pytest.mark.parametrize("profile", sweep.COMPUTE_MS)
def test_at_the_balance_rate_bytes_take_as_long_as_computing(profile: str) -> None:
    setting = sweep.setting_of(profile, 1.0)
    taken = costs(layers(profile, setting.compute_s), 1.0, setting.goodput)
    assert sum(taken) == pytest.approx(setting.compute_s)


def test_a_sweep_goes_on_where_it_was_broken_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results"
    cell = sweep.Cell("vgg16", 2.0, "", {"cross": 1.0, "plain": 1.2, "ddp": 0.9, "serial-ps": 2.9}, 3)
    path.write_text(json.dumps(asdict(cell)) + "\n", encoding="utf-8")
    assert sweep.read(path) == [cell]
    assert cell.over_best == pytest.approx(1 / 0.9)
    assert cell.gain == pytest.approx(2.9)
    left: list[object] = []
    monkeypatch.setattr(sweep, "measure", lambda keys, path: left.extend(keys))
    with pytest.raises(SystemExit) as ended:
        sweep.main(["--results", str(path), "--profiles", "vgg16"])
    assert ended.value.code == 1
    assert len(left) == 7
    assert cell.key not in left


def test_what_was_still_to_come_of_the_largest_layer() -> None:
    sizes = {layer.name: layer.nbytes for layer in layers("vgg16", 1.0)}
    others = sum(sizes.values()) - sizes["fc6"]
    assert to_come(others) == 0
    assert 0.9 < to_come(others + sizes["fc6"]) <= 1


def test_rates_as_tc_reads_them() -> None:
    assert ROWS[0].rate == "440000kbit"
    assert replace(ROWS[0], rate_mbit=12.3456).rate == "12346kbit"


def test_the_chart_is_well_formed() -> None:
    text = bars("a < b", [("one & two", {"x": 0.5, "y": 0.9}), ("three", {"y": 1.0})])
    root = xml.etree.ElementTree.fromstring(text)
    assert sum(element.tag.endswith("rect") for element in root) == 1 + 2 + 3
