"""Runs the targets of ``native/fuzz`` on seeds made here; prints what they did and the lines they reached.

``python -m tests.fuzz BUILD COVERAGE_BUILD --runs N``, as ``make fuzz`` does. Both folders hold the targets,
the first built with sanitizers. It ends with 1 after a finding, when too few inputs get past the header
check, and when too few lines are reached.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[1] / "native"
TARGETS = ("wire", "server", "worker", "node")
JOBS = (("server", 1), ("worker", 1), ("server", 2), ("worker", 2), ("node", 1), ("wire", 1))
MEASURED = (
    "wire.cc",
    "frames.cc",
    "server_lane.cc",
    "worker_lane.cc",
    "node_lane.cc",
    "node_guest.cc",
    "summation.cc",
)
INPUT_BYTES = 96
SEEDS = 200
MIN_PASSED_SHARE = 0.5
MIN_COVERED_SHARE = 0.95
TALLY = re.compile(r"tally: (\d+) inputs, (\d+) passed the header check, (\d+) frames, (\d+) passed")
COUNTED = ("inputs", "passed inputs", "frames", "passed frames")


@dataclass(frozen=True)
class Job:
    """One run of one target, with inputs of its own.

    Args:
        build: The folder with the sanitized targets; corpus, log and findings go there.
        target: Its name, without ``_fuzz``.
        seed: Of libFuzzer's choices, and of the first inputs.
    """

    build: Path
    target: str
    seed: int

    @property
    def corpus(self) -> Path:
        """The folder of its inputs."""
        return self.build / "corpus" / f"{self.target}-{self.seed}"

    def sow(self) -> None:
        """Start a new corpus: any bytes make an input of mostly right frames, so random ones are seeds."""
        shutil.rmtree(self.corpus, ignore_errors=True)
        self.corpus.mkdir(parents=True)
        source = random.Random(f"{self.target} {self.seed}")
        for number in range(SEEDS):
            seed = source.randbytes(source.randrange(8, INPUT_BYTES))
            (self.corpus / f"seed{number}").write_bytes(seed)

    def run(self, runs: int) -> Counter[str]:
        """Execute that many inputs.

        Returns:
            How many inputs and frames there were, and how many of them passed the header check.

        Raises:
            SystemExit: The target found something.
        """
        self.sow()
        limits = [f"-runs={runs}", f"-max_len={INPUT_BYTES}", "-len_control=0", "-timeout=20"]
        fixed = [f"-seed={self.seed}", "-entropic=0", "-reload=0"]
        kept = self.build / f"finding-{self.target}-"
        command = [str(self.build / f"{self.target}_fuzz"), *limits, *fixed, f"-artifact_prefix={kept}"]
        done = subprocess.run(
            [*command, str(self.corpus)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        output = done.stdout.decode(errors="replace")
        tally = TALLY.search(output)
        if done.returncode != 0 or tally is None:
            raise SystemExit(f"{output[-8000:]}\n{self.target}_fuzz found something (input: {kept}*)")
        return Counter(dict(zip(COUNTED, map(int, tally.groups()), strict=True)))


def fuzz(jobs: list[Job], runs: int) -> bool:
    """Run all jobs, as many at once as there are processors; print a line for each target.

    Returns:
        Whether enough inputs passed the header check.
    """
    start = time.monotonic()
    counts = {target: Counter[str]() for target in TARGETS}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for job, count in zip(jobs, pool.map(lambda job: job.run(-(-runs // len(jobs))), jobs), strict=True):
            counts[job.target] += count
    seconds = time.monotonic() - start
    counts["all"] = sum(counts.values(), Counter[str]())
    print(f"{'target':<8} {'executions':>10} {'passed the header check':>24} {'frames':>10} {'passed':>7}")
    for target, count in counts.items():
        inputs = count["passed inputs"] / count["inputs"]
        frames = count["passed frames"] / count["frames"]
        print(f"{target:<8} {count['inputs']:>10} {inputs:>24.1%} {count['frames']:>10} {frames:>7.1%}")
    total = counts["all"]
    print(f"{total['inputs'] / seconds:.0f} executions/s over {seconds:.0f} s, no finding\n")
    return all(count["passed inputs"] >= MIN_PASSED_SHARE * count["inputs"] for count in counts.values())


def cover(build: Path, jobs: list[Job]) -> bool:
    """Run the corpora again in the coverage build; print the share of lines reached.

    Returns:
        Whether it is enough in every file.
    """
    profiles = [build / f"{job.target}-{job.seed}.profraw" for job in jobs]
    for job, profile in zip(jobs, profiles, strict=True):
        target = build / f"{job.target}_fuzz"
        command = ["env", f"LLVM_PROFILE_FILE={profile}", str(target), "-runs=0", str(job.corpus)]
        subprocess.run(command, check=True, capture_output=True)
    merged = build / "merged.profdata"
    subprocess.run(["llvm-profdata", "merge", "-sparse", *profiles, "-o", merged], check=True)
    first, *others = (build / f"{target}_fuzz" for target in TARGETS)
    objects = [part for other in others for part in ("-object", other)]
    sources = [NATIVE / name for name in MEASURED]
    exported = subprocess.run(
        ["llvm-cov", "export", "-summary-only", f"-instr-profile={merged}", first, *objects, *sources],
        check=True,
        capture_output=True,
    )
    enough = True
    print(f"{'file':<16} {'lines':>6} {'covered':>8}")
    for file in json.loads(exported.stdout)["data"][0]["files"]:
        lines = file["summary"]["lines"]
        share = lines["covered"] / lines["count"]
        enough = enough and share >= MIN_COVERED_SHARE
        print(f"{Path(file['filename']).name:<16} {lines['count']:>6} {share:>8.1%}")
    return enough


def main() -> int:
    """Fuzz, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("coverage_build", type=Path)
    parser.add_argument("--runs", type=int, default=1_000_000, help="inputs over all targets together")
    options = parser.parse_args()
    jobs = [Job(options.build, target, seed) for target, seed in JOBS]
    passed = fuzz(jobs, options.runs)
    covered = cover(options.coverage_build, jobs)
    if not passed:
        print(f"A target passed less than {MIN_PASSED_SHARE:.0%} of its inputs", file=sys.stderr)
    if not covered:
        print(f"A file has less than {MIN_COVERED_SHARE:.0%} of its lines covered", file=sys.stderr)
    return 0 if passed and covered else 1


if __name__ == "__main__":
    sys.exit(main())
