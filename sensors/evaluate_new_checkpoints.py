"""Evaluates checkpoints as trainings make them, on the task set that their plan names."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from domain.service.dispatch import evaluate_checkpoint
from resources.synth import SynthResource
from sensors.loose import loose

_AT_ONCE = 50


@loose.sensor(minimum_interval_seconds=10, default_status=dg.DefaultSensorStatus.RUNNING)
def evaluate_new_checkpoints(context: dg.SensorEvaluationContext, synth: SynthResource) -> dg.SensorResult:
    """Accept the evaluation of each new checkpoint; ids derive from it, so that a replayed tick changes nothing."""
    platform = synth.platform()
    found = context.instance.fetch_materializations(
        dg.AssetRecordsFilter(
            asset_key=dg.AssetKey("checkpoints"), after_storage_id=int(context.cursor) if context.cursor else None
        ),
        limit=_AT_ONCE,
        ascending=True,
    )
    accepted: list[str] = []
    cursor = context.cursor
    for record in found.records:
        metadata: Mapping[str, Any] = record.asset_materialization.metadata if record.asset_materialization else {}
        if "checkpoint" in metadata:
            checkpoint, training = (str(metadata[name].value) for name in ("checkpoint", "experiment"))
            evaluation = evaluate_checkpoint(platform, checkpoint, training_id=training)
            accepted += [evaluation.experiment.experiment_id] if evaluation and evaluation.created else []
        cursor = str(record.storage_id)
    reason = f"accepted {', '.join(accepted)}; the dispatcher launches them" if accepted else "no new checkpoint is due"
    return dg.SensorResult(skip_reason=reason, cursor=cursor)
