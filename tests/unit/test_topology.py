"""Plans for described machines, the description of this one, and pinning where it is not allowed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps.cli import main
from byteps.errors import ConfigError
from byteps.topology import (
    Gpu,
    Machine,
    Nic,
    Node,
    Pinning,
    Plan,
    Wishes,
    chosen_gpus,
    from_json,
    plan,
    read_machine,
    to_json,
)
from byteps.topology.cpus import format_cpus, parse_cpus

MACHINES = Path(__file__).with_name("machines")
PAGE = Path(__file__).parents[2] / "docs" / "topology.md"
NAMES = sorted(path.stem for path in MACHINES.glob("*.json"))


def machine(name: str) -> Machine:
    path = MACHINES / f"{name}.json"
    return from_json(path.read_bytes(), path.name)


def cpus(made: Plan) -> list[str]:
    return [pin.cpus for pin in made.pins]


@pytest.mark.parametrize("name", NAMES)
def test_plans_of_the_described_machines_are_the_golden_ones(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topology", "--from", str(MACHINES / f"{name}.json")]) == 0
    drawn = capsys.readouterr().out
    golden = MACHINES / f"{name}.txt"
    assert drawn == golden.read_text(encoding="utf-8"), f"the plan changed; if that is meant, mend {golden}"
    assert drawn in PAGE.read_text(encoding="utf-8") or name == "one_socket", f"mend {PAGE}"


def test_there_are_five_machines() -> None:
    assert NAMES == ["8_nvlink_gpus", "arm", "container", "one_socket", "two_sockets_8_pcie_gpus"]


@pytest.mark.parametrize("name", NAMES)
def test_a_description_is_kept_whole(name: str) -> None:
    assert from_json(to_json(machine(name)).encode(), name) == machine(name)


@st.composite
def _machines(draw: st.DrawFn) -> Machine:
    count = draw(st.integers(1, 6))
    sizes = [draw(st.integers(0, 8)) for _ in range(count)]
    sizes[draw(st.integers(0, count - 1))] += 1
    starts = [sum(sizes[:number]) for number in range(count)]
    nodes = [
        Node(
            number,
            (format_cpus(range(start, start + size)),) if size else (),
            tuple(10 if there == number else draw(st.sampled_from((12, 20, 32))) for there in range(count)),
        )
        for number, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]
    everywhere = sorted(cpu for node in nodes for cpu in node.cpus())
    allowed = draw(st.sets(st.sampled_from(everywhere), min_size=1))
    on_node = st.one_of(st.none(), st.integers(0, count - 1))
    gpus = [Gpu(str(number), draw(on_node)) for number in range(draw(st.integers(0, 8)))]
    return Machine("made up", tuple(nodes), format_cpus(allowed), tuple(gpus), (Nic("eth0", draw(on_node)),))


@settings(max_examples=200, deadline=None)
@given(_machines(), st.integers(1, 9), st.integers(0, 5))
def test_pinning_leaves_nobody_fewer_cpus_than_an_equal_share(
    described: Machine, workers: int, servers: int
) -> None:
    made = plan(described, Wishes(workers, servers, tuple(range(len(described.gpus)))))
    assert len(made.pins) == workers + servers
    allowed = described.allowed_cpus()
    places = {parse_cpus(pin.cpus, pin.role) or allowed for pin in made.pins}
    # Those who can run only within some places must find their share there, whichever places one looks at.
    for one in places:
        for other in places:
            union = one | other
            assert union <= allowed
            inside = sum((parse_cpus(pin.cpus, "") or allowed) <= union for pin in made.pins)
            assert len(union) * len(made.pins) >= len(allowed) * inside, made


def test_workers_without_devices_are_spread_by_the_cpus_of_nodes() -> None:
    uneven = dataclasses.replace(machine("container"), gpus=())
    assert cpus(plan(uneven, Wishes(4))) == ["0-11", "0-11", "0-11", "24-27"]


def test_one_worker_keeps_the_whole_machine() -> None:
    made = plan(machine("two_sockets_8_pcie_gpus"), Wishes(1, 0, (0,)))
    assert made.why == "no pinning: node 0 alone would leave it 48 CPUs, its share of all is 96"


def test_a_crowded_node_is_left_for_its_socket() -> None:
    made = plan(machine("8_nvlink_gpus"), Wishes(8, 0, tuple(range(8))))
    assert cpus(made) == ["0-63,128-191"] * 4 + ["64-127,192-255"] * 4


def test_servers_go_by_the_interface_of_the_job() -> None:
    arm = machine("arm")
    assert plan(arm, Wishes(0, 1)).why == "no pinning: no node has room for it"
    assert [pin.nodes for pin in plan(arm, Wishes(4, 4)).pins][4:] == [(0,), (1,), (2,), (3,)]
    near_2 = Wishes(4, 4, interface="enp189s0f0")
    assert [pin.nodes for pin in plan(arm, near_2).pins][4:] == [(2,), (3,), (0,), (1,)]


def test_switched_off() -> None:
    made = plan(machine("arm"), Wishes(4, on=False))
    assert made.why == "no pinning: pinning is switched off (numa_on)"
    assert not any(cpus(made))


def test_quotas_give_whole_cores_from_the_workers_own_node_on() -> None:
    two = machine("two_sockets_8_pcie_gpus")
    made = plan(two, Wishes(2, 1, (0, 4), default_quota=4, root_quota=26))
    assert cpus(made) == ["0-3,48-51", "4-5,24-47,52-53,72-95", "6-23,54-71"]
    with pytest.raises(ConfigError, match=r"want 52 cores for 2 workers, but there are 48"):
        plan(two, Wishes(2, default_quota=26))


def test_sections_are_for_workers_then_servers() -> None:
    one = machine("one_socket")
    assert cpus(plan(one, Wishes(2, 2, visible="1,4-5:20-25:0"))) == ["1,4-5", "20-25", "0", ""]
    with pytest.raises(ConfigError, match="has 1 sections for 2 workers"):
        plan(one, Wishes(2, visible="0-3"))
    with pytest.raises(ConfigError, match="has 40 for worker 1, but this process may use 0-31"):
        plan(one, Wishes(2, visible="0:1,40"))
    with pytest.raises(ConfigError, match=r"is '0-x', but a list of CPUs is written like 0-3,8"):
        plan(one, Wishes(1, visible="0-x"))


def test_cpus_that_are_held_back_are_held_back_from_all() -> None:
    one = machine("one_socket")
    made = plan(one, Wishes(2, 1, blacklist="0,16"))
    assert cpus(made) == ["1-15,17-31"] * 3
    assert made.others == "1-15,17-31"
    assert cpus(plan(one, Wishes(1, siblings=False))) == ["0-15"]
    assert cpus(plan(machine("arm"), Wishes(4, blacklist="0-15")))[0] == "16-127"
    with pytest.raises(ConfigError, match="leaves no CPU: this process may use 0-31"):
        plan(one, Wishes(1, blacklist="0-99"))


def test_a_node_for_all() -> None:
    assert cpus(plan(machine("container"), Wishes(1, 1, node=1))) == ["24-27"] * 2
    with pytest.raises(ConfigError, match="numa_id is 7, but the nodes with CPUs for this process are 0, 1"):
        plan(machine("container"), Wishes(1, node=7))


@pytest.mark.parametrize(
    ("variables", "chosen"),
    [
        ({}, (0, 1, 2, 3)),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, (0, 1, 2, 3)),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, ()),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, (2, 0)),
        ({"NVIDIA_VISIBLE_DEVICES": "1,2,3", "CUDA_VISIBLE_DEVICES": "1"}, (2,)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a"}, (1, 0)),
        # Numbers of the host in a container that shows fewer.
        ({"NVIDIA_VISIBLE_DEVICES": "4,5,6,7"}, (0, 1, 2, 3)),
        ({"CUDA_VISIBLE_DEVICES": "MIG-x"}, (0, 1, 2, 3)),
    ],
)
def test_gpus_that_the_environment_hides_are_nobodys(
    variables: dict[str, str], chosen: tuple[int, ...]
) -> None:
    gpus = tuple(Gpu(str(number), 0, f"GPU-{'abcd'[number]}") for number in range(4))
    assert chosen_gpus(gpus, variables) == chosen


DISTANCES = ("10 21 14", "21 10 24", "14 24 10")
PCI = {
    "bridge/numa_node": "1\n",
    "0000:05:00.0/numa_node": "-1\n",
    "bridge/0000:88:00.0/vendor": "0x10de\n",
    "bridge/0000:88:00.0/class": "0x030200\n",
    # The screen of a server.
    "0000:03:00.0/vendor": "0x1a03\n",
    "0000:03:00.0/class": "0x030000\n",
}


def _write(root: Path, files: Sequence[tuple[str, str]]) -> Path:
    for name, text in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_a_machine_is_read_from_its_files(tmp_path: Path) -> None:
    node, cpu, pci = "sys/devices/system/node", "sys/devices/system/cpu", "sys/devices/pci"
    root = _write(
        tmp_path,
        [
            *((f"{node}/node{n}/cpulist", text) for n, text in enumerate(("0-1,4-5\n", "2-3,6-7\n", "\n"))),
            *((f"{node}/node{n}/distance", text) for n, text in enumerate(DISTANCES)),
            *((f"{cpu}/cpu{n}/topology/thread_siblings_list", f"{n % 4},{n % 4 + 4}\n") for n in range(8)),
            *((f"{pci}/{name}", text) for name, text in PCI.items()),
            ("proc/driver/nvidia/gpus/0000:88:00.0/information", "Model: x\nGPU UUID: \t GPU-77\n"),
            ("proc/net/route", "Iface Destination\neth0 00000000\n"),
            ("proc/cpuinfo", "model name\t: A CPU\n"),
            ("sys/class/net/lo/mtu", "1"),
            ("sys/class/net/eth0/mtu", "1"),
            ("sys/bus/pci/devices/.keep", ""),
        ],
    )
    for address, place in (("0000:88:00.0", "bridge/0000:88:00.0"), ("0000:03:00.0", "0000:03:00.0")):
        (root / "sys/bus/pci/devices" / address).symlink_to(root / pci / place)
    (root / "sys/class/net/eth0/device").symlink_to(root / pci / "0000:05:00.0")
    read = read_machine(root)
    assert read.problem == ""
    assert [each.threads for each in read.nodes] == [("0-1", "4-5"), ("2-3", "6-7"), ()]
    assert read.nodes[2].distances == (14, 24, 10)
    assert read.gpus == (Gpu("0000:88:00.0", 1, "GPU-77"),)
    assert read.nics == (Nic("eth0", None, default=True),)
    assert read.title.startswith("A CPU, ")


def test_without_sys_nobody_is_pinned_and_the_plan_says_why(tmp_path: Path) -> None:
    read = read_machine(tmp_path)
    made = plan(read, Wishes(2, 1))
    assert made.why.startswith("no pinning: the NUMA nodes cannot be read from /sys (")
    assert not any(cpus(made))
    assert read.allowed == format_cpus(os.sched_getaffinity(0))


def test_this_machine_can_be_read() -> None:
    read = read_machine()
    assert read.allowed_cpus() == os.sched_getaffinity(0)
    assert from_json(to_json(read).encode(), "this machine") == read


def test_who_may_not_pin_is_warned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, mask: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    warnings: list[str] = []
    before = os.sched_getaffinity(0)
    pinning = Pinning(plan(machine("one_socket"), Wishes(2, visible="0:0")), warnings.append)
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    ran = []
    for number in range(2):
        with pinning.place(f"worker {number}"):
            ran.append(os.sched_getaffinity(0))
    assert ran == [before, before]
    assert len(warnings) == 1
    assert "processes are not pinned to CPUs: [Errno 1] Operation not permitted" in warnings[0]


def test_the_command_records_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = tmp_path / "machine.json"
    assert main(["topology", "--record", str(recorded), "--visible-cpu-cores", "0", "-np", "1"]) == 0
    assert "worker 0: node 0, CPUs 0: visible_cpu_cores" in capsys.readouterr().out
    assert main(["topology", "--from", str(recorded), "--json", "-np", "1", "--no-numa-on"]) == 0
    assert '"why": "no pinning: pinning is switched off (numa_on)"' in capsys.readouterr().out
    recorded.write_text('{"title": 1}')
    assert main(["topology", "--from", str(recorded)]) == 2
    assert "machine.json describes no machine" in capsys.readouterr().err
