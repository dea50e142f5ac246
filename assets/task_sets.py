"""``task_sets``: published, immutable lists of exact tasks, with what their own solutions and doing nothing score."""

import asyncio
from itertools import islice

import dagster as dg
from pydantic import Field

from assets.partitions import TASK_SETS
from assets.stamps import OWNERS, Facts, Materialized, materialized, table
from domain.records.names import Reference, parse_reference
from domain.records.task import TaskSet
from domain.service.platform import Platform
from domain.service.publish import publish_task_set
from domain.service.task_pages import entries_of
from domain.service.vetting import CHECKS, WARNINGS, Vetting, vet
from resources.synth import SynthResource


class TaskSetConfig(dg.Config):
    """Where tasks come from, and how many of them are tried."""

    directory: str = Field(
        default="", description="Directory of tasks in Harbor's format. Empty: read the version published before."
    )
    host_runnable: bool = Field(default=False, description="Declare that boxes without the tasks' images may run them.")
    sandbox: str = Field(default="local", description="Sandbox in which solutions are tried.")
    checked_tasks: int = Field(default=16, ge=0, description="Tasks tried, spread over the set; 0: all.")


_LISTED = 128
"""Tasks that the metadata of a set lists, the first ones."""


@dg.asset(
    partitions_def=TASK_SETS,
    check_specs=[
        dg.AssetCheckSpec(name, asset="task_sets", description=description) for name, description in CHECKS.items()
    ],
    group_name="catalog",
    owners=OWNERS,
    kinds={"harbor"},
    code_version="1",
)
def task_sets(context: dg.AssetExecutionContext, config: TaskSetConfig, synth: SynthResource) -> Materialized:
    """An ordered list of tasks, pinned by digest and published as team/name@version; it never changes."""
    platform = synth.platform()
    found = _published(platform, _reference(context.partition_key), config)
    vetting = asyncio.run(vet(platform, found, config.sandbox, config.checked_tasks, holder=context.run.run_id))
    return materialized(
        _facts(platform, found, vetting),
        dg.DataVersion(found.digest),
        checks=[
            dg.AssetCheckResult(
                passed=not vetting.wrong[name],
                check_name=name,
                severity=dg.AssetCheckSeverity.WARN if name in WARNINGS else dg.AssetCheckSeverity.ERROR,
                metadata={"n_tasks_checked": vetting.n_tasks, "wrong": vetting.wrong[name][:20]},
            )
            for name in CHECKS
        ],
    )


def _reference(key: str) -> Reference:
    team, name, version = (*key.split("."), "", "")[:3]
    return parse_reference(f"{team}/{name}@{version}", field="partition")


def _published(platform: Platform, reference: Reference, config: TaskSetConfig) -> TaskSet:
    if config.directory:
        return publish_task_set(platform, reference, config.directory, host_runnable=config.host_runnable)
    with platform.ledger.snapshot() as tx:
        return tx.catalog.task_set(reference)[0]


def _facts(platform: Platform, found: TaskSet, vetting: Vetting) -> Facts:
    entries = tuple(islice(entries_of(platform.records, found), _LISTED))
    columns = {"task": "string", "family": "string", "task_sha256": "string"}
    return {
        "reference": str(found.reference),
        "n_tasks": found.n_tasks,
        "n_families": found.n_families,
        "families": dg.MetadataValue.json(sorted({entry.family for entry in entries if entry.family is not None})),
        "task_set_sha256": found.digest,
        "n_tasks_checked": vetting.n_tasks,
        "tasks": table(columns, [(entry.name, entry.family, entry.digest) for entry in entries]),
    }
