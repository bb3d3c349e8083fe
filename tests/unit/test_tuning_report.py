"""``byteps tune report``: trials and surface as tables and as a picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree
from pathlib import Path

import pytest

from byteps.cli import main
from byteps.tuning.records import Record
from byteps.tuning.samplers import SAMPLERS
from byteps.tuning.space import COLLECTIVE_SPACE, SERVER_SPACE, Space
from byteps.tuning.tuner import Search, Timing, Tuner
from byteps.wire import Knobs


def write(folder: Path, world: str, space: Space, trials: int = 12) -> Path:
    one = Tuner(Knobs(), Search(space, lambda: SAMPLERS["random"](space, 3), trials, lambda: (17, 20, 17)))
    while not one.settled:
        knobs, number = one.now.knobs, len(one.trials)
        away = abs(knobs.partition_bytes - (1 << 17)) / 4e7 + abs(knobs.credit_bytes - (1 << 20)) / 4e7
        seconds = 0.2 + away + number * 1e-5
        one.advance(Timing(() if number == 5 else (seconds, seconds + 0.001, seconds), cut=number == 4))
    record = Record(folder, "0123456789ab", world, 26, 17 << 20)
    record.save(one)
    return record.path


def test_trials_and_surface_as_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "4 workers, 2 servers", SERVER_SPACE)
    assert main(["tune", "report", "--results", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "model 0123456789ab, 17.0 MiB in a step; 4 workers, 2 servers; search over: 12 trials" in printed
    assert "best: partition 128.0 KiB, credit 1.0 MiB, chunk 128.0 KiB" in printed
    rows = printed.splitlines()
    assert rows[3].split() == ["trial", "partition", "credit", "chunk", "step", "+-", "over", "start"]
    assert rows[4].split()[:5] == ["0", "start", "automatic", "automatic", "automatic"]
    assert "1 closed form" in rows[5]
    assert rows[5].endswith("best")
    assert rows[8].endswith("cut")
    assert "failed" in rows[9]
    assert any(row.startswith("16.0 KiB") and "(" in row for row in rows[20:])


def test_the_newest_is_shown_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "2 workers, all-reduce", COLLECTIVE_SPACE)
    picture = tmp_path / "trials.svg"
    assert main(["tune", "report", "--results", str(tmp_path), "--plot", str(picture)]) == 0
    assert "fusion" in capsys.readouterr().out
    drawn = xml.etree.ElementTree.fromstring(picture.read_text())
    names = [each.tag.rpartition("}")[2] for each in drawn.iter()]
    assert names.count("rect") > 9 * 10  # a field for each partition and credit
    assert names.count("circle") > 12
    assert names.count("polyline") == 1


def test_json_is_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "4 workers, 2 servers", SERVER_SPACE)
    assert main(["tune", "report", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(path.read_text())


def test_too_few_trials_for_a_surface(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "4 workers, 2 servers", SERVER_SPACE, trials=1)
    assert main(["tune", "report", str(path), "--plot", str(tmp_path / "few.svg")]) == 0
    assert "too few trials" in capsys.readouterr().out
    assert "too few trials" in (tmp_path / "few.svg").read_text()


@pytest.mark.parametrize("words", [["--results", "nowhere"], ["nowhere.json"], ["text.json"]])
def test_what_is_not_there_is_said(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.json").write_text("no trials")
    assert main(["tune", "report", *words]) != 0
    assert words[-1] in capsys.readouterr().err
