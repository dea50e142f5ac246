"""What people look at on a unit's products."""

from collections import Counter
from collections.abc import Callable

import dagster as dg

from assets.estimates import mean_facts
from assets.stamps import Facts, experiment_facts, manifest_facts, table
from domain.maths.scores import scores_by_task
from domain.maths.statistics import mean_score
from domain.records.assessment import Assessment, QualifiedGroup
from domain.records.experiment import Experiment
from domain.records.manifest import AssessmentManifest, GroupManifest, TrialManifest
from domain.records.names import experiment_of
from domain.records.trial import TrialRecord
from domain.service.platform import Platform
from domain.service.units import Stage, UnitResult, outcome_counts


def facts_of(platform: Platform, result: UnitResult, stage: Stage) -> Facts:
    """Return the metadata of one product of a unit."""
    build: dict[Stage, Callable[[UnitResult], Facts]] = {
        Stage.TRIALS: _trials,
        Stage.ASSESSMENTS: _assessments,
        Stage.QUALIFIED_GROUPS: _groups,
        Stage.DATUMS: _datums,
    }
    return {
        **experiment_facts(result.experiment, result.unit.unit),
        **build[stage](result),
        **manifest_facts(platform, result.refs[stage]),
    }


def _trials(result: UnitResult) -> Facts:
    trials = result.trials.trials
    counts = outcome_counts(result.trials)
    cpu = [trial.usage.cpu_s for trial in trials if trial.usage.cpu_s is not None]
    facts: Facts = {
        "policy": result.unit.policy.name if result.unit.policy else "none",
        "n_planned": result.trials.n_planned,
        **{f"n_{outcome}": n for outcome, n in counts.items()},
        "n_infra_retries": sum(trial.n_infra_retries for trial in trials),
        "n_model_calls": sum(trial.usage.n_calls for trial in trials),
        "n_prompt_tokens": sum(trial.usage.n_prompt_tokens for trial in trials),
        "n_sampled_tokens": sum(trial.usage.n_sampled_tokens for trial in trials),
        "box_wall_s": round(sum(trial.usage.wall_s for trial in trials), 3),
        "groups": _trial_table(trials),
        "transcripts": dg.MetadataValue.md(_transcripts(trials)),
    }
    if cpu:
        facts["box_cpu_s"] = round(sum(cpu), 3)
    return facts


def _by_group(trials: tuple[TrialRecord, ...]) -> dict[int, list[TrialRecord]]:
    found: dict[int, list[TrialRecord]] = {}
    for trial in trials:
        found.setdefault(trial.key.group, []).append(trial)
    return found


def _trial_table(trials: tuple[TrialRecord, ...]) -> dg.TableMetadataValue:
    columns = {"group": "int", "task": "string", "trials": "int", "outcomes": "string", "sampled_tokens": "int"}
    return table(
        columns,
        [
            (
                group,
                members[0].task_name,
                len(members),
                _counted([trial.outcome.value for trial in members]),
                sum(trial.usage.n_sampled_tokens for trial in members),
            )
            for group, members in sorted(_by_group(trials).items())
        ],
    )


def _transcripts(trials: tuple[TrialRecord, ...]) -> str:
    """Return how to read a trial: the first of each group, at most ten."""
    first = [members[0] for _, members in sorted(_by_group(trials).items())][:10]
    return "\n".join(f"- `synth run transcript {trial.trial_id}` ({trial.task_name})" for trial in first) or "none"


def _counted(values: list[str]) -> str:
    return ", ".join(f"{n} {value}" for value, n in sorted(Counter(values).items()))


def _assessments(result: UnitResult) -> Facts:
    return {} if result.assessments is None else _panel_facts(result.experiment, result.trials, result.assessments)


def assessment_facts(platform: Platform, unit: str, panel: AssessmentManifest) -> Facts:
    """Return what another assessor found in a unit's retained trials, beside the canonical manifest's digest."""
    with platform.ledger.snapshot() as tx:
        experiment = tx.experiments.get(experiment_of(unit))
        trials = tx.units.manifest(unit, Stage.TRIALS.value)
        canonical = tx.units.manifest(unit, Stage.ASSESSMENTS.value)
    if trials is None:
        return {}
    facts = _panel_facts(experiment, platform.records.load(TrialManifest, trials), panel)
    if canonical is not None:
        facts["canonical_assessments_sha256"] = canonical.digest
    return facts


def _panel_facts(experiment: Experiment, manifest: TrialManifest, panel: AssessmentManifest) -> Facts:
    assessed = {item.trial_id: item for item in panel.assessments}
    planned: dict[str, int] = {}
    for members in _by_group(manifest.trials).values():
        digest = members[0].task_digest
        planned[digest] = planned.get(digest, 0) + experiment.spec.plan.attempts
    return {
        "assessor": ", ".join(sorted({item.assessor for item in panel.assessments})[:4]),
        **mean_facts(mean_score(scores_by_task(manifest.trials, assessed, planned=planned))),
        "n_tampered": sum(item.tampered for item in assessed.values()),
        "source_trials_sha256": panel.source,
        "groups": _assessment_table(manifest.trials, assessed),
    }


def _assessment_table(trials: tuple[TrialRecord, ...], assessed: dict[str, Assessment]) -> dg.TableMetadataValue:
    columns = {"group": "int", "task": "string", "mean_reward": "float", "rewards": "string", "outcomes": "string"}
    rows: list[tuple[str | int | float | bool | None, ...]] = []
    for group, members in sorted(_by_group(trials).items()):
        found = [assessed[trial.trial_id] for trial in members if trial.trial_id in assessed]
        rewards = [item.reward for item in found if item.reward is not None]
        rows.append(
            (
                group,
                members[0].task_name,
                sum(rewards) / len(rewards) if rewards else None,
                " ".join("-" if item.reward is None else f"{item.reward:g}" for item in found),
                _counted([item.outcome.value for item in found]),
            )
        )
    return table(columns, rows)


def _groups(result: UnitResult) -> Facts:
    return {} if result.groups is None else group_facts(result.groups)


def group_facts(manifest: GroupManifest) -> Facts:
    """Return what people look at on qualified groups."""
    groups = manifest.groups
    excluded = Counter(item.reason.value for group in groups for item in group.excluded)
    columns = {"group": "int", "task": "string", "members": "int", "excluded": "string", "signal": "bool"}
    return {
        "n_groups": len(groups),
        "n_groups_with_signal": sum(group.has_signal for group in groups),
        "n_members": sum(len(group.members) for group in groups),
        "n_excluded": sum(excluded.values()),
        "excluded_by_reason": dg.MetadataValue.json(dict(excluded)),
        "source_assessments_sha256": manifest.source,
        "groups": table(columns, [_group_row(group) for group in groups]),
    }


def _group_row(group: QualifiedGroup) -> tuple[str | int | float | bool | None, ...]:
    reasons = _counted([item.reason.value for item in group.excluded])
    return (group.group, group.task_name, len(group.members), reasons, group.has_signal)


def _datums(result: UnitResult) -> Facts:
    if result.datums is None:
        return {}
    tables = result.datums.tables
    columns = {"group": "int", "datums": "int", "trained_tokens": "int", "table_sha256": "string"}
    return {
        "n_groups": len(tables),
        "n_datums": sum(item.n_datums for item in tables),
        "n_trained_tokens": sum(item.n_trained_tokens for item in tables),
        "source_groups_sha256": result.datums.source,
        "groups": table(
            columns, [(item.group, item.n_datums, item.n_trained_tokens, item.table.digest) for item in tables]
        ),
    }
