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

N_PRACTICE = 32
"""Practice instances of each family."""
N_HELD_OUT = 4
"""Held-out instances of each family."""
N_DEMONSTRATIONS = 8
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


def write_tasks(out: Path, seed: int) -> int:
    """Write the task directories of both splits below ``out``; return how many."""
    n_tasks = 0
    for family in FAMILIES:
        for split, number, instance in splits(family, seed):
            for path, file in task_files(family, instance, number=number, split=split).items():
                target = out / split / f"{family.name}-{number:02d}" / path
                if not target.parent.is_dir():
                    target.parent.mkdir(parents=True)
                target.write_text(file.text, encoding="utf-8")
                if file.executable:
                    target.chmod(0o755)
            n_tasks += 1
    return n_tasks


def write_demonstrations(out: Path, seed: int) -> int:
    """Run the demonstrated commands and write ``demonstrations.jsonl`` into ``out``; return how many."""
    demonstrations: list[Demonstration] = []
    for family in FAMILIES:
        for split, number, instance in splits(family, seed):
            if split == SPLITS[0]:
                name = f"{ORGANISATION}/{family.name}-{number:02d}"
                rng = _rng(seed, f"demonstrations of {name}")
                demonstrations.extend(demonstrate(name, instance, count=N_DEMONSTRATIONS, rng=rng))
    rows = [canonical_bytes(item) for item in shuffled(demonstrations, _rng(seed, "order of demonstrations"))]
    out.mkdir(parents=True, exist_ok=True)
    # The file appears whole or not at all: it is written last, so its presence says that everything is there.
    staged = out / ".demonstrations.jsonl"
    staged.write_bytes(b"".join(row + b"\n" for row in rows))
    staged.replace(out / "demonstrations.jsonl")
    return len(rows)


def _rng(seed: int, what: str) -> Random:
    return Random(f"{seed} {what}")  # noqa: S311 - reproducible examples, no secrets


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.generate", description="Write the example task sets.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "generated", help="target directory")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other instances")
    options = parser.parse_args(arguments)
    n_tasks = write_tasks(options.out, options.seed)
    n_demonstrations = write_demonstrations(options.out, options.seed)
    sys.stdout.write(f"{n_tasks} tasks and {n_demonstrations} demonstrations in {options.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
