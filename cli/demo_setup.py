"""What the demo needs before anything runs: examples, task sets, the base policy, both submissions."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from domain.ports import Progress
    from domain.records.experiment import Experiment
    from domain.records.model import BasePolicy
    from domain.records.profile import Plan, Profile
    from domain.service.platform import Platform

_ROOT = Path(__file__).resolve().parents[1]
_EXAMPLES = _ROOT / "examples"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything that is submitted."""

    seed: int
    profile: "Profile"
    policy: "BasePolicy"
    practice: str
    """Task set reference; the seed is its version."""
    held_out: str
    eval_plan: "Plan"
    train_plan: "Plan"

    def submit(self, platform: "Platform") -> "tuple[Experiment, Experiment]":
        """Accept the base policy's evaluation and the training, or return those that were accepted before."""
        from domain.records.experiment import ExperimentKind

        base = self._accept(platform, ExperimentKind.EVALUATION, self.held_out, self.eval_plan)
        return base, self.submit_training(platform)

    def submit_training(self, platform: "Platform") -> "Experiment":
        """Accept the training, or return the one that was accepted before."""
        from domain.records.experiment import ExperimentKind

        return self._accept(platform, ExperimentKind.TRAINING, self.practice, self.train_plan)

    def _accept(self, platform: "Platform", kind: object, task_set: str, plan: "Plan") -> "Experiment":
        from domain.records.canonical import digest_of
        from domain.records.experiment import ExperimentKind
        from domain.service.accept import Submission, accept, derived_id

        chosen = ExperimentKind(kind)
        parts = (chosen.value, task_set, digest_of(plan), digest_of(self.profile), self.policy.digest)
        submission = Submission(
            kind=chosen,
            task_set=task_set,
            actor=self.profile,
            plan=plan,
            model=f"base:{self.policy.name}",
            labels={"by": "synth demo"},
            idempotency_key=derived_id("demo", *parts),
        )
        return accept(platform, submission).experiment


def prepare(
    platform: "Platform",
    home: Path,
    seed: int,
    batches: int | None,
    progress: "Progress",
    stage: Callable[[str], None],
) -> Setup:
    """Make what is not there yet.

    Raises:
        ConfigurationError: this is no clone with examples, or a document is wrong.
    """
    from adapters.inputs.documents import read_plan, read_profile

    stage("example tasks")
    examples = _examples(home, seed)
    practice, held_out = f"team/practice@v{seed + 1}", f"team/evaluation@v{seed + 1}"
    _publish(platform, practice, examples / "practice")
    _publish(platform, held_out, examples / "held-out")
    stage("base policy")
    policy = _base_policy(platform, examples, seed, progress)
    eval_plan = replace(read_plan(_EXAMPLES / "eval-plan.json"), seed=seed)
    train_plan = read_plan(_EXAMPLES / "train-plan.json")
    train_plan = replace(
        train_plan,
        seed=seed,
        batches=batches or train_plan.batches,
        evaluate_on=held_out,
        evaluate_attempts=eval_plan.attempts,
    )
    return Setup(
        seed=seed,
        profile=replace(read_profile(_EXAMPLES / "agent.json"), model=f"base:{policy.name}"),
        policy=policy,
        practice=practice,
        held_out=held_out,
        eval_plan=eval_plan,
        train_plan=train_plan,
    )


def _examples(home: Path, seed: int) -> Path:
    """Return the directory of generated examples, written once for each seed."""
    from domain.errors import ConfigurationError

    if not (_EXAMPLES / "generate.py").is_file():
        raise ConfigurationError(f"{_EXAMPLES}: no examples", hint="the demo runs from a clone: `make demo`")
    out = home / "demo" / f"examples-{seed}"
    if not (out / "demonstrations.jsonl").exists():
        command = [sys.executable, "-m", "examples.generate", "--out", str(out), "--seed", str(seed)]
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, check=False)  # noqa: S603 - our own module
        if done.returncode != 0:
            raise ConfigurationError(f"examples cannot be generated: {done.stderr.decode(errors='replace')[-500:]}")
    return out


def _publish(platform: "Platform", text: str, directory: Path) -> None:
    from domain.errors import NotFoundError
    from domain.records.names import parse_reference
    from domain.service.publish import publish_task_set

    reference = parse_reference(text, field="reference")
    try:
        with platform.ledger.snapshot() as tx:
            tx.catalog.task_set(reference)
    except NotFoundError:
        publish_task_set(platform, reference, str(directory))


def _base_policy(platform: "Platform", examples: Path, seed: int, progress: "Progress") -> "BasePolicy":
    from adapters.inputs.documents import read_demonstrations, read_recipe
    from domain.errors import ConflictError
    from domain.lifecycle.mini_dialogue import BASH
    from domain.service.publish import make_base_policy

    recipe = read_recipe(_EXAMPLES / "base-policy.json")
    recipe = replace(recipe, name=f"{recipe.name}-{seed}" if seed else recipe.name, seed=seed)
    demonstrations = read_demonstrations(examples / "demonstrations.jsonl")
    try:
        return asyncio.run(make_base_policy(platform, recipe, demonstrations, (BASH,), progress))
    except ConflictError as error:
        raise ConflictError(
            f"{error.message}: the examples have changed since the demo was begun here",
            hint="begin in another directory: synth demo --home DIR",
        ) from error
