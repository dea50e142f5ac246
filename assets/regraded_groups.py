"""``regraded_groups``: a unit's groups as another assessor sees them. Nothing trains on them."""

import dagster as dg

from assets.partitions import REGRADED_UNITS
from assets.regrades import dimensions
from assets.stamps import CODE_VERSION, OWNERS, manifest_facts, materialized, version_of
from assets.unit_facts import group_facts
from domain.errors import NotFoundError
from domain.maths.qualification import qualify
from domain.records.manifest import AssessmentManifest, GroupManifest, TrialManifest
from domain.records.names import unit_key
from domain.records.trial import TrialOutcome
from domain.service.platform import Platform
from domain.service.task_pages import entries_with
from domain.service.units import Stage, unit_spec
from resources.synth import SynthResource


@dg.asset(
    partitions_def=REGRADED_UNITS,
    deps=["regrades"],
    group_name="regrading",
    owners=OWNERS,
    kinds={"json"},
    code_version=CODE_VERSION,
)
def regraded_groups(context: dg.AssetExecutionContext, synth: SynthResource) -> dg.MaterializeResult[None]:
    """Sampling groups qualified by a regrade's rewards, beside the canonical ones."""
    platform = synth.platform()
    keys = dimensions(context)
    manifest = _qualified(platform, keys["assessor"], keys["unit"])
    ref = platform.records.save(manifest)
    return materialized(
        {
            "experiment": keys["assessor"],
            "unit": keys["unit"],
            **group_facts(manifest),
            **manifest_facts(platform, ref),
        },
        version_of(ref),
    )


def _qualified(platform: Platform, regrade: str, unit: str) -> GroupManifest:
    row, _, task_set = unit_spec(platform, unit)
    regraded = unit_key(regrade, row.index)
    with platform.ledger.snapshot() as tx:
        trials_ref = tx.units.manifest(regraded, Stage.TRIALS.value)
        panel_ref = tx.units.manifest(regraded, Stage.ASSESSMENTS.value)
    if trials_ref is None or panel_ref is None:
        raise NotFoundError(f"{regraded}: nothing is regraded yet", hint="materialize regrades first")
    trials = platform.records.load(TrialManifest, trials_ref).trials
    panel = platform.records.load(AssessmentManifest, panel_ref)
    counting = [trial for trial in trials if trial.outcome is not TrialOutcome.INFRA_ERROR]
    entries = entries_with(platform.records, task_set, {trial.task_digest for trial in counting})
    groups = [
        qualify(
            unit=unit,
            group=group,
            task=entries[members[0].task_digest],
            trials=members,
            assessments={item.trial_id: item for item in panel.assessments},
            interactions=None,
            policy=row.policy.name if row.policy else None,
            require_evidence=False,
        )
        for group in sorted({trial.key.group for trial in counting})
        for members in ([trial for trial in counting if trial.key.group == group],)
    ]
    return GroupManifest(unit=unit, source=panel_ref.digest, groups=tuple(groups))
