"""``python -m benchmarks.emulated rows|sweep|ablation|overlap|compute``: training on emulated hosts."""

from __future__ import annotations

import importlib
import sys

COMMANDS = {
    "rows": "eight published settings: byteps beside the limit, first come first served, and peers",
    "sweep": "nine models, four link rates, two placements of servers: never slower, and the best gain",
    "ablation": "what partitions, priorities, credit and crossing the barrier each gain",
    "overlap": "the next forward pass runs while gradients are still to come",
    "compute": "a transformer that really computes, on slow and on fast links",
}


def main() -> None:
    """Hand the command line over to the command's module."""
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        print(__doc__.split("\n")[0])
        for name, what in COMMANDS.items():
            print(f"  {name:9} {what}")
        sys.exit(0 if "--help" in sys.argv else 2)
    command = importlib.import_module(f"benchmarks.emulated.{sys.argv[1]}")
    command.main(sys.argv[2:])


if __name__ == "__main__":
    main()
