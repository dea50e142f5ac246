"""Write the example task sets and demonstrations: ``python -m examples.generate --out DIR``.

    DIR/practice/<task>/        tasks to train on
    DIR/held-out/<task>/        other instances of the same families, to evaluate on
    DIR/demonstrations.jsonl    conversations about practice tasks only

The same seed gives the same bytes.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

from domain.records.canonical import canonical_bytes
from domain.records.chat import Demonstration
from examples.demonstrations import demonstrate, shuffled
from examples.families import FAMILIES
from examples.spec import Family, Instance
from examples.task_files import ORGANISATION, task_files

N_PRACTICE = 16
"""Practice instances of each family."""
N_HELD_OUT = 4
"""Held-out instances of each family."""
N_DEMONSTRATIONS = 12
"""Demonstrations of each practice instance."""
SPLITS = ("practice", "held-out")


def instances(family: Family, seed: int) -> list[Instance]:
    """Return the family's instances, all different: practice first, then held-out."""
    rng = _rng(seed, family.name)
    drawn: dict[str, Instance] = {}
    while len(drawn) < N_PRACTICE + N_HELD_OUT:
        instance = family.draw(rng)
        drawn.setdefault(instance.instruction, instance)
    return list(drawn.values())


def splits(family: Family, seed: int) -> Iterator[tuple[str, int, Instance]]:
    """Return (split, number, instance) of every task of a family."""
    for number, instance in enumerate(instances(family, seed), start=1):
        yield SPLITS[number > N_PRACTICE], number, instance


def generate(out: Path, seed: int) -> tuple[int, int]:
    """Write everything below ``out``; return how many tasks and demonstrations."""
    n_tasks = 0
    demonstrations: list[Demonstration] = []
    for family in FAMILIES:
        for split, number, instance in splits(family, seed):
            name = f"{family.name}-{number:02d}"
            for path, file in task_files(family, instance, number=number, split=split).items():
                target = out / split / name / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(file.text, encoding="utf-8")
                target.chmod(0o755 if file.executable else 0o644)
            n_tasks += 1
            if split == SPLITS[0]:
                rng = _rng(seed, f"demonstrations of {name}")
                full_name = f"{ORGANISATION}/{name}"
                demonstrations.extend(demonstrate(full_name, instance, count=N_DEMONSTRATIONS, rng=rng))
    rows = (canonical_bytes(item) for item in shuffled(demonstrations, _rng(seed, "order of demonstrations")))
    (out / "demonstrations.jsonl").write_bytes(b"".join(row + b"\n" for row in rows))
    return n_tasks, len(demonstrations)


def _rng(seed: int, what: str) -> Random:
    return Random(f"{seed} {what}")  # noqa: S311 - reproducible examples, no secrets


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.generate", description="Write the example task sets.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "generated", help="target directory")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other instances")
    options = parser.parse_args(arguments)
    n_tasks, n_demonstrations = generate(options.out, options.seed)
    sys.stdout.write(f"{n_tasks} tasks and {n_demonstrations} demonstrations in {options.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
