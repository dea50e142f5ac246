"""What people look at on a checkpoint: the step, its lineage and the curve so far."""

import dagster as dg

from assets.estimates import spoken
from assets.plots import learning_plot
from assets.stamps import Facts, files_fact, table
from domain.records.model import Update
from domain.service.evaluate import BatchPoint, learning_curve
from domain.service.learning import Advance
from domain.service.platform import Platform

_DRAWN_EVERY = 5
"""Batches."""


def checkpoint_facts(platform: Platform, step: Advance) -> Facts:
    """Return the metadata of a step, applied or skipped."""
    update = step.update
    curve = learning_curve(platform, update.experiment_id)
    facts: Facts = {
        "experiment": update.experiment_id,
        "unit": update.unit,
        "update_state": update.state.value,
        "parent": update.parent.name,
        "n_contributions": len(update.contributions),
        "batches": _curve_table(curve),
    }
    if _is_drawn(platform, update):
        facts["learning_curve"] = dg.MetadataValue.md(learning_plot(curve))
    if step.checkpoint is None:
        return facts
    checkpoint = step.checkpoint
    numbers = {key: value for key, value in checkpoint.metrics.items() if isinstance(value, int | float)}
    return {
        **facts,
        **numbers,
        "checkpoint": checkpoint.checkpoint_id,
        "next_batch": checkpoint.next_batch,
        "n_optimizer_steps": checkpoint.version.n_optimizer_steps,
        "groups": dg.MetadataValue.json(list(checkpoint.groups)),
        "adapter": files_fact(checkpoint.version.adapter),
        "trainer_state": files_fact(checkpoint.state),
        "lineage": f"synth run checkpoints {checkpoint.experiment_id}",
    }


def _is_drawn(platform: Platform, update: Update) -> bool:
    """Draw now and then and at the end: the next batch waits for this step, and drawing costs most of a second."""
    with platform.ledger.snapshot() as tx:
        last = tx.experiments.get(update.experiment_id).n_units
    return (update.index + 1) % _DRAWN_EVERY == 0 or update.index + 1 == last


def _curve_table(curve: tuple[BatchPoint, ...]) -> dg.TableMetadataValue:
    columns = {"batch": "int", "mean_reward": "string", "groups": "int", "with_signal": "int", "update": "string"}
    rows: list[tuple[str | int | float | bool | None, ...]] = [
        (
            point.index,
            spoken(point.mean),
            point.n_groups,
            point.n_groups_with_signal,
            point.update.state.value if point.update else None,
        )
        for point in curve
    ]
    return table(columns, rows[-128:])
