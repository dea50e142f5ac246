"""What people look at on an evaluation."""

from collections.abc import Mapping

import dagster as dg

from assets.estimates import mean_facts, spoken
from assets.plots import family_plot
from assets.stamps import Facts, experiment_facts, json_fact, table
from domain.maths.statistics import Estimate
from domain.service.evaluate import EvaluationReport
from domain.service.platform import Platform
from domain.service.ungraded import nothing_graded


def evaluation_facts(platform: Platform, report: EvaluationReport) -> Facts:
    """Return the metadata of an evaluation."""
    spec = report.experiment.spec
    with platform.ledger.snapshot() as tx:
        units = [unit.unit for unit in tx.units.of(report.experiment.experiment_id)]
    facts: Facts = {
        **experiment_facts(report.experiment),
        **mean_facts(report.mean),
        "headline": _headline(report),
        "task_set": str(spec.task_set),
        **{f"n_{outcome}": n for outcome, n in report.outcomes.items()},
        "n_tampered": report.n_tampered,
        "ungraded_by_reason": _reasons(report.ungraded),
        "n_prompt_tokens": report.n_prompt_tokens,
        "n_sampled_tokens": report.n_sampled_tokens,
        "box_wall_s": round(report.sandbox_s, 3),
        "pass_at_k": _by_k(report.pass_at, "pass@"),
        "pass_hat_k": _by_k(report.pass_hat, "pass^"),
        "families": _families(report.families),
        "tasks": _tasks(report),
        "by_family": dg.MetadataValue.md(family_plot(report.families)),
        "labels": json_fact(spec.labels),
        "source_assessments_sha256": dg.MetadataValue.json(list(report.sources)),
        "source_units": dg.MetadataValue.json(units),
        "open": f"synth run show {report.experiment.experiment_id}",
    }
    if report.headline is None:
        facts.pop("mean_reward", None)
    if spec.source is not None:
        facts["source"] = spec.source
    return facts


def _headline(report: EvaluationReport) -> str:
    if report.nothing_graded:
        return nothing_graded(report.ungraded)
    return "withheld: too much is ungraded" if report.headline is None else spoken(report.mean)


def _reasons(reasons: Mapping[str, int]) -> dg.TableMetadataValue:
    return table({"reason": "string", "trials": "int"}, list(reasons.items()))


def _by_k(estimates: Mapping[int, Estimate], prefix: str) -> dg.TableMetadataValue:
    columns = {"k": "string", "value": "string", "tasks": "int", "tasks_left_out": "int"}
    return table(
        columns, [(f"{prefix}{k}", spoken(item), item.n_tasks, item.n_left_out) for k, item in estimates.items()]
    )


def _families(families: Mapping[str, Estimate]) -> dg.TableMetadataValue:
    columns = {"family": "string", "mean": "string", "tasks": "int", "attempts": "int", "ungraded": "int"}
    return table(
        columns,
        [
            (name, spoken(item), item.n_tasks, item.n_attempts, item.coverage.n_ungraded)
            for name, item in families.items()
        ],
    )


def _tasks(report: EvaluationReport) -> dg.TableMetadataValue:
    columns = {"task": "string", "mean_reward": "float", "rewards": "string", "ungraded": "int"}
    return table(
        columns,
        [
            (
                report.task_names.get(item.task, item.task[:12]),
                item.mean,
                " ".join(f"{score:g}" for score in item.scores),
                item.n_ungraded,
            )
            for item in report.tasks
        ],
    )
