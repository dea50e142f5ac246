"""How long people wait for the command line and for the code location. Prints JSON.

Run: ``python -m tests.benchmarks.startup [--repeats 5]``.
"""

import argparse
import json
import sys

from tests.benchmarks.processes import machine, measure, spread

_COMMANDS = {
    "synth_help": ([sys.executable, "-m", "cli.main", "--help"], 0.5),
    "code_location": (
        [sys.executable, "-c", "import definitions; definitions.defs.get_repository_def().load_all_definitions()"],
        8.0,
    ),
}
"""Name -> command and target in seconds. Source: issue 2, figures."""


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    found = {"machine": machine(), "targets_s": {name: target for name, (_, target) in _COMMANDS.items()}}
    for name, (argv, _) in _COMMANDS.items():
        measure(argv)  # once beforehand: bytecode and page cache are warm
        costs = [measure(argv) for _ in range(options.repeats)]
        found[name] = {
            "wall_s": spread([cost.wall_s for cost in costs]),
            "cpu_s": spread([cost.cpu_s for cost in costs]),
        }
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
