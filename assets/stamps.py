"""What every materialization carries: identity, source and version."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import dagster as dg

from domain.records.canonical import digest_of, jsonable
from domain.records.experiment import Experiment
from domain.records.model import FileEntry
from domain.records.task import ObjectRef
from domain.service.platform import Platform

OWNERS = ["team:synth"]
CODE_VERSION = "1"
"""Grows when the same inputs would give another manifest."""
LARGEST_TABLE = 128
"""Rows of a metadata table: events are kept for ever."""

Facts = dict[str, Any]
"""Metadata by name; Dagster takes numbers, texts and ``dg.MetadataValue``."""


if TYPE_CHECKING:
    Materialized = dg.MaterializeResult[None]
else:
    # Dagster reads return annotations, and does not know the generic form on assets with checks.
    Materialized = dg.MaterializeResult


def materialized(
    facts: Facts, version: dg.DataVersion, *, key: str | None = None, checks: Sequence[dg.AssetCheckResult] = ()
) -> dg.MaterializeResult[None]:
    """Return a materialization without a value: what it stands for lies in store and ledger, so no I/O manager runs."""
    result = dg.MaterializeResult(asset_key=key, metadata=facts, data_version=version, check_results=checks)
    return cast("dg.MaterializeResult[None]", result)


def manifest_facts(platform: Platform, ref: ObjectRef) -> Facts:
    """Return where a manifest is and what it is."""
    return {
        "manifest": dg.MetadataValue.url(platform.store.location(ref)),
        "manifest_sha256": ref.digest,
        "manifest_bytes": ref.size_bytes,
    }


def experiment_facts(experiment: Experiment, unit: str | None = None) -> Facts:
    """Return the ids by which lineage is walked."""
    facts: Facts = {"experiment": experiment.experiment_id, "kind": experiment.spec.kind.value}
    if unit is not None:
        facts["unit"] = unit
    if experiment.spec.policy is not None:
        facts["first_policy"] = experiment.spec.policy.name
    return facts


def json_fact(value: object) -> dg.JsonMetadataValue:
    """Return a record, or a collection of them, as JSON metadata."""
    found: Any = jsonable(value)
    return dg.MetadataValue.json(found)


def files_fact(files: Iterable[FileEntry]) -> dg.TableMetadataValue:
    """Return a table of retained files: path, size and digest."""
    columns = {"path": "string", "size_bytes": "int", "sha256": "string"}
    return table(columns, [(item.path, item.content.size_bytes, item.content.digest) for item in files])


def version_of(value: object) -> dg.DataVersion:
    """Return the data version of a record or of a digest."""
    return dg.DataVersion(value.digest if isinstance(value, ObjectRef) else digest_of(value))


def table(columns: dict[str, str], rows: list[tuple[str | int | float | bool | None, ...]]) -> dg.TableMetadataValue:
    """Return a metadata table of at most ``LARGEST_TABLE`` rows.

    Args:
        columns: name -> type (``string``, ``int``, ``float``, ``bool``).
        rows: values in the order of the columns; None where there is none.
    """
    schema = dg.TableSchema(columns=[dg.TableColumn(name, kind) for name, kind in columns.items()])
    records = [
        dg.TableRecord({name: "" if value is None else value for name, value in zip(columns, row, strict=True)})
        for row in rows[:LARGEST_TABLE]
    ]
    return dg.MetadataValue.table(records, schema=schema)
