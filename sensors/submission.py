"""Submission from the graph: the Launchpad's form and the schedules' op end in the acceptance of the command line."""

from typing import Any

import dagster as dg
from pydantic import Field

from domain.service.accept import accept
from resources.documents import Documents, submission
from resources.synth import SynthResource


class SubmissionConfig(dg.Config):
    """An experiment as the Launchpad asks for it."""

    kind: str = Field(default="evaluation", description="unscored, evaluation or training.")
    dataset: str = Field(description="Published task set: team/name@v1.")
    actor: str = Field(
        default="", description="Profile by reference (team/agent@v1), by digest, or as @FILE; or give `profile`."
    )
    profile: dict[str, Any] = Field(default_factory=dict, description="The actor's profile, field by field.")
    plan_file: str = Field(default="", description="The plan as @FILE; or give `plan`.")
    plan: dict[str, Any] = Field(default_factory=dict, description="The plan, field by field: attempts, batches ...")
    model: str = Field(default="", description="base:NAME or checkpoint:ID; overrides the profile's.")
    idempotency_key: str = Field(
        default="", description="The same key with the same content returns the same experiment."
    )
    labels: dict[str, str] = Field(default_factory=dict, description="Free words, kept with the experiment.")

    def documents(self) -> Documents:
        """Return what was written."""
        return Documents(
            kind=self.kind,
            dataset=self.dataset,
            actor=self.actor,
            profile=self.profile,
            plan=self.plan_file,
            plan_values=self.plan,
            model=self.model,
            idempotency_key=self.idempotency_key,
            labels=self.labels,
        )


EXAMPLE: dict[str, Any] = {
    "ops": {
        "submit_experiment": {
            "config": {
                "kind": "evaluation",
                "dataset": "team/evaluation@v1",
                "profile": {"name": "oracle", "engine": "oracle"},
                "plan": {"attempts": 1, "tasks": 16, "order": "shuffled"},
            }
        }
    }
}
"""What the Launchpad shows first: the tasks' own solutions over held-out ones, which ``synth demo`` publishes."""


@dg.op
def submit_experiment(context: dg.OpExecutionContext, config: SubmissionConfig, synth: SynthResource) -> None:
    """Check, pin and accept an experiment; the dispatcher launches its units."""
    accepted = accept(synth.platform(), submission(config.documents()))
    experiment = accepted.experiment
    context.add_output_metadata(
        {
            "experiment": experiment.experiment_id,
            "created": accepted.created,
            "n_units": experiment.n_units,
            "spec_sha256": experiment.spec_digest,
            "open": f"synth run show {experiment.experiment_id}",
        }
    )
    context.log.info("accepted %s (%s)", experiment.experiment_id, "new" if accepted.created else "known before")
