"""``byteps plan`` as a user meets it: tables, JSON, pages, advice and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from byteps.cli import main
from byteps.dtypes import GRAIN_BYTES
from byteps.planner import published
from byteps.planner.charts import ticks
from byteps.planner.choices import FIFO, SCHEDULED, WITH_WORKERS, counts
from byteps.planner.profile import FORMAT, load, save, shipped, shipped_layers

VGG = ["plan", "--model", "vgg16", "--workers", "4", "--link-gbit", "20"]


def plan(words: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def steps(report: dict[str, Any]) -> dict[str, float]:
    return {choice["name"]: choice["step_s"] for choice in report["choices"]}


def test_a_plan_compares_every_way(capsys: pytest.CaptureFixture[str]) -> None:
    report = plan(VGG, capsys)
    times = steps(report)
    assert list(times)[:3] == [FIFO, SCHEDULED, WITH_WORKERS]
    assert [choice["servers"] for choice in report["choices"]] == [0, 0, 0, 1, 2, 3, 4]
    assert times[FIFO] > times[SCHEDULED] > times["4 CPU servers"]
    assert times["2 CPU servers + workers"] < times["1 CPU server + workers"] < times[WITH_WORKERS]
    assert report["model"]["compute_s"] == pytest.approx(64 / 192)
    for choice in report["choices"]:
        assert choice["step_s"] >= 0.999 * choice["limit_s"]
        assert choice["efficiency"] == pytest.approx(report["model"]["compute_s"] / choice["step_s"])
        assert choice["samples_per_s"] == pytest.approx(4 * 64 / choice["step_s"])
        assert choice["epoch_s"] == choice["epoch_cost"] == 0


def test_prices_decide_over_servers(capsys: pytest.CaptureFixture[str]) -> None:
    epoch = [*VGG, "--samples", "1000000", "--worker-price", "3"]
    cheap = plan([*epoch, "--server-price", "0.01"], capsys)
    dear = plan([*epoch, "--server-price", "30"], capsys)
    assert cheap["advice"]["servers"] > 0
    assert dear["advice"]["servers"] == 0
    assert dear["advice"]["choice"] == WITH_WORKERS
    fifo = dear["choices"][0]
    assert fifo["epoch_s"] == pytest.approx(1e6 / fifo["samples_per_s"])
    assert fifo["epoch_cost"] == pytest.approx(fifo["epoch_s"] / 3600 * 4 * 3)
    assert any("costs more" in sentence for sentence in dear["advice"]["words"])


def test_a_network_that_does_not_matter_needs_no_servers(capsys: pytest.CaptureFixture[str]) -> None:
    fast = ["plan", "--model", "resnet50", "--workers", "4", "--link-gbit", "100"]
    advice = plan(fast, capsys)["advice"]
    assert advice["servers"] == 0
    assert advice["connections"] == 4
    assert "Computing is the limit: the network is hidden behind it." in advice["words"]


def test_a_credit_that_leaves_links_idle_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    """The automatic one has a limit, which so many workers exceed with the smallest partitions."""
    slow = ["plan", "--model", "resnet50", "--workers", "640", "--link-gbit", "0.5", "--no-colocated"]
    report = plan([*slow, "--servers", "640"], capsys)
    best = report["choices"][-1]
    assert best["credit_bytes"] >= 2 * 640 * GRAIN_BYTES, "a partition of each worker, there and back"
    assert report["advice"]["credit_bytes"] == best["credit_bytes"]
    assert any("the automatic one leaves links idle" in sentence for sentence in report["advice"]["words"])
    given = plan([*slow, "--servers", "640", "--credit-bytes", str(4 << 20)], capsys)["choices"][-1]
    assert given["credit_bytes"] == 4 << 20
    assert given["step_s"] > 1.5 * best["step_s"]


def test_the_table_says_what_it_assumes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*VGG, "--compute-ms", "100", "--gpus", "8", "--batch-size", "32"]) == 0
    output = capsys.readouterr().out
    assert "100 ms of computing a step" in output
    assert "time of a step as given; 32 samples per step and GPU" in output
    assert "4 workers of 8 GPUs, up to 4 CPU servers, links of 20 Gbit/s, 95 % of it for payload" in output
    assert "Rent 4 CPU machines: 4 CPU servers" in output


def test_servers_apart_only(capsys: pytest.CaptureFixture[str]) -> None:
    report = plan([*VGG, "--servers", "2", "--no-colocated"], capsys)
    assert list(steps(report)) == [FIFO, SCHEDULED, "1 CPU server", "2 CPU servers"]
    four_models_s = 4 * 4 * 138357544 / (0.95 * 20e9 / 8)
    times = steps(report)
    assert times["1 CPU server"] > four_models_s > times["2 CPU servers"]


def test_slow_servers_and_slow_sums_are_seen(capsys: pytest.CaptureFixture[str]) -> None:
    usual = steps(plan(VGG, capsys))["4 CPU servers"]
    for limit in (["--server-link-gbit", "5"], ["--sum-gbit", "4.75"]):
        assert steps(plan([*VGG, *limit], capsys))["4 CPU servers"] > 2 * usual
    times = steps(plan([*VGG, "--sum-gbit", "4.75"], capsys))
    assert times[WITH_WORKERS] == pytest.approx(times["4 CPU servers"], rel=0.01), (
        "as many that sum as slowly"
    )


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--model", "vgg61"], "did you mean vgg16?"),
        (["--model", "no-such-thing"], "There are: vgg16, alexnet"),
        ([], "give one of --model NAME"),
        (["--model", "vgg16", "--workers", "0"], "0 workers"),
        (["--model", "vgg16", "--workers", "-2"], "-2 workers"),
        (["--model", "vgg16", "--link-gbit", "0"], "link_gbit=0 must be positive"),
        (["--model", "vgg16", "--link-gbit", "inf"], "link_gbit must be finite"),
        (["--model", "vgg16", "--link-gbit", "nan"], "link_gbit=nan must be positive"),
        (["--model", "vgg16", "--servers", "-1"], "servers=-1 must not be negative"),
        (["--model", "vgg16", "--goodput", "1.2"], "goodput=1.2"),
        (["--model", "vgg16", "--latency-us", "-1"], "latency_s=-1e-06"),
        (["--model", "vgg16", "--worker-price", "-1"], "worker_price=-1"),
        (["--model", "vgg16", "--servers", "0", "--no-colocated"], "no server anywhere"),
        (["--model", "vgg16", "--samples", "-5"], "--samples -5"),
        (["--model", "vgg16", "--partition-bytes", "0"], "partition_bytes=0"),
        (["--model", "vgg16", "--credit-bytes", "-1"], "credit_bytes=-1"),
        (["--model", "vgg16", "--compute-ms", "-1"], "--compute-ms -1 must be positive"),
        (["--model", "vgg16", "--compute-ms", "1", "--samples-per-s", "1"], "give one of them"),
    ],
)
def test_what_cannot_be_is_refused(
    words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--workers", "4", "--link-gbit", "10", *words]) == 2
    output = capsys.readouterr()
    assert complaint in output.err
    assert output.out == ""
    assert output.err.count("\n") == 1


def test_the_cluster_has_to_be_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--model", "vgg16", "--link-gbit", "10"]) == 2
    assert "give --workers" in capsys.readouterr().err


class _Page(HTMLParser):
    """Collects what a browser would fetch, and the tags that are open at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [
            f"{tag} {name}" for name, _ in attributes if name in ("src", "href", "data", "action")
        ]


def test_the_page_is_complete_in_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.html"
    assert main([*VGG, "--html", str(file)]) == 0
    assert "Rent" in capsys.readouterr().out, "the table is printed as well"
    text = file.read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)
    assert page.fetched == []
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text
    charts = [ElementTree.fromstring(part + "</svg>") for part in _svgs(text)]
    assert len(charts) == 3
    over_servers, over_rates, timeline = charts
    assert len(over_servers.findall("polyline")) == 4
    assert len(over_rates.findall("polyline")) == 4
    titles = [str(rect.findtext("title")) for rect in timeline.findall("rect")]
    assert {title.split(",")[0] for title in titles} == {"backward", "push", "result", "forward"}


def _svgs(text: str) -> list[str]:
    return ["<svg" + part.split("</svg>")[0] for part in text.split("<svg")[1:]]


@pytest.mark.parametrize("high", [0.003, 1, 7.4, 99, 1234.5])
def test_ticks_are_few_round_and_enough(high: float) -> None:
    marks = ticks(high)
    assert marks[-1] >= high > marks[-2]
    assert 2 <= len(marks) <= 7


@pytest.mark.parametrize("servers", [0, 1, 12, 13, 256, 1024])
def test_numbers_of_servers_to_try(servers: int) -> None:
    found = counts(servers)
    assert found == sorted(set(found))
    assert len(found) <= 12
    assert found[:1] + found[-1:] == ([1, servers] if servers else [])


MEASURED = """
import pathlib, resource, sys
from byteps.cli import main
assert main(sys.argv[1:]) == 0
usage = resource.getrusage(resource.RUSAGE_SELF)
# Not ru_maxrss, which begins with that of the process that started this one.
peak_kib = pathlib.Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]
print(usage.ru_utime + usage.ru_stime, peak_kib)
"""


def test_a_large_cluster_is_planned_quickly_and_in_little_memory() -> None:
    words = ["plan", "--model", "bert-large", "--workers", "1024", "--servers", "256", "--link-gbit", "100"]
    command = [sys.executable, "-c", MEASURED, *words]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=55, check=True).stdout
    assert "256 CPU servers + workers" in printed
    cpu_s, peak_kib = printed.split()[-2:]
    # CPU time: how long it takes on a machine that has nothing else to do. Each of the steps with many
    # servers simulates 80,000 partitions of 16 KiB, since every server is to hold 200.
    assert float(cpu_s) < 20
    assert int(peak_kib) < 1 << 20


def test_published_gains_stand_beside_predictions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--published"]) == 0
    output = capsys.readouterr().out
    for words in ("published: +100 %", "published: +44 %", "Assumed:", "20 Gbit/s TCP"):
        assert words in output
    lines = [line.split() for line in output.splitlines() if line[:1].isdigit()]
    assert [int(line[0]) for line in lines] == [2, 4, 8, 16, 32] * 2


def test_the_explaining_goodput_does_explain() -> None:
    vgg16 = published.PUBLISHED[0]
    found = published.compare(vgg16, 4)
    assert 0 < found.gain < vgg16.gain
    assert published.GOODPUT > found.explaining > 0.5
    slower = published.rings(vgg16, 4, found.explaining)
    assert slower / found.servers_s - 1 == pytest.approx(vgg16.gain, abs=1e-3)


def test_a_profile_survives_a_file(tmp_path: Path) -> None:
    profile = shipped("bert-large", compute_s=0.5)
    save(profile, tmp_path / "profile.json")
    assert load(tmp_path / "profile.json") == profile


@pytest.mark.parametrize("name", sorted(shipped_layers()))
def test_shipped_models_have_times_and_bytes(name: str) -> None:
    profile = shipped(name)
    assert profile.nbytes == 4 * sum(n for layer in shipped_layers()[name] for _, n in layer["tensors"])
    forward_s = sum(layer.forward_s for layer in profile.layers)
    assert 2 * forward_s == pytest.approx(sum(layer.backward_s for layer in profile.layers))
    assert 0.02 < 3 * forward_s < 2


LAYER = {"name": "a", "tensor_bytes": [4], "forward_s": 1.0, "backward_s": 1.0}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"format": "other"}, "is no profile of `byteps profile`"),
        ({"layers": []}, "it has no layers"),
        ({"layers": None}, "a value has the wrong type"),
        ({"layers": [{"name": "a"}]}, "'tensor_bytes' is missing"),
        ({"layers": [{**LAYER, "backward_s": 0}]}, "no layer has a backward pass"),
        ({"layers": [{**LAYER, "tensor_bytes": []}]}, "no layer has gradients"),
        ({"layers": [{**LAYER, "tensor_bytes": [-4]}]}, "negative or endless"),
        ({"layers": [{**LAYER, "forward_s": float("nan")}]}, "negative or endless"),
        ({"batch_size": 0}, "batch_size 0 must be a positive number"),
        ({"batch_size": "many"}, "a value has the wrong type"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(
    change: dict[str, Any], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "profile.json"
    content = {"format": FORMAT, "name": "mine", "batch_size": 8, "origin": "here", "layers": [LAYER]}
    file.write_text(json.dumps({**content, **change}), encoding="utf-8")
    assert main(["plan", "--profile", str(file), "--workers", "2", "--link-gbit", "1"]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(("text", "complaint"), [(None, "cannot read the profile"), ("{", "is not JSON")])
def test_a_file_that_is_no_profile(
    text: str | None, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        (tmp_path / "profile.json").write_text(text, encoding="utf-8")
    words = ["plan", "--profile", str(tmp_path / "profile.json"), "--workers", "2", "--link-gbit", "1"]
    assert main(words) == 2
    assert complaint in capsys.readouterr().err
