"""The seed's five commands, verbatim, against a home of their own."""

import shlex
from pathlib import Path

from cli.connection import platform
from domain.records.experiment import ExperimentState
from domain.records.model import BasePolicy, FileEntry
from domain.records.task import ObjectRef
from tests.cli.synth import Synth, write_json

EVALUATE = """synth run start \\
  --dataset team/evaluation@v1 \\
  --actor @agent.json \\
  --plan @eval-plan.json"""
TRAIN = """synth train start \\
  --dataset team/practice@v1 \\
  --actor @agent.json \\
  --plan @train-plan.json"""
SHOW = "synth run show <run-id>"
FOLLOW = "synth run events <run-id> --follow"
CHECKPOINTS = "synth run checkpoints <training-run-id>"
"""Source: the seed article "Building a distributed platform for agent training and evaluation"."""


def _words(command: str, identity: str = "") -> list[str]:
    written = command.replace("\\\n", " ").replace("<run-id>", identity).replace("<training-run-id>", identity)
    return shlex.split(written)[1:]


def _base_policy() -> BasePolicy:
    """Return a policy that can be named; nothing here samples it."""
    file = FileEntry(path="config.json", content=ObjectRef(digest="0" * 64, size_bytes=2))
    return BasePolicy(
        name="demo",
        digest="ab" * 32,
        family="qwen3",
        files=(file,),
        recipe_digest="cd" * 32,
        context_tokens=512,
        n_parameters=1,
    )


def _end(experiment_id: str) -> None:
    with platform().ledger.begin() as tx:
        tx.experiments.set_state(experiment_id, ExperimentState.SUCCEEDED)


def test_an_evaluation(published: Synth) -> None:
    """``run start`` prints a durable id; ``run show`` and ``run events --follow`` take it up, and following ends."""
    started = published.ok(*_words(EVALUATE))
    experiment = published.json("run", "list")["experiments"][0]["experiment_id"]
    assert experiment in started.out
    assert "evl-" in published.ok(*_words(SHOW, experiment)).out
    _end(experiment)
    followed = published.ok(*_words(FOLLOW, experiment)).out
    assert followed.index("experiment.accepted") < followed.index("unit.admitted")


def test_a_training(published: Synth) -> None:
    """``train start`` admits the first batch alone, and its checkpoints can be listed at once."""
    with platform().ledger.begin() as tx:
        tx.catalog.add_base_policy(_base_policy())
    write_json(Path("agent.json"), {"name": "agent", "engine": "mini", "model": "base:demo"})
    learning = {"learning_rate": 0.001}
    plan = {"attempts": 2, "batches": 3, "groups_per_batch": 2, "optimisation": learning}
    write_json(Path("train-plan.json"), plan)
    published.ok(*_words(TRAIN))
    experiment = published.json("run", "list")["experiments"][0]["experiment_id"]
    assert experiment.startswith("trn-")
    assert [unit["index"] for unit in published.json("run", "show", experiment)["units"]] == [0]
    assert published.ok(*_words(CHECKPOINTS, experiment)).code == 0
    assert published.json("run", "checkpoints", experiment) == {"checkpoints": []}
