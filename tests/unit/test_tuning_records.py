"""Trials in files: what is written is read again, and what is no such file is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from byteps.errors import ConfigError
from byteps.tuning import records
from byteps.tuning.samplers import SAMPLERS
from byteps.tuning.space import SERVER_SPACE
from byteps.tuning.tuner import Search, Timing, Tuner
from byteps.wire import Knobs


def search(trials: int) -> Tuner:
    """One that has come to its end."""
    one = Tuner(Knobs(), Search(SERVER_SPACE, lambda: SAMPLERS["random"](SERVER_SPACE, 0), trials))
    while not one.settled:
        one.advance(Timing((1.0 + len(one.trials), 1.5 + len(one.trials)), cut=len(one.trials) == 2))
    return one


def record(folder: Path) -> records.Record:
    return records.Record(folder / "deep", "abc", "4 workers, 2 servers", 26, 1000)


def test_trials_are_read_as_they_were_written(tmp_path: Path) -> None:
    kept, one = record(tmp_path), search(4)
    kept.save(one)
    found = records.load(kept.path)
    assert kept.path.name == "abc-4-workers-2-servers-26.json"
    assert [path.name for path in kept.path.parent.iterdir()] == [kept.path.name]
    assert list(records.trials(found)) == one.trials
    assert (found.world, found.step_bytes, found.settled) == ("4 workers, 2 servers", 1000, True)


def test_a_later_job_knows_what_was_found(tmp_path: Path) -> None:
    kept, one = record(tmp_path), search(4)
    assert kept.known() is None
    kept.save(one)
    assert kept.known() is None  # automatic settings were the best: there is nothing to begin with
    one.best = Knobs(1 << 16, 1 << 20)
    kept.save(one)
    assert kept.known() == one.best
    one.settled = False
    kept.save(one)
    assert kept.known() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"best": {"speed": 1}}'])
def test_what_is_no_such_file_is_refused(tmp_path: Path, text: str) -> None:
    path = record(tmp_path).path
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ConfigError, match=str(path)):
        records.load(path)
    assert record(tmp_path).known() is None


def test_another_version_is_refused(tmp_path: Path) -> None:
    kept = record(tmp_path)
    kept.save(search(2))
    kept.path.write_text(kept.path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(ConfigError, match="another version"):
        records.load(kept.path)


def test_sizes_for_people() -> None:
    assert records.describe(Knobs()) == "automatic"
    assert records.describe(Knobs(1 << 17, 0, 1 << 16)) == "partition 128.0 KiB, chunk 64.0 KiB"
