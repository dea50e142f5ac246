"""The shape of the graph: what there is, what follows from what, and how partitions are mapped."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dagster as dg

from tests.assets.graph import code_location

_GOLDEN = Path(__file__).parents[1] / "golden" / "asset_graph.json"
_HEAVY = ("torch", "transformers", "peft", "pyarrow", "matplotlib", "scipy", "alembic")


def _snapshot() -> dict[str, Any]:
    graph = code_location().resolve_asset_graph()
    nodes = {
        key.to_user_string(): {
            "parents": {
                parent.to_user_string(): type(graph.get_partition_mapping(key, parent)).__name__
                for parent in sorted(node.parent_keys)
            },
            "partitions": _partitions(node.partitions_def),
            "group": node.group_name,
            "external": node.is_external,
            "checks": sorted(check.name for check in node.check_keys),
        }
        for key in sorted(graph.get_all_asset_keys())
        for node in (graph.get(key),)
    }
    return {"assets": nodes}


def _partitions(definition: Any) -> str | dict[str, str] | None:
    if isinstance(definition, dg.MultiPartitionsDefinition):
        return {item.name: str(item.partitions_def.name) for item in definition.partitions_defs}  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType] - dynamic, by construction
    return definition.name if definition is not None else None


def test_the_graph_is_the_golden_one() -> None:
    """Assets, edges, mappings, partitions and checks change only with the golden file."""
    assert _snapshot() == json.loads(_GOLDEN.read_text())


def test_every_edge_uses_a_mapping_that_dagster_brings() -> None:
    """A mapping of our own would be dropped on the webserver's side (facts/dagster.md section 2.1)."""
    graph = code_location().resolve_asset_graph()
    for key in graph.get_all_asset_keys():
        for parent in graph.get(key).parent_keys:
            assert type(graph.get_partition_mapping(key, parent)).__module__.startswith("dagster.")


def test_every_asset_says_what_it_is() -> None:
    """Description, owner, group and kind stand on each asset."""
    for key in code_location().resolve_asset_graph().get_all_asset_keys():
        spec: Any = code_location().resolve_asset_graph().get(key)
        assert spec.description, key
        assert spec.owners, key
        assert spec.kinds, key
        assert spec.group_name != "default", key


def test_the_code_location_loads_without_the_model_libraries() -> None:
    """No model library, Arrow, plotting or migration is imported before it is used."""
    program = (
        "import importlib, json, sys\n"
        "importlib.import_module('definitions').defs.get_repository_def()\n"
        f"json.dump([name for name in {_HEAVY!r} if name in sys.modules], sys.stdout)\n"
    )
    started_s = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, cwd=_GOLDEN.parents[2])
    assert json.loads(done.stdout) == []
    assert time.monotonic() - started_s < 60, "a bound against hanging; tests/benchmarks measures"
