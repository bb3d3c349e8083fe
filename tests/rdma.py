"""The conformance suite of links over real verbs: soft-RoCE (``rdma_rxe``) in a virtual machine.

``python -m tests.rdma BUILD`` builds a small Linux around the native test ``BUILD/link_test``, starts it in
QEMU and shows the device's own counters: a device whose packets did not rise was not used. It needs no
privilege and no RDMA hardware. The kernel comes from Debian's archive, and stays in ``~/.cache/byteps-rdma``.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

CACHE = Path.home() / ".cache" / "byteps-rdma"
TOOLS = (
    "qemu-system-x86_64",
    "apt-get",
    "apt-cache",
    "dpkg",
    "depmod",
    "cpio",
    "gzip",
    "ip",
    "rdma",
    "busybox",
)
PACKAGES = "qemu-system-x86 kmod cpio busybox-static iproute2 libucx-dev ibverbs-providers"
MODULES = ("crc32c_generic", "crc32_generic", "libcrc32c", "rdma_rxe", "ib_uverbs", "dummy")
LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
LIMIT_S = 420.0
KIND = "ucx-verbs"

INIT = f"""#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
mkdir -p /dev/shm /tmp; mount -t tmpfs tmpfs /dev/shm; mount -t tmpfs tmpfs /tmp
for module in $(cat /modules/order); do insmod /modules/$module || echo "cannot load $module"; done
ip link set lo up
ip link add d0 type dummy; ip link set d0 mtu 9000; ip addr add 10.9.0.1/24 dev d0; ip link set d0 up
rdma link add rxe0 type rxe netdev d0
for try in $(seq 100); do rdma link | grep -q ACTIVE && break; sleep 0.1; done
rdma link
packets() {{ cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts; }}
echo "sent_pkts before: $(packets)"
export UCX_NET_DEVICES=rxe0:1,lo UCX_IB_GID_INDEX=0 UCX_UD_TIMEOUT=300s UCX_WARN_UNUSED_ENV_VARS=n
/bin/link_test {KIND}; echo "exit code: $?"
echo "sent_pkts after: $(packets)"
cd /sys/class/infiniband/rxe0/ports/1/hw_counters; for counter in *; do echo "$counter $(cat $counter)"; done
poweroff -f
"""


def output(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def missing_tools() -> list[str]:
    """Those that this host lacks."""
    return [tool for tool in TOOLS if shutil.which(tool) is None]


def kernel() -> Path:
    """Folder of an unpacked Debian kernel with its modules; downloaded the first time."""
    package = re.search(r"Depends: (linux-image-\S+)", output("apt-cache", "depends", "linux-image-amd64"))
    assert package is not None, "the archive has no linux-image-amd64: run apt-get update"
    folder = CACHE / package[1]
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
            subprocess.run(["apt-get", "download", package[1]], cwd=temporary, check=True)
            unpacked = Path(temporary) / "kernel"
            (archive,) = Path(temporary).glob("*.deb")
            subprocess.run(["dpkg", "-x", archive, unpacked], check=True)
            (version,) = (unpacked / "lib/modules").iterdir()
            subprocess.run(["depmod", "-b", unpacked, version.name], check=True)
            unpacked.rename(folder)
    return folder


def modules(folder: Path) -> list[Path]:
    """The modules that soft-RoCE needs, each behind those that it depends on."""
    (root,) = (folder / "lib/modules").iterdir()
    needs = {}
    for line in (root / "modules.dep").read_text().splitlines():
        name, _, rest = line.partition(":")
        needs[Path(name).stem.replace("-", "_")] = (name, rest.split())
    order: list[Path] = []
    for wanted in MODULES:
        if wanted in needs:  # else it is built in
            name, before = needs[wanted]
            order += [root / one for one in (*reversed(before), name) if root / one not in order]
    return order


def libraries(programs: Iterable[Path]) -> set[Path]:
    """Every shared library that the programs load when they start."""
    found = set()
    for program in programs:
        listing = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
        found |= {Path(path) for path in re.findall(r"(/\S+\.so\S*)", listing)}
    return found


def make_image(build: Path, folder: Path, root: Path) -> None:
    """Fill the root file system of the machine."""
    for name in ("bin", "modules", "proc", "sys", "dev", "tmp", "etc/libibverbs.d"):
        (root / name).mkdir(parents=True)
    programs = {name: Path(shutil.which(name) or "") for name in ("busybox", "ip", "rdma")}
    programs["link_test"] = build / "link_test"
    for name, program in programs.items():
        shutil.copy(program, root / "bin" / name)
    plugins = [*LIBRARIES.glob("ucx/*.so*"), *LIBRARIES.glob("libibverbs/*rxe*.so*")]
    loaded = [*LIBRARIES.glob("libuc[pstm].so.0"), *LIBRARIES.glob("libgcc_s.so.1"), *plugins]
    loaded += libraries([*programs.values(), *loaded])
    for library in loaded:
        target = root / str(library).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
    shutil.copytree("/etc/libibverbs.d", root / "etc/libibverbs.d", dirs_exist_ok=True)
    order = modules(folder)
    for module in order:
        shutil.copy(module, root / "modules" / module.name)
    (root / "modules/order").write_text("\n".join(module.name for module in order))
    (root / "init").write_text(INIT)
    (root / "init").chmod(0o755)


def run(build: Path) -> str:
    """Start the machine; what it prints."""
    folder = kernel()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary) / "root"
        make_image(build, folder, root)
        image = Path(temporary) / "initrd.gz"
        pack = f"cd {root} && find . | cpio -o -H newc --quiet | gzip -1 > {image}"
        subprocess.run(pack, shell=True, check=True)
        (boot,) = (folder / "boot").glob("vmlinuz-*")
        command = [
            "qemu-system-x86_64",
            "-accel",
            "tcg",
            "-m",
            "1024",
            "-smp",
            "2",
            "-nographic",
            "-no-reboot",
        ]
        command += ["-kernel", str(boot), "-initrd", str(image), "-net", "none"]
        command += ["-append", "console=ttyS0 quiet panic=1 rdinit=/init"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL
        )
    return done.stdout.replace("\r", "")


def problems(printed: str) -> list[str]:
    """What is wrong with a run."""
    found = []
    if "state ACTIVE" not in printed:
        found.append("the soft-RoCE device did not become active")
    if not re.search(r"^exit code: 0$", printed, re.MULTILINE):
        found.append("the test failed")
    counts = [
        int(count) for count in re.findall(r"^sent_pkts (?:before|after): (\d+)$", printed, re.MULTILINE)
    ]
    if len(counts) != 2 or counts[1] - counts[0] < 1000:
        found.append(f"the device has sent too few packets (before, after: {counts})")
    return found


def main(arguments: Sequence[str]) -> int:
    """Run it; 0 if links over verbs behave as all links do."""
    parser = argparse.ArgumentParser(prog="python -m tests.rdma")
    parser.add_argument("build", type=Path, help="folder with the native test link_test")
    build = parser.parse_args(arguments).build
    if missing := missing_tools():
        print(
            f"tests.rdma: not run, there is no {', '.join(missing)}: apt-get install {PACKAGES}",
            file=sys.stderr,
        )
        return 1
    printed = run(build)
    print(printed)
    found = problems(printed)
    print("\n".join(f"FAILED: {problem}" for problem in found) or f"{KIND}: conforms over soft-RoCE")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
